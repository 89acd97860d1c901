// ConnectionManager: a device's cm::Agent as librdmacm sees it. The agent belongs to the device's
// Nic, which lives in libibverbs; librdmacm reaches it through the private symbol below. Both
// libraries come from one build, so this is a C++ interface, not an ABI.
//
// Thread-safe. Ids are those of the agent: unique per device, not per process. Fails with EIO in
// the child of a fork.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "cm/events.h"
#include "cm/parameters.h"

struct ibv_context;

namespace verbena::runtime {

class ConnectionManager {
 public:
  // Receives the agent's events, in order. Called with the device's lock held: it may store the
  // event and wake a thread, and must not call verbs or a ConnectionManager.
  class Sink {
   public:
    // False: out of memory, and nothing has changed. The event is delivered again.
    virtual bool on_event(const cm::Event& event) noexcept = 0;
    // The device's interface is gone permanently: a new one with the same name is another device.
    // Called once, under the same rules.
    virtual void on_removed() = 0;

   protected:
    ~Sink() = default;
  };
  // Set before anything else is called, and set to null before the sink is destroyed: when this
  // returns, no thread is in the sink.
  virtual void set_sink(Sink* sink) = 0;
  virtual uint32_t interface_index() const = 0;

  // --- listening: see cm::Agent -----------------------------------------------------------------
  // When it returns, requests from other hosts and processes are delivered to this process.
  // EADDRINUSE: another process of this host listens to that service on an address of this device.
  virtual Result<uint32_t> listen(const cm::ListenParameters& parameters) = 0;
  virtual Status stop_listening(uint32_t listener) = 0;
  virtual void request_taken(uint32_t id) = 0;

  // --- connections ------------------------------------------------------------------------------
  virtual Result<uint32_t> connect(const cm::ConnectParameters& parameters) = 0;
  virtual Status accept(uint32_t id, const cm::AcceptParameters& parameters) = 0;
  virtual Status establish(uint32_t id, std::span<const std::byte> private_data) = 0;
  virtual Status reject(uint32_t id, cm::RejectReason reason, std::span<const std::byte> ari,
                        std::span<const std::byte> private_data) = 0;
  virtual Status disconnect(uint32_t id, std::span<const std::byte> private_data) = 0;
  virtual Status notify_established(uint32_t id) = 0;
  virtual void destroy(uint32_t id) = 0;
  // ENOENT: no such connection.
  virtual Result<cm::ConnectionInfo> info(uint32_t id) = 0;

  // --- unconnected services ---------------------------------------------------------------------
  virtual Result<uint32_t> resolve_sidr(const cm::SidrParameters& parameters) = 0;
  virtual Status reply_sidr(uint32_t id, const cm::SidrReply& reply) = 0;
  virtual Result<cm::SidrInfo> sidr_info(uint32_t id) = 0;

 protected:
  ~ConnectionManager() = default;
};

// Changes with every change above, so that mixed builds fail with an error instead of crashing.
inline constexpr uint32_t kConnectionManagerVersion = 2;

}  // namespace verbena::runtime

// The connection manager of an open device; it lives as long as the context. Null with errno:
// ENOSYS for another version than this library's.
extern "C" verbena::runtime::ConnectionManager* verbena_connection_manager(ibv_context* context,
                                                                           uint32_t version);

// The directory of the Verbena processes of one network namespace. A slot is the top byte of every
// QPN of a process. A process claims it by binding an abstract Unix datagram socket with that
// number: the kernel makes the name exclusive and frees it when the process ends, even by a kill.
// That socket receives misrouted packets, steering reports and counter queries.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "host/local_address.h"
#include "host/mailbox.h"
#include "host/wait_budget.h"
#include "os/unique_fd.h"
#include "os/unix_address.h"
#include "wire/packet_io.h"

namespace verbena::host {

inline constexpr uint8_t kFirstSlot = 1;   // slot 0 contains QP0 and QP1 and has no owner
inline constexpr uint8_t kLastSlot = 254;  // slot 255 would contain the multicast QPN

// A service that a process listens to on a device. One process owns it at a time: it is the name of
// another abstract Unix socket, which receives misrouted requests for the service.
struct ServiceName {
  enum class Where : uint8_t { Address, AnyIpv4, AnyIpv6 };
  uint32_t interface_index = 0;
  uint64_t service_id = 0;
  Where where = Where::Address;
  wire::Gid address;  // where == Address
  bool operator==(const ServiceName&) const = default;
};

// Result of forwarding.
enum class Forwarded : uint8_t {
  Yes,
  NoReceiver,  // no process has that slot, or listens to that service
  Dropped,     // the receiving process does not keep up
};

// Whether a sender waits for a receiver whose queue is full (wait_budget.h).
enum class Wait : uint8_t { No, Yes };

// The reply of one live slot. A process that is stopped or another user's does not reply: pid 0, no
// text.
struct SlotReport {
  uint8_t slot = 0;
  pid_t pid = 0;
  uid_t uid = 0;
  std::string text;
};

// The slot that a Unix socket's abstract name, its leading zero included, is the name of. 0: none.
uint8_t slot_of_name(std::string_view name);

// Thread-safe. A process has one directory; all its datapaths share it.
class SlotDirectory {
 public:
  using CountersText = std::function<std::string()>;

  // Claims a free slot. `counters` returns the text that `verbena counters` prints for this
  // process. poll() calls it, inside a datapath's receive() and under its owner's lock, so it must
  // not wait for a lock that is held around receive().
  static Result<std::unique_ptr<SlotDirectory>> claim(CountersText counters = {});

  // Whether at least so many slots of this network namespace are taken.
  static bool has_taken(size_t slots);

  uint8_t slot() const { return slot_; }

  // Forwards a GRO batch, or part of one, to its owner (see MisroutedPackets).
  Forwarded forward(uint8_t to_slot, const LocalAddress& arrived_at, const wire::RxMeta& meta,
                    std::span<const std::byte> bytes, uint32_t stride, Wait wait = Wait::Yes);
  // Forwards one packet to the listener of a service.
  Forwarded forward(const ServiceName& to, const LocalAddress& arrived_at, const wire::RxMeta& meta,
                    std::span<const std::byte> bytes);
  Forwarded report(uint8_t to_slot, const MemberReport& report);

  // EADDRINUSE: this or another process has claimed it.
  Status claim_service(const ServiceName& name);
  void release_service(const ServiceName& name);
  static bool is_claimed(const ServiceName& name);
  // Returns the services claimed for an address or for all addresses of its family, in the form of
  // MemberReport::services.
  std::vector<uint32_t> services_at(const LocalAddress& address) const;

  // Reads a bounded number of messages, delivers them to the mailboxes and replies to queries.
  // Never blocks. `self` is the caller's own mailbox, which needs no wake-up.
  void poll(const Mailbox* self);
  // Messages are delivered to this mailbox until remove(). Mailbox calls both.
  void add(Mailbox& mailbox);
  void remove(Mailbox& mailbox);
  // At least one of these is readable while poll() has work to do.
  int fd() const { return socket_.get(); }
  int services_fd() const { return services_epoll_.get(); }

  // Misrouted packets that were dropped because no mailbox has their address, the mailbox was full,
  // or memory was short.
  uint64_t undeliverable() const;
  // How often a sender waited for a receiver.
  uint64_t waits() const { return waits_.load(std::memory_order_relaxed); }

  // Queries the counters of every live slot of this network namespace; waits at most `timeout`.
  static std::vector<SlotReport> query_all(Duration timeout);

 private:
  SlotDirectory(os::UniqueFd socket, uint8_t slot, CountersText counters);
  struct CountersQuery;
  void read_all(int fd, const Mailbox* self, std::vector<CountersQuery>& queries);
  void deliver_misrouted(std::span<const std::byte> message, bool is_from_own_process,
                         const Mailbox* self);
  void deliver_report(std::span<const std::byte> message, const Mailbox* self);
  Mailbox* mailbox_of(const LocalAddress& address);
  Forwarded deliver(const os::UnixAddress& to, uint64_t destination,
                    std::span<const std::byte> head, std::span<const std::byte> body);
  std::optional<Duration> next_wait(uint64_t destination);

  const os::UniqueFd socket_;
  const uint8_t slot_;
  const CountersText counters_;
  mutable std::mutex mutex_;
  const os::UniqueFd services_epoll_;  // watches the sockets of services_
  std::vector<Mailbox*> mailboxes_;
  struct Service {
    ServiceName name;
    os::UniqueFd socket;
  };
  std::vector<Service> services_;
  std::mutex wait_mutex_;   // held briefly, never during a wait
  WaitBudget wait_budget_;  // guarded by wait_mutex_
  std::atomic<uint64_t> waits_{0};
  uint64_t undeliverable_ = 0;
  std::vector<std::byte> buffer_;
};

}  // namespace verbena::host

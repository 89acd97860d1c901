// Management: the connection manager of a Nic. It owns the cm::Agent, sees that every management
// datagram which reaches this process gets to the process it is for, and is what librdmacm calls.
//
// A Nic has one from the first datagram or the first call on, whichever comes first: a process that
// never heard of rdma_cm still shares queue pair 1 with those that did.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "cm/agent.h"
#include "core/management_port.h"
#include "host/lifelines.h"
#include "host/slot_directory.h"
#include "runtime/connection_manager.h"
#include "runtime/log_limit.h"

namespace verbena::runtime {

class Nic;

class Management final : public ConnectionManager {
 public:
  Management(Nic& nic, const cm::AgentConfig& config);

  // --- the Nic's side; all under its lock -------------------------------------------------------
  // Deals with what has arrived and what is due. What follows from it is ready to be transmitted.
  void turn(Instant at);
  void deliver_events();
  void tell_removed() {
    if (sink_ != nullptr) sink_->on_removed();
  }
  Instant next_deadline() const { return agent_.next_deadline(); }
  // Somebody listens on every address: those that come later are to be opened too.
  bool listens_everywhere() const { return wildcards_ > 0; }
  // Readable when a process of this host that we have connections with has ended; then call this.
  int departures_fd() const { return lifelines_->fd(); }
  void on_departures(Instant at);
  // Of some, connections have not ended yet, for lack of memory.
  bool departures_pending() const { return departed_.any(); }
  // The process ends: peers need not wait for their time-outs.
  void say_goodbye(Instant at);
  // In the child of a fork: its copies of descriptors go.
  void abandon() { lifelines_.reset(); }
  const cm::Counters& counters() const { return agent_.counters(); }

  // --- ConnectionManager ------------------------------------------------------------------------
  void set_sink(Sink* sink) override;
  uint32_t interface_index() const override;
  Result<uint32_t> listen(const cm::ListenParameters& parameters) override;
  Status stop_listening(uint32_t listener) override;
  void request_taken(uint32_t id) override;
  Result<uint32_t> connect(const cm::ConnectParameters& parameters) override;
  Status accept(uint32_t id, const cm::AcceptParameters& parameters) override;
  Status establish(uint32_t id, std::span<const std::byte> private_data) override;
  Status reject(uint32_t id, cm::RejectReason reason, std::span<const std::byte> ari,
                std::span<const std::byte> private_data) override;
  Status disconnect(uint32_t id, std::span<const std::byte> private_data) override;
  Status notify_established(uint32_t id) override;
  void destroy(uint32_t id) override;
  Result<cm::ConnectionInfo> info(uint32_t id) override;
  Result<uint32_t> resolve_sidr(const cm::SidrParameters& parameters) override;
  Status answer_sidr(uint32_t id, const cm::SidrAnswer& answer) override;
  Result<cm::SidrInfo> sidr_info(uint32_t id) override;

 private:
  using PathKey = std::tuple<wire::Gid, wire::Gid, uint8_t>;  // source, destination, traffic class

  template <typename Call>
  auto call(Call&& work) -> decltype(work(Instant{}));
  void watch_peer(uint32_t id, Instant at);
  void end_connections_with(uint8_t slot, Instant at);
  bool is_this_host(const wire::Gid& gid) const;
  Status prepare_to_ask(const cm::Addresses& addresses, uint8_t traffic_class);
  void hear_absences(Instant at);
  void route(const core::ManagementDatagram& datagram, Instant at);
  void to_slot(const core::ManagementDatagram& datagram, uint8_t slot, Instant at);
  void to_listener(const core::ManagementDatagram& datagram, uint64_t service_id, Instant at);
  void to_agent(const core::ManagementDatagram& datagram, bool for_nobody, Instant at);
  void log_limited(LogLimit& limit, const char* text, Instant at);
  void explain_refusal(const cm::ReceivedMad& mad, const cm::Counters& before, Instant at);
  void post_outgoing();
  Result<wire::PathId> path_to(const PathKey& key);
  Status open_addresses(const cm::ListenParameters& parameters);
  Status claim(const cm::ListenParameters& parameters, std::vector<host::ServiceName>& claimed);
  void update_services();
  void release(const std::vector<host::ServiceName>& names);
  bool collides(const host::ServiceName& name) const;

  Nic& nic_;
  cm::Agent agent_;
  std::optional<host::Lifelines> lifelines_;  // none in the child of a fork
  std::bitset<256> departed_;                 // slots
  std::array<LogLimit, static_cast<size_t>(cm::CounterId::kCount)> refusal_lines_;
  LogLimit path_lines_;   // to peers that cannot be answered
  LogLimit event_lines_;  // of connections that peers asked for
  Sink* sink_ = nullptr;
  std::map<PathKey, wire::PathId> paths_;
  std::unordered_map<uint32_t, std::vector<host::ServiceName>> claims_;  // by listener
  uint32_t wildcards_ = 0;  // how many of them listen on every address
};

}  // namespace verbena::runtime

// Management: the connection manager of a Nic. It owns the cm::Agent, forwards each management
// datagram (MAD) to the process it is for, and implements the calls of librdmacm.
//
// A Nic creates it for the first MAD or the first call. A process that does not use rdma_cm shares
// queue pair 1 with processes that do.
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
#include "runtime/management_host.h"

namespace verbena::runtime {

class Management final : public ConnectionManager {
 public:
  Management(ManagementHost& host, const cm::AgentConfig& config);

  // --- for the host; all under its lock -------------------------------------------------------
  // Handles received MADs and expired deadlines. MADs to send wait in the management port.
  void turn(Instant at);
  void deliver_events();
  bool has_events() const { return agent_.has_events(); }
  void report_removed() {
    if (sink_ != nullptr) sink_->on_removed();
  }
  Instant next_deadline() const { return agent_.next_deadline(); }
  // A listener is bound to every address, including addresses that are added later.
  bool listens_everywhere() const { return wildcards_ > 0; }
  // Readable when a process of this host that has connections with this process has ended. Then
  // call on_departures().
  int departures_fd() const { return lifelines_.fd(); }
  void on_departures(Instant at);
  // For lack of memory, some connections with ended processes still exist.
  bool departures_pending() const { return departed_.any(); }
  // The process ends: sends a DREQ or REJ to each peer, which would otherwise wait for a timeout.
  void disconnect_all(Instant at);
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
  Status reply_sidr(uint32_t id, const cm::SidrReply& reply) override;
  Result<cm::SidrInfo> sidr_info(uint32_t id) override;

 private:
  using PathKey = std::tuple<wire::Gid, wire::Gid, uint8_t>;  // source, destination, traffic class

  template <typename Call>
  auto call(Call&& work) -> decltype(work(Instant{}));
  void watch_peer(uint32_t id, Instant at);
  void end_connections_with(uint8_t slot, Instant at);
  bool is_this_host(const wire::Gid& gid) const;
  Status prepare_request(const cm::Addresses& addresses, uint8_t traffic_class);
  void handle_unreachable_hosts(Instant at);
  void route(const core::ManagementDatagram& datagram, Instant at);
  void to_slot(const core::ManagementDatagram& datagram, uint8_t slot, Instant at);
  void to_listener(const core::ManagementDatagram& datagram, uint64_t service_id, Instant at);
  void to_agent(const core::ManagementDatagram& datagram, bool slot_is_unclaimed, Instant at);
  void log_limited(LogLimit& limit, const char* text, Instant at);
  void explain_refusal(const cm::ReceivedMad& mad, const cm::Counters& before, Instant at);
  void post_outgoing();
  Result<wire::PathId> path_to(const PathKey& key);
  Status open_addresses(const cm::ListenParameters& parameters);
  Status claim(const cm::ListenParameters& parameters, std::vector<host::ServiceName>& claimed);
  void update_services();
  void release(const std::vector<host::ServiceName>& names);
  bool collides(const host::ServiceName& name) const;

  ManagementHost& host_;
  const uint8_t slot_;
  cm::Agent agent_;
  host::Lifelines lifelines_;
  std::bitset<256> departed_;  // slots
  std::array<LogLimit, static_cast<size_t>(cm::CounterId::kCount)> refusal_lines_;
  LogLimit path_lines_;   // no path to a peer
  LogLimit event_lines_;  // connections that peers requested
  Sink* sink_ = nullptr;
  std::map<PathKey, wire::PathId> paths_;
  std::unordered_map<uint32_t, std::vector<host::ServiceName>> claims_;  // by listener
  uint32_t wildcards_ = 0;  // listeners on every address
};

}  // namespace verbena::runtime

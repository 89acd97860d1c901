// Agent: the connection manager of one process on one device, as a pure state machine in the manner
// of core::Engine: management datagrams in, time in, datagrams out, next deadline out, and events
// for its owner to take. It reads no clock, opens no socket and calls nobody back. Not thread-safe.
//
// Every exchange is named by an id, which is also its communication (or SIDR request) id on the
// wire: the slot in the top byte, 24 bits that cannot be guessed below.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>

#include "base/result.h"
#include "base/time.h"
#include "cm/agent_state.h"
#include "cm/connection.h"
#include "cm/listeners.h"
#include "cm/messages.h"
#include "cm/parameters.h"
#include "cm/sidr.h"

namespace verbena::cm {

struct ReceivedMad {
  wire::Gid source;
  wire::Gid destination;
  std::span<const std::byte> bytes;
  uint8_t traffic_class = 0;
  // The owner found no process behind the slot it was for: answer as to an id nobody knows, so
  // that a peer of a killed process need not wait for its time-outs.
  bool for_nobody = false;
  // It comes from this host, whose processes cannot end unnoticed: peer_gone() will tell. So it is
  // no evidence that its sender has forgotten a connection, and anybody here could have sent it.
  bool from_watched_host = false;
};

// A datagram of ours came back from the network: nobody at all serves on that host (ECONNREFUSED),
// or there is no such host. Only who has seen the datagram knows its transaction id.
struct Absence {
  wire::Gid host;
  uint64_t tid = 0;
  int error = 0;
};

class Agent {
 public:
  explicit Agent(const AgentConfig& config);

  // --- datagrams, time, events ------------------------------------------------------------------
  void on_mad(const ReceivedMad& in, Instant now);
  void on_deadline(Instant now);  // spurious calls are harmless
  Instant next_deadline() const { return deadlines_.empty() ? kNever : deadlines_.begin()->first; }
  bool next_mad(OutgoingMad& into) { return state_.outbox.pop(into); }
  bool next_event(Event& into) { return state_.events.pop(into); }
  // What next_event() would take. Only while has_events().
  const Event& first_event() const { return state_.events.front(); }
  bool has_events() const { return !state_.events.empty(); }

  // --- listening --------------------------------------------------------------------------------
  Result<uint32_t> listen(const ListenParameters& parameters);
  bool listens(uint64_t service_id, const wire::Gid& address) const {
    return listeners_.match(service_id, address) != nullptr;
  }
  // Requests it told the owner of stay: each is the owner's to accept, reject or destroy.
  Status stop_listening(uint32_t listener);
  // The application has seen the request: it no longer counts against the backlog. So does any
  // other call about it.
  void request_taken(uint32_t id);

  // --- connections ------------------------------------------------------------------------------
  Result<uint32_t> connect(const ConnectParameters& parameters, Instant now);
  Status accept(uint32_t id, const AcceptParameters& parameters, Instant now);
  Status establish(uint32_t id, std::span<const std::byte> private_data = {});
  // After this the id is no longer the owner's, and no event comes.
  Status reject(uint32_t id, RejectReason reason, std::span<const std::byte> ari,
                std::span<const std::byte> private_data, Instant now);
  // Ends in Disconnected when the peer has answered. Harmless when the peer was first.
  Status disconnect(uint32_t id, std::span<const std::byte> private_data, Instant now);
  Status notify_established(uint32_t id);
  // The process that had these communication ids on the host of `gid` has ended: as if it had
  // disconnected.
  void peer_gone(const wire::Gid& gid, uint8_t slot, Instant now);
  // Datagrams of ours came back. Whoever asked that host before one of them left, and has asked
  // again, waits for nothing. One that nobody waits for an answer to says nothing about now.
  void hosts_absent(std::span<const Absence> heard, Instant now);
  // The hosts with which a process of that slot has connections.
  std::set<wire::Gid> peers_of_slot(uint8_t slot) const;
  // In whatever state a connection or SIDR exchange is: refuses, cancels or disconnects. After this
  // the id is no longer the owner's, and no event comes.
  void destroy(uint32_t id, Instant now);
  void destroy_all(Instant now);
  const ConnectionInfo* info(uint32_t id) const;  // null: no connection of the owner's

  // --- unconnected services ---------------------------------------------------------------------
  Result<uint32_t> resolve_sidr(const SidrParameters& parameters, Instant now);
  // After this the id is no longer the owner's.
  Status answer_sidr(uint32_t id, const SidrAnswer& answer, Instant now);
  const SidrInfo* sidr_info(uint32_t id) const;

  // --- for people and tests ---------------------------------------------------------------------
  const Counters& counters() const { return state_.counters; }
  // What is remembered, TIMEWAIT included.
  size_t exchange_count() const { return connections_.size() + sidr_.size(); }
  size_t index_count() const {
    return by_remote_id_.size() + by_remote_qpn_.size() + by_request_.size();
  }

 private:
  template <typename Exchange>
  struct Entry {
    template <typename... Args>
    explicit Entry(AgentState& agent, uint32_t id, const Args&... args)
        : exchange(agent, id, args...) {}
    Exchange exchange;
    Instant scheduled = kNever;
    bool waiting = false;  // counts against its listener's backlog
  };
  using ConnectionEntry = Entry<Connection>;
  using SidrEntry = Entry<SidrExchange>;

  // Something of a peer: its communication id, queue pair number or SIDR request id.
  struct PeerKey {
    wire::Gid gid;
    uint32_t number = 0;
    bool operator==(const PeerKey&) const = default;
  };
  struct PeerKeyHash {
    SipKey key;
    size_t operator()(const PeerKey& k) const;
  };
  using PeerTable = std::unordered_map<PeerKey, uint32_t, PeerKeyHash>;

  void dispatch(const ReceivedMad& in, Instant now);
  void on_req(const ReceivedMad& in, const Req& req, Instant now);
  void on_rep(const ReceivedMad& in, const Rep& rep, Instant now);
  void on_rej(const ReceivedMad& in, const Rej& rej, Instant now);
  void on_lap(const ReceivedMad& in, const Lap& lap);
  void on_sidr_req(const ReceivedMad& in, const SidrReq& request);
  void on_sidr_rep(const ReceivedMad& in, const SidrRep& reply, Instant now);

  // The connection that `message` names and `in` may speak about; null after counting, and
  // answering where an answer helps, otherwise.
  template <typename Message>
  ConnectionEntry* find_for(const ReceivedMad& in, const Message& message);
  void answer_unknown(const ReceivedMad& in, const Rep& rep);
  void answer_unknown(const ReceivedMad& in, const Rtu& rtu);
  void answer_unknown(const ReceivedMad& in, const Dreq& dreq);
  template <typename Message>
  void answer_unknown(const ReceivedMad&, const Message&) {}
  void refuse(const ReceivedMad& in, const Req& req, RejectReason reason,
              std::span<const std::byte> ari = {});
  void refuse(const ReceivedMad& in, const SidrReq& request, SidrStatus status);
  template <typename Message>
  void reply(const ReceivedMad& to, const Message& message);
  Connection* other_user_of(const ReceivedMad& in, wire::Qpn qpn, uint32_t besides);
  void end_stale(const ReceivedMad& in, Connection& connection, Instant now);

  void forget_events_of(uint32_t id);
  ConnectionEntry* owned(uint32_t id);
  template <typename Call>
  Status on_owned(uint32_t id, Call&& call);
  SidrEntry* owned_sidr(uint32_t id);
  bool full() const { return exchange_count() >= state_.config.max_connections; }
  uint32_t free_id();
  template <typename Exchange>
  void enter_books(Entry<Exchange>& entry, auto fill_tables);
  template <typename Exchange>
  void enter_backlog(Entry<Exchange>& entry, Listener& listener);
  template <typename Exchange>
  void leave_backlog(Entry<Exchange>& entry);
  void settle(ConnectionEntry& entry);
  void settle(SidrEntry& entry);
  template <typename Exchange>
  void reschedule(Entry<Exchange>& entry);
  void forget(ConnectionEntry& entry);
  void forget(SidrEntry& entry);

  AgentState state_;
  Listeners listeners_;
  std::unordered_map<uint32_t, ConnectionEntry> connections_;
  std::unordered_map<uint32_t, SidrEntry> sidr_;
  PeerTable by_remote_id_;
  PeerTable by_remote_qpn_;
  PeerTable by_request_;
  std::set<std::pair<Instant, uint32_t>> deadlines_;  // one for each exchange, kNever included
};

}  // namespace verbena::cm

// Agent: the connection manager of one process on one device. Like core::Engine it is a pure state
// machine: management datagrams and time in; datagrams, the next deadline and events out. It reads
// no clock, opens no socket and makes no callbacks. Not thread-safe.
//
// Every exchange has an ID, which is also its communication ID (or SIDR request ID) on the wire:
// the slot in the top byte, and 24 unpredictable bits.
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
  // No process has the slot that the datagram is for. The agent replies as to an unknown ID, so
  // that the peer of a killed process need not wait for its timeouts.
  bool slot_is_unclaimed = false;
  // The datagram comes from this host. The end of its processes is reported by peer_gone(), so the
  // datagram is no evidence that its sender has lost a connection; any local process could have
  // sent it.
  bool from_watched_host = false;
};

// A datagram of ours was returned by the network: the host has no RoCE socket (ECONNREFUSED), or
// there is no such host. The transaction ID proves that the report refers to our datagram.
struct UnreachableHost {
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
  // The event that next_event() would take. Requires has_events().
  const Event& first_event() const { return state_.events.front(); }
  bool has_events() const { return !state_.events.empty(); }

  // --- listening --------------------------------------------------------------------------------
  Result<uint32_t> listen(const ListenParameters& parameters);
  bool listens(uint64_t service_id, const wire::Gid& address) const {
    return listeners_.match(service_id, address) != nullptr;
  }
  // Requests that were reported to the owner stay: the owner accepts, rejects or destroys each one.
  Status stop_listening(uint32_t listener);
  // The application has taken the request: it no longer counts against the backlog. Any other call
  // about the request has the same effect.
  void request_taken(uint32_t id);

  // --- connections ------------------------------------------------------------------------------
  Result<uint32_t> connect(const ConnectParameters& parameters, Instant now);
  Status accept(uint32_t id, const AcceptParameters& parameters, Instant now);
  Status establish(uint32_t id, std::span<const std::byte> private_data = {});
  // Afterwards the ID is no longer the owner's, and no event is reported for it.
  Status reject(uint32_t id, RejectReason reason, std::span<const std::byte> ari,
                std::span<const std::byte> private_data, Instant now);
  // Ends in a Disconnected event when the peer has replied. Has no effect if the peer was first.
  Status disconnect(uint32_t id, std::span<const std::byte> private_data, Instant now);
  Status notify_established(uint32_t id);
  // The process with this slot on the host of `gid` has ended. Its connections end as if it had
  // disconnected.
  void peer_gone(const wire::Gid& gid, uint8_t slot, Instant now);
  // Datagrams of ours were returned. Exchanges with that host end if their first request is not
  // newer than the returned datagram and they have retransmitted it. A returned datagram is ignored
  // if no exchange waits for a reply to it.
  void hosts_unreachable(std::span<const UnreachableHost> unreachable, Instant now);
  // The addresses of the hosts on which a process with that slot has connections with us.
  std::set<wire::Gid> peers_of_slot(uint8_t slot) const;
  // The slot of the process that a connection leads to, if it is of this host; 0: unknown. Its
  // queue pair may have another slot of the same process.
  uint8_t peer_slot(uint32_t id) const;
  // Rejects, cancels or disconnects a connection or SIDR exchange, in any state. Afterwards the ID
  // is no longer the owner's, and no event is reported for it.
  void destroy(uint32_t id, Instant now);
  void destroy_all(Instant now);
  const ConnectionInfo* info(uint32_t id) const;  // null: not a connection of the owner

  // --- unconnected services ---------------------------------------------------------------------
  Result<uint32_t> resolve_sidr(const SidrParameters& parameters, Instant now);
  // Afterwards the ID is no longer the owner's.
  Status reply_sidr(uint32_t id, const SidrReply& reply, Instant now);
  const SidrInfo* sidr_info(uint32_t id) const;

  // --- counters and sizes -----------------------------------------------------------------------
  const Counters& counters() const { return state_.counters; }
  // The number of exchanges, including those in TIMEWAIT.
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

  // A number that a peer chose: communication ID, queue pair number or SIDR request ID.
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

  // Returns the connection that `message` names, if `in` comes from its peer. Otherwise counts the
  // message, replies if that helps the peer, and returns null.
  template <typename Message>
  ConnectionEntry* find_for(const ReceivedMad& in, const Message& message);
  void reply_to_unknown(const ReceivedMad& in, const Rep& rep);
  void reply_to_unknown(const ReceivedMad& in, const Rtu& rtu);
  void reply_to_unknown(const ReceivedMad& in, const Dreq& dreq);
  template <typename Message>
  void reply_to_unknown(const ReceivedMad&, const Message&) {}
  void refuse(const ReceivedMad& in, const Req& req, RejectReason reason,
              std::span<const std::byte> ari = {});
  void refuse(const ReceivedMad& in, const SidrReq& request, SidrStatus status);
  template <typename Message>
  void reply(const ReceivedMad& to, const Message& message);
  Connection* other_connection_of(const ReceivedMad& in, wire::Qpn qpn, uint32_t besides);
  void end_stale(const ReceivedMad& in, Connection& connection, Instant now);

  void drop_events_of(uint32_t id);
  ConnectionEntry* owned(uint32_t id);
  template <typename Call>
  Status on_owned(uint32_t id, Call&& call);
  SidrEntry* owned_sidr(uint32_t id);
  bool full() const { return exchange_count() >= state_.config.max_connections; }
  uint32_t free_id();
  template <typename Exchange>
  void add_to_tables(Entry<Exchange>& entry, auto fill_tables);
  template <typename Exchange>
  void enter_backlog(Entry<Exchange>& entry, Listener& listener);
  template <typename Exchange>
  void leave_backlog(Entry<Exchange>& entry);
  void update_tables(ConnectionEntry& entry);
  void update_tables(SidrEntry& entry);
  template <typename Exchange>
  void reschedule(Entry<Exchange>& entry);
  void remove(ConnectionEntry& entry);
  void remove(SidrEntry& entry);

  AgentState state_;
  Listeners listeners_;
  std::unordered_map<uint32_t, ConnectionEntry> connections_;
  std::unordered_map<uint32_t, SidrEntry> sidr_;
  PeerTable by_remote_id_;
  PeerTable by_remote_qpn_;
  PeerTable by_request_;
  std::set<std::pair<Instant, uint32_t>> deadlines_;  // one per exchange, also if it is kNever
};

}  // namespace verbena::cm

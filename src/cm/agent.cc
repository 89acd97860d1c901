// Dispatches datagrams to exchanges, replies where no exchange exists, and maintains the tables of
// IDs, backlogs and deadlines. connection.cc and sidr.cc define the effect of a message on an
// exchange.
#include "cm/agent.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <vector>

namespace verbena::cm {
namespace {

constexpr Error kNoConnection{EINVAL, "no such connection, or it has ended"};

bool same_peer(const Addresses& addresses, const ReceivedMad& in) {
  return addresses.peer_gid == in.source;
}

void erase_if_ours(auto& table, const auto& key, uint32_t id) {
  const auto it = table.find(key);
  if (it != table.end() && it->second == id) table.erase(it);
}

// Releases the memory of tables that a flood of connections has enlarged.
void shrink_if_empty(auto&... tables) {
  constexpr size_t kSmall = 1024;
  (void)try_allocating([&] {
    ((tables.empty() && tables.bucket_count() > kSmall ? tables.rehash(0) : void()), ...);
  });
}

}  // namespace

Agent::Agent(const AgentConfig& config)
    : state_(config),
      by_remote_id_(0, PeerKeyHash{config.secret}),
      by_remote_qpn_(0, PeerKeyHash{config.secret}),
      by_request_(0, PeerKeyHash{config.secret}) {}

// The hash is keyed: peers choose these numbers and must not be able to make them collide.
size_t Agent::PeerKeyHash::operator()(const PeerKey& k) const {
  const uint64_t high = siphash(key, load_be64(k.gid.bytes.data()) ^ k.number);
  return siphash(key, load_be64(k.gid.bytes.data() + 8) ^ high);
}

// ------------------------------------------------------------------------------ received datagrams

// Without memory the datagram is dropped, as on a lossy network: the peer retransmits it.
void Agent::on_mad(const ReceivedMad& in, Instant now) {
  if (!try_allocating([&] { dispatch(in, now); })) state_.counters.add(CounterId::out_of_memory);
}

void Agent::dispatch(const ReceivedMad& in, Instant now) {
  state_.counters.add(CounterId::mads_received);
  if (!is_cm_mad(in.bytes)) return state_.counters.add(CounterId::malformed_mads);
  Mad mad;
  std::memcpy(mad.data(), in.bytes.data(), mad.size());
  const auto pass = [&](const auto& message, auto handler) {
    if (ConnectionEntry* entry = find_for(in, message)) {
      handler(entry->exchange, message);
      update_tables(*entry);
    }
  };
  switch (MadHeader::load(mad.data()).attribute) {
    case Attribute::Req:
      return on_req(in, Req::load(mad), now);
    case Attribute::Rep:
      return on_rep(in, Rep::load(mad), now);
    case Attribute::Rej:
      return on_rej(in, Rej::load(mad), now);
    case Attribute::Rtu:
      return pass(Rtu::load(mad), [](Connection& c, const Rtu& m) { c.on_rtu(m); });
    case Attribute::Mra:
      return pass(Mra::load(mad), [now](Connection& c, const Mra& m) { c.on_mra(m, now); });
    case Attribute::Dreq:
      return pass(Dreq::load(mad), [now](Connection& c, const Dreq& m) { c.on_dreq(m, now); });
    case Attribute::Drep:
      return pass(Drep::load(mad), [now](Connection& c, const Drep& m) { c.on_drep(m, now); });
    case Attribute::Lap:
      return on_lap(in, Lap::load(mad));
    case Attribute::SidrReq:
      return on_sidr_req(in, SidrReq::load(mad));
    case Attribute::SidrRep:
      return on_sidr_rep(in, SidrRep::load(mad), now);
    case Attribute::Apr:
      break;  // the agent never sends LAP
  }
  state_.counters.add(CounterId::unsupported_mads);
}

void Agent::on_req(const ReceivedMad& in, const Req& req, Instant now) {
  // Zero means "unknown", so the agent could not reply.
  if (req.local_comm_id == 0) return state_.counters.add(CounterId::bad_requests);
  const PeerKey from{in.source, req.local_comm_id};
  if (const auto known = by_remote_id_.find(from); known != by_remote_id_.end()) {
    ConnectionEntry& entry = connections_.at(known->second);
    if (!entry.exchange.info().active && entry.exchange.req_tid() == req.tid) {
      entry.exchange.on_duplicate_req();
      return update_tables(entry);
    }
    refuse(in, req, RejectReason::StaleConnection);
    return end_stale(in, entry.exchange, now);
  }

  const auto bad = [&](RejectReason reason, std::span<const std::byte> ari = {}) {
    state_.counters.add(CounterId::bad_requests);
    refuse(in, req, reason, ari);
  };
  const bool known_transport =
      req.transport == TransportType::Rc || req.transport == TransportType::Uc || req.is_xrc();
  if (!known_transport) return bad(RejectReason::InvalidTransportType);
  if (req.primary.local_gid != in.source) return bad(RejectReason::InvalidGid, in.source.bytes);
  if (req.path_mtu < 1 || req.path_mtu > 5) {
    const std::byte largest[] = {std::byte{5 << 4}};
    return bad(RejectReason::InvalidMtu, largest);
  }
  const auto ip = IpHeader::load(req.private_data.data());
  if (!ip) return bad(RejectReason::UnsupportedRequest);

  if (Connection* other = other_connection_of(in, req.local_qpn, 0)) {
    refuse(in, req, RejectReason::StaleConnection);
    return end_stale(in, *other, now);
  }
  Listener* listener = listeners_.match(req.service_id, ip->destination);
  if (listener == nullptr) {
    state_.counters.add(CounterId::no_listener);
    return refuse(in, req, RejectReason::InvalidServiceId);
  }
  if (listener->full() || full()) {
    state_.counters.add(full() ? CounterId::too_many_connections : CounterId::backlog_full);
    return refuse(in, req, RejectReason::NoResources);
  }
  const uint32_t id = free_id();
  state_.reserve_events(exchange_count() + 1);
  ConnectionEntry& entry =
      connections_.try_emplace(id, state_, id, req, *ip, in.destination, listener->id)
          .first->second;
  add_to_tables(entry, [&] {
    by_remote_id_[from] = id;
    if (req.local_qpn.value() != 0) by_remote_qpn_[{in.source, req.local_qpn.value()}] = id;
  });
  enter_backlog(entry, *listener);
  update_tables(entry);
}

void Agent::on_rep(const ReceivedMad& in, const Rep& rep, Instant now) {
  ConnectionEntry* entry = find_for(in, rep);
  if (entry == nullptr) return;
  Connection& connection = entry->exchange;
  if (connection.state() != Connection::State::ReqSent) {
    connection.on_rep(rep);
    return update_tables(*entry);
  }
  const PeerKey from{in.source, rep.local_comm_id};
  if (rep.local_comm_id == 0 || by_remote_id_.contains(from)) {
    return state_.counters.add(CounterId::unexpected);
  }
  const wire::Qpn qpn =
      connection.info().qp_kind == QpKind::Xrc ? wire::Qpn(rep.local_eecn) : rep.local_qpn;
  if (Connection* other = other_connection_of(in, qpn, connection.id())) {
    Rej rej;
    rej.tid = rep.tid;
    rej.local_comm_id = rep.remote_comm_id;
    rej.remote_comm_id = rep.local_comm_id;
    rej.about = About::Rep;
    rej.reason = RejectReason::StaleConnection;
    state_.counters.add(CounterId::rejects_sent);
    reply(in, rej);
    return end_stale(in, *other, now);
  }
  // Allocate first: if that fails, the REP counts as lost.
  by_remote_id_[from] = connection.id();
  const bool is_indexed = qpn.value() == 0 || try_allocating([&] {
                            by_remote_qpn_[{in.source, qpn.value()}] = connection.id();
                          });
  if (!is_indexed) {
    by_remote_id_.erase(from);
    return state_.counters.add(CounterId::out_of_memory);
  }
  connection.on_rep(rep);
  update_tables(*entry);
}

void Agent::on_rej(const ReceivedMad& in, const Rej& rej, Instant now) {
  ConnectionEntry* entry = nullptr;
  if (rej.remote_comm_id != 0) {
    entry = find_for(in, rej);
  } else if (const auto it = by_remote_id_.find({in.source, rej.local_comm_id});
             it != by_remote_id_.end()) {
    // The peer withdrew its REQ before it learned our ID. A connected peer knows our ID.
    entry = &connections_.at(it->second);
    if (entry->exchange.state() == Connection::State::Established) {
      return state_.counters.add(CounterId::unexpected);
    }
  } else {
    state_.counters.add(CounterId::unknown_id);
  }
  if (entry == nullptr) return;
  entry->exchange.on_rej(rej, now);
  update_tables(*entry);
}

void Agent::on_lap(const ReceivedMad& in, const Lap& lap) {
  const ConnectionEntry* entry = find_for(in, lap);
  if (entry == nullptr) return;
  if (entry->exchange.remote_id() != lap.local_comm_id) {
    return state_.counters.add(CounterId::unexpected);
  }
  state_.counters.add(CounterId::alternate_paths_refused);
  reply(in, Apr{lap.tid, lap.remote_comm_id, lap.local_comm_id});
}

void Agent::on_sidr_req(const ReceivedMad& in, const SidrReq& request) {
  const PeerKey from{in.source, request.request_id};
  if (const auto known = by_request_.find(from); known != by_request_.end()) {
    return sidr_.at(known->second).exchange.on_duplicate_request();
  }
  const auto ip = IpHeader::load(request.private_data.data());
  if (!ip) {
    state_.counters.add(CounterId::bad_requests);
    return refuse(in, request, SidrStatus::UnsupportedVersion);
  }
  Listener* listener = listeners_.match(request.service_id, ip->destination);
  if (listener == nullptr) {
    state_.counters.add(CounterId::no_listener);
    return refuse(in, request, SidrStatus::UnsupportedServiceId);
  }
  if (listener->full() || full()) {
    state_.counters.add(full() ? CounterId::too_many_connections : CounterId::backlog_full);
    return refuse(in, request, SidrStatus::Reject);
  }
  const uint32_t id = free_id();
  state_.reserve_events(exchange_count() + 1);
  SidrEntry& entry =
      sidr_.try_emplace(id, state_, id, request, *ip, in.destination, in.source, listener->id)
          .first->second;
  add_to_tables(entry, [&] { by_request_[from] = id; });
  enter_backlog(entry, *listener);
  update_tables(entry);
}

void Agent::on_sidr_rep(const ReceivedMad& in, const SidrRep& reply, Instant now) {
  if (reply.request_id >> 24 != state_.config.slot) {
    return state_.counters.add(CounterId::wrong_slot);
  }
  const auto it = sidr_.find(reply.request_id);
  if (it == sidr_.end()) return state_.counters.add(CounterId::unknown_id);
  SidrEntry& entry = it->second;
  if (!same_peer(entry.exchange.info().addresses, in)) {
    return state_.counters.add(CounterId::wrong_source);
  }
  entry.exchange.on_reply(reply, now);
  update_tables(entry);
}

template <typename Message>
Agent::ConnectionEntry* Agent::find_for(const ReceivedMad& in, const Message& message) {
  if (message.remote_comm_id >> 24 != state_.config.slot && !in.slot_is_unclaimed) {
    state_.counters.add(CounterId::wrong_slot);
    return nullptr;
  }
  const auto it = connections_.find(message.remote_comm_id);
  if (it == connections_.end()) {
    state_.counters.add(CounterId::unknown_id);
    reply_to_unknown(in, message);
    return nullptr;
  }
  if (!same_peer(it->second.exchange.info().addresses, in)) {
    state_.counters.add(CounterId::wrong_source);
    return nullptr;
  }
  return &it->second;
}

// ---------------------------------------------------------------------- replies without an
// exchange

// A REJ saves the peer its timeout: it waits for our RTU, or takes the connection for established.
void Agent::reply_to_unknown(const ReceivedMad& in, const Rep& rep) {
  Rej rej;
  rej.tid = rep.tid;
  rej.local_comm_id = rep.remote_comm_id;
  rej.remote_comm_id = rep.local_comm_id;
  rej.about = About::Rep;
  rej.reason = RejectReason::InvalidCommId;
  state_.counters.add(CounterId::rejects_sent);
  reply(in, rej);
}

void Agent::reply_to_unknown(const ReceivedMad& in, const Rtu& rtu) {
  Rej rej;
  rej.tid = rtu.tid;
  rej.local_comm_id = rtu.remote_comm_id;
  rej.remote_comm_id = rtu.local_comm_id;
  rej.about = About::Other;
  rej.reason = RejectReason::InvalidCommId;
  state_.counters.add(CounterId::rejects_sent);
  reply(in, rej);
}

// The connection does not exist, so the DREQ is confirmed.
void Agent::reply_to_unknown(const ReceivedMad& in, const Dreq& dreq) {
  Drep drep;
  drep.tid = dreq.tid;
  drep.local_comm_id = dreq.remote_comm_id;
  drep.remote_comm_id = dreq.local_comm_id;
  reply(in, drep);
}

void Agent::refuse(const ReceivedMad& in, const Req& req, RejectReason reason,
                   std::span<const std::byte> ari) {
  Rej rej;
  rej.tid = req.tid;
  rej.remote_comm_id = req.local_comm_id;
  rej.about = About::Req;
  rej.reason = reason;
  rej.ari_length = static_cast<uint8_t>(ari.size());
  std::copy(ari.begin(), ari.end(), rej.ari.begin());
  state_.counters.add(CounterId::rejects_sent);
  reply(in, rej);
}

void Agent::refuse(const ReceivedMad& in, const SidrReq& request, SidrStatus status) {
  SidrRep rep;
  rep.tid = request.tid;
  rep.request_id = request.request_id;
  rep.service_id = request.service_id;
  rep.status = status;
  reply(in, rep);
}

template <typename Message>
void Agent::reply(const ReceivedMad& to, const Message& message) {
  Addresses reverse;
  reverse.local_gid = to.destination;
  reverse.peer_gid = to.source;
  state_.send(message, reverse, to.traffic_class);
}

// ------------------------------------------------------------------------------- stale connections

// A queue pair has one connection. If the peer names a queue pair that is connected in our tables,
// the peer has lost that connection (IBA 12.9.8.3.1).
Connection* Agent::other_connection_of(const ReceivedMad& in, wire::Qpn qpn, uint32_t besides) {
  const auto it = by_remote_qpn_.find({in.source, qpn.value()});
  if (it == by_remote_qpn_.end() || it->second == besides) return nullptr;
  return &connections_.at(it->second).exchange;
}

void Agent::end_stale(const ReceivedMad& in, Connection& connection, Instant now) {
  state_.counters.add(CounterId::stale_connections);
  if (in.from_watched_host || connection.state() != Connection::State::Established) return;
  (void)connection.disconnect({}, now);
  update_tables(connections_.at(connection.id()));
}

// ---------------------------------------------------------------------------------- calls of the
// owner

Result<uint32_t> Agent::listen(const ListenParameters& parameters) {
  return listeners_.add(parameters);
}

Status Agent::stop_listening(uint32_t listener) {
  if (!listeners_.remove(listener)) return Error{EINVAL, "no such listener"};
  return {};
}

void Agent::request_taken(uint32_t id) {
  if (const auto it = connections_.find(id); it != connections_.end()) leave_backlog(it->second);
  if (const auto it = sidr_.find(id); it != sidr_.end()) leave_backlog(it->second);
}

Result<uint32_t> Agent::connect(const ConnectParameters& parameters, Instant now) {
  if (parameters.private_data.size() > kMaxConnectPrivateBytes) {
    return Error{EINVAL, "a connection request holds at most 56 bytes of private data"};
  }
  if (full()) return Error{ENOMEM, "too many connections at once"};
  const uint32_t id = free_id();
  state_.reserve_events(exchange_count() + 1);
  ConnectionEntry& entry = connections_.try_emplace(id, state_, id, parameters, now).first->second;
  add_to_tables(entry, [] {});
  update_tables(entry);
  return id;
}

// Runs `call` on a connection of the owner, then updates the tables.
template <typename Call>
Status Agent::on_owned(uint32_t id, Call&& call) {
  ConnectionEntry* entry = owned(id);
  if (entry == nullptr) return kNoConnection;
  const Status status = call(entry->exchange);
  update_tables(*entry);
  return status;
}

Status Agent::accept(uint32_t id, const AcceptParameters& parameters, Instant now) {
  return on_owned(id, [&](Connection& c) { return c.accept(parameters, now); });
}

Status Agent::establish(uint32_t id, std::span<const std::byte> private_data) {
  return on_owned(id, [&](Connection& c) { return c.establish(private_data); });
}

Status Agent::reject(uint32_t id, RejectReason reason, std::span<const std::byte> ari,
                     std::span<const std::byte> private_data, Instant now) {
  return on_owned(id, [&](Connection& c) {
    const Status status = c.reject(reason, ari, private_data, now);
    if (status.ok()) drop_events_of(id);
    return status;
  });
}

Status Agent::disconnect(uint32_t id, std::span<const std::byte> private_data, Instant now) {
  return on_owned(id, [&](Connection& c) { return c.disconnect(private_data, now); });
}

Status Agent::notify_established(uint32_t id) {
  return on_owned(id, [](Connection& c) { return c.notify_established(); });
}

void Agent::destroy(uint32_t id, Instant now) {
  drop_events_of(id);
  if (ConnectionEntry* entry = owned(id)) {
    entry->exchange.abandon(now);
    update_tables(*entry);
  } else if (SidrEntry* sidr = owned_sidr(id)) {
    sidr->exchange.abandon(now);
    update_tables(*sidr);
  }
}

std::set<wire::Gid> Agent::peers_of_slot(uint8_t slot) const {
  std::set<wire::Gid> peers;
  for (const auto& [id, entry] : connections_) {
    const Connection& c = entry.exchange;
    if (c.remote_id() >> 24 == slot) peers.insert(c.info().addresses.peer_gid);
  }
  return peers;
}

uint8_t Agent::peer_slot(uint32_t id) const {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return 0;
  return static_cast<uint8_t>(found->second.exchange.remote_id() >> 24);
}

void Agent::peer_gone(const wire::Gid& gid, uint8_t slot, Instant now) {
  std::vector<uint32_t> ids;
  for (const auto& [id, entry] : connections_) {
    const Connection& c = entry.exchange;
    if (c.remote_id() >> 24 == slot && c.info().addresses.peer_gid == gid) ids.push_back(id);
  }
  for (const uint32_t id : ids) {
    ConnectionEntry& entry = connections_.find(id)->second;
    entry.exchange.on_peer_gone(now);
    update_tables(entry);
  }
}

void Agent::hosts_unreachable(std::span<const UnreachableHost> unreachable, Instant now) {
  struct Known {
    int error;
    Instant until;
  };
  std::map<wire::Gid, Known> known;
  const auto find_awaited = [&](const auto& exchanges) {
    for (const auto& [id, entry] : exchanges) {
      for (const UnreachableHost& a : unreachable) {
        if (!entry.exchange.waits_for(a.host, a.tid)) continue;
        const Instant sent = entry.exchange.retry().last_sent();
        Known& host = known.try_emplace(a.host, Known{a.error, sent}).first->second;
        if (sent >= host.until) host = {a.error, sent};
      }
    }
  };
  const auto notify = [&](auto& exchanges) {
    std::vector<uint32_t> ids;
    for (const auto& [id, entry] : exchanges) {
      if (known.contains(entry.exchange.info().addresses.peer_gid)) ids.push_back(id);
    }
    for (const uint32_t id : ids) {
      auto& entry = exchanges.find(id)->second;
      const Known& host = known.at(entry.exchange.info().addresses.peer_gid);
      entry.exchange.on_host_unreachable(host.error, host.until, now);
      update_tables(entry);
    }
  };
  find_awaited(connections_);
  find_awaited(sidr_);
  if (known.empty()) return;
  notify(connections_);
  notify(sidr_);
}

void Agent::destroy_all(Instant now) {
  std::vector<uint32_t> ids;
  for (const auto& [id, entry] : connections_) ids.push_back(id);
  for (const auto& [id, entry] : sidr_) ids.push_back(id);
  for (const uint32_t id : ids) destroy(id, now);
}

const ConnectionInfo* Agent::info(uint32_t id) const {
  const auto it = connections_.find(id);
  return it != connections_.end() && it->second.exchange.owned() ? &it->second.exchange.info()
                                                                 : nullptr;
}

Result<uint32_t> Agent::resolve_sidr(const SidrParameters& parameters, Instant now) {
  if (parameters.private_data.size() > kMaxSidrPrivateBytes) {
    return Error{EINVAL, "a service resolution holds at most 180 bytes of private data"};
  }
  if (full()) return Error{ENOMEM, "too many connections at once"};
  const uint32_t id = free_id();
  state_.reserve_events(exchange_count() + 1);
  SidrEntry& entry = sidr_.try_emplace(id, state_, id, parameters, now).first->second;
  add_to_tables(entry, [] {});
  update_tables(entry);
  return id;
}

Status Agent::reply_sidr(uint32_t id, const SidrReply& reply, Instant now) {
  SidrEntry* entry = owned_sidr(id);
  if (entry == nullptr) return kNoConnection;
  const Status status = entry->exchange.reply(reply, now);
  update_tables(*entry);
  return status;
}

const SidrInfo* Agent::sidr_info(uint32_t id) const {
  const auto it = sidr_.find(id);
  return it != sidr_.end() && it->second.exchange.owned() ? &it->second.exchange.info() : nullptr;
}

// Removes the events that the owner has not taken: it no longer knows the ID.
void Agent::drop_events_of(uint32_t id) {
  state_.events.remove_if([id](const Event& e) { return e.id == id; });
}

Agent::ConnectionEntry* Agent::owned(uint32_t id) {
  const auto it = connections_.find(id);
  return it != connections_.end() && it->second.exchange.owned() ? &it->second : nullptr;
}

Agent::SidrEntry* Agent::owned_sidr(uint32_t id) {
  const auto it = sidr_.find(id);
  return it != sidr_.end() && it->second.exchange.owned() ? &it->second : nullptr;
}

// ------------------------------------------------------------------------------- tables and
// deadlines

void Agent::on_deadline(Instant now) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const uint32_t id = deadlines_.begin()->second;
    if (const auto it = connections_.find(id); it != connections_.end()) {
      it->second.exchange.on_deadline(now);
      update_tables(it->second);
    } else {
      SidrEntry& entry = sidr_.at(id);
      entry.exchange.on_deadline(now);
      update_tables(entry);
    }
  }
}

uint32_t Agent::free_id() {
  for (;;) {
    const uint32_t id = state_.draw_comm_id();
    // Zero means "unknown" in messages.
    if (id != 0 && !connections_.contains(id) && !sidr_.contains(id)) return id;
  }
}

// Adds a new exchange to the tables; fill_tables() adds it to those of its kind. Without memory the
// exchange is removed completely.
template <typename Exchange>
void Agent::add_to_tables(Entry<Exchange>& entry, auto fill_tables) {
  try {
    deadlines_.emplace(kNever, entry.exchange.id());
    fill_tables();
  } catch (const std::bad_alloc&) {
    drop_events_of(entry.exchange.id());
    remove(entry);
    throw;
  }
}

template <typename Exchange>
void Agent::enter_backlog(Entry<Exchange>& entry, Listener& listener) {
  ++listener.waiting;
  entry.waiting = true;
}

template <typename Exchange>
void Agent::leave_backlog(Entry<Exchange>& entry) {
  if (!entry.waiting) return;
  entry.waiting = false;
  if (Listener* listener = listeners_.find(entry.exchange.listener())) --listener->waiting;
}

// Called after each change of an exchange: updates the tables to its state. May remove the entry.
void Agent::update_tables(ConnectionEntry& entry) {
  const Connection& c = entry.exchange;
  if (c.state() != Connection::State::ReqReceived) leave_backlog(entry);
  if (c.state() == Connection::State::Closed) return remove(entry);
  if (!c.reserves_remote_qpn()) {
    erase_if_ours(by_remote_qpn_, PeerKey{c.info().addresses.peer_gid, c.info().remote_qpn.value()},
                  c.id());
  }
  reschedule(entry);
}

void Agent::update_tables(SidrEntry& entry) {
  const SidrExchange& s = entry.exchange;
  if (s.state() != SidrExchange::State::RequestReceived) leave_backlog(entry);
  if (s.state() == SidrExchange::State::Closed) return remove(entry);
  reschedule(entry);
}

template <typename Exchange>
void Agent::reschedule(Entry<Exchange>& entry) {
  const Instant at = entry.exchange.deadline();
  if (at == entry.scheduled) return;
  auto node = deadlines_.extract({entry.scheduled, entry.exchange.id()});
  node.value().first = entry.scheduled = at;
  deadlines_.insert(std::move(node));
}

void Agent::remove(ConnectionEntry& entry) {
  const Connection& c = entry.exchange;
  const wire::Gid& peer = c.info().addresses.peer_gid;
  erase_if_ours(by_remote_id_, PeerKey{peer, c.remote_id()}, c.id());
  erase_if_ours(by_remote_qpn_, PeerKey{peer, c.info().remote_qpn.value()}, c.id());
  deadlines_.erase({entry.scheduled, c.id()});
  connections_.erase(connections_.find(c.id()));
  shrink_if_empty(connections_, by_remote_id_, by_remote_qpn_);
}

void Agent::remove(SidrEntry& entry) {
  const SidrExchange& s = entry.exchange;
  erase_if_ours(by_request_, PeerKey{s.info().addresses.peer_gid, s.request_id()}, s.id());
  deadlines_.erase({entry.scheduled, s.id()});
  sidr_.erase(sidr_.find(s.id()));
  shrink_if_empty(sidr_, by_request_);
}

}  // namespace verbena::cm

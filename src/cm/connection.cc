// The state machine of one connection. Each message has one function, which handles the message in
// every state and counts unexpected ones.
#include "cm/connection.h"

#include <algorithm>
#include <bit>
#include <cerrno>

namespace verbena::cm {
namespace {

uint8_t code_of(wire::Mtu mtu) {
  return static_cast<uint8_t>(std::countr_zero(static_cast<uint32_t>(mtu)) - 7);
}

wire::Mtu mtu_of(uint8_t code) { return static_cast<wire::Mtu>(128u << code); }

// The time within which either side replies, plus the time of the datagrams on the network.
Duration response_wait(uint8_t response_timeout, uint8_t ack_timeout) {
  return iba_time(std::min(response_timeout, kMaxResponseTimeout)) +
         iba_time(std::min(ack_timeout, kMaxAckTimeout));
}

template <size_t N>
void put(Bytes<N>& field, std::span<const std::byte> data) {
  std::copy(data.begin(), data.end(), field.begin());
}

constexpr Error kWrongState{EINVAL, "the connection is not in a state that allows this"};
constexpr Error kTooMuchData{EINVAL, "the private data exceeds the capacity of the message"};

Req make_req(const AgentConfig& config, uint32_t id, uint64_t tid, const ConnectParameters& p) {
  Req req;
  req.tid = tid;
  req.local_comm_id = id;
  req.ece_options = p.ece.options;
  req.vendor_id = p.ece.vendor_id;
  req.service_id = p.addresses.service_id;
  req.local_ca_guid = config.ca_guid;
  req.local_qpn = p.qpn;
  req.responder_resources = p.responder_resources;
  req.initiator_depth = p.initiator_depth;
  req.remote_response_timeout = req.local_response_timeout =
      std::min<uint8_t>(p.response_timeout, 31);
  req.flow_control = p.flow_control;
  req.starting_psn = p.starting_psn;
  req.retry_count = std::min<uint8_t>(p.retry_count, 7);
  req.rnr_retry_count = std::min<uint8_t>(p.rnr_retry_count, 7);
  req.pkey = p.pkey;
  req.path_mtu = code_of(p.mtu);
  req.max_cm_retries = std::min(p.max_cm_retries, kMaxRetries);
  req.srq = p.srq;
  switch (p.qp_kind) {
    case QpKind::Rc:
      break;
    case QpKind::Uc:
      req.transport = TransportType::Uc;
      break;
    case QpKind::Xrc:
      req.transport = TransportType::Extended;
      req.extended_transport = kExtendedXrc;
      break;
  }
  // RoCE has no LIDs; the standard's permissive LID takes their place.
  req.primary.local_lid = req.primary.remote_lid = 0xFFFF;
  req.primary.local_gid = p.addresses.local_gid;
  req.primary.remote_gid = p.addresses.peer_gid;
  req.primary.flow_label = p.flow_label;
  req.primary.traffic_class = p.traffic_class;
  req.primary.hop_limit = p.hop_limit;
  req.primary.ack_timeout = std::min<uint8_t>(p.ack_timeout, 31);
  IpHeader{p.addresses.local_port, p.addresses.local_ip, p.addresses.peer_ip}.store(
      req.private_data.data());
  std::copy(p.private_data.begin(), p.private_data.end(),
            req.private_data.begin() + IpHeader::kBytes);
  return req;
}

}  // namespace

Connection::Connection(AgentState& agent, uint32_t id, const ConnectParameters& p, Instant now)
    : agent_(agent),
      id_(id),
      req_tid_(agent.draw_tid()),
      state_(State::ReqSent),
      max_retries_(std::min(p.max_cm_retries, kMaxRetries)),
      response_wait_(response_wait(p.response_timeout, p.ack_timeout)),
      retry_(agent.config.first_retry, response_wait_, max_retries_, now) {
  info_.active = true;
  info_.addresses = p.addresses;
  info_.addresses.peer_port = port_of(p.addresses.service_id);
  info_.qp_kind = p.qp_kind;
  info_.local_qpn = p.qpn;
  info_.rq_psn = p.starting_psn;
  info_.responder_resources = p.responder_resources;
  info_.initiator_depth = p.initiator_depth;
  info_.retry_count = p.retry_count;
  info_.rnr_retry_count = p.rnr_retry_count;
  info_.flow_control = p.flow_control;
  info_.pkey = p.pkey;
  info_.mtu = p.mtu;
  info_.flow_label = p.flow_label;
  info_.traffic_class = p.traffic_class;
  info_.hop_limit = p.hop_limit;
  info_.ack_timeout = p.ack_timeout;
  send_and_keep(make_req(agent.config, id, req_tid_, p));
}

Connection::Connection(AgentState& agent, uint32_t id, const Req& req, const IpHeader& ip,
                       const wire::Gid& local_gid, uint32_t listener)
    : agent_(agent),
      id_(id),
      remote_id_(req.local_comm_id),
      req_tid_(req.tid),
      state_(State::ReqReceived),
      max_retries_(req.max_cm_retries),
      listener_(listener),
      response_wait_(response_wait(req.local_response_timeout, req.primary.ack_timeout)) {
  info_.addresses = {local_gid,     req.primary.local_gid,   ip.destination,
                     ip.source,     port_of(req.service_id), ip.source_port,
                     req.service_id};
  info_.qp_kind = req.is_xrc()                         ? QpKind::Xrc
                  : req.transport == TransportType::Uc ? QpKind::Uc
                                                       : QpKind::Rc;
  info_.remote_qpn = req.local_qpn;
  info_.sq_psn = req.starting_psn;
  info_.remote_ca_guid = req.local_ca_guid;
  info_.responder_resources = req.initiator_depth;
  info_.initiator_depth = req.responder_resources;
  info_.retry_count = req.retry_count;
  info_.rnr_retry_count = req.rnr_retry_count;
  info_.flow_control = req.flow_control;
  info_.remote_srq = req.srq;
  info_.pkey = req.pkey;
  info_.mtu = mtu_of(req.path_mtu);
  info_.flow_label = req.primary.flow_label;
  info_.traffic_class = req.primary.traffic_class;
  info_.hop_limit = req.primary.hop_limit;
  info_.ack_timeout = req.primary.ack_timeout;
  info_.remote_ece = {req.vendor_id, req.ece_options};
  Event request = event(EventKind::ConnectRequest);
  request.listener = listener;
  request.private_data = PrivateData(std::span(req.private_data).subspan(IpHeader::kBytes));
  report(request);
}

// ---------------------------------------------------------------------------- calls of the owner

Status Connection::accept(const AcceptParameters& p, Instant now) {
  if (state_ != State::ReqReceived) return kWrongState;
  if (p.private_data.size() > Rep::kPrivateBytes) return kTooMuchData;
  Rep rep;
  rep.tid = req_tid_;
  rep.local_comm_id = id_;
  rep.remote_comm_id = remote_id_;
  rep.ece_options = p.ece.options;
  rep.vendor_id = p.ece.vendor_id;
  if (info_.qp_kind == QpKind::Xrc) {
    rep.local_eecn = p.qpn.value();
    rep.srq = true;
  } else {
    rep.local_qpn = p.qpn;
    rep.srq = p.srq;
    rep.initiator_depth = p.initiator_depth;
    rep.flow_control = p.flow_control;
  }
  rep.starting_psn = p.starting_psn;
  rep.responder_resources = p.responder_resources;
  rep.target_ack_delay = agent_.config.target_ack_delay;
  rep.rnr_retry_count = std::min<uint8_t>(p.rnr_retry_count, 7);
  rep.local_ca_guid = agent_.config.ca_guid;
  put(rep.private_data, p.private_data);

  info_.local_qpn = p.qpn;
  info_.rq_psn = p.starting_psn;
  info_.responder_resources = p.responder_resources;
  info_.initiator_depth = p.initiator_depth;
  state_ = State::RepSent;
  retry_ = Retry(agent_.config.first_retry, response_wait_, max_retries_, now);
  send_and_keep(rep);
  return {};
}

Status Connection::establish(std::span<const std::byte> private_data) {
  if (state_ != State::RepReceived) return kWrongState;
  if (private_data.size() > Rtu::kPrivateBytes) return kTooMuchData;
  Rtu rtu;
  rtu.tid = req_tid_;
  rtu.local_comm_id = id_;
  rtu.remote_comm_id = remote_id_;
  put(rtu.private_data, private_data);
  state_ = State::Established;
  send_and_keep(rtu);
  return {};
}

Status Connection::reject(RejectReason reason, std::span<const std::byte> ari,
                          std::span<const std::byte> private_data, Instant now) {
  if (state_ != State::ReqReceived && state_ != State::RepReceived && state_ != State::RepSent) {
    return kWrongState;
  }
  if (ari.size() > Rej::kAriBytes || private_data.size() > Rej::kPrivateBytes) return kTooMuchData;
  Rej rej = make_rej(reason);
  rej.ari_length = static_cast<uint8_t>(ari.size());
  put(rej.ari, ari);
  put(rej.private_data, private_data);
  agent_.counters.add(CounterId::rejects_sent);
  send(rej);
  owned_ = false;
  remember(rej, now);
  return {};
}

Status Connection::disconnect(std::span<const std::byte> private_data, Instant now) {
  switch (state_) {
    case State::Established:
    case State::RepSent:
      return start_disconnect(private_data, now);
    case State::DreqSent:
    case State::TimeWait:
      return {};
    default:
      return kWrongState;
  }
}

Status Connection::start_disconnect(std::span<const std::byte> private_data, Instant now) {
  if (private_data.size() > Dreq::kPrivateBytes) return kTooMuchData;
  Dreq dreq;
  dreq.tid = agent_.draw_tid();
  dreq.local_comm_id = id_;
  dreq.remote_comm_id = remote_id_;
  dreq.remote_qpn = info_.remote_qpn;
  put(dreq.private_data, private_data);
  state_ = State::DreqSent;
  retry_ = Retry::for_disconnect(agent_.config.first_retry, response_wait_, max_retries_, now);
  send_and_keep(dreq);
  return {};
}

Status Connection::notify_established() {
  if (state_ == State::Established) return {};
  if (state_ != State::RepSent) return kWrongState;
  state_ = State::Established;
  report(event(EventKind::Established));
  return {};
}

void Connection::abandon(Instant now) {
  switch (state_) {
    case State::ReqSent: {
      // The peer may already have the REQ. The REJ names it by our ID, because the peer's is
      // unknown.
      agent_.counters.add(CounterId::rejects_sent);
      send(make_rej(RejectReason::Timeout));
      state_ = State::Closed;
      break;
    }
    case State::ReqReceived:
    case State::RepReceived:
      (void)reject(RejectReason::Consumer, {}, {}, now);
      break;
    case State::RepSent:
    case State::Established:
      (void)start_disconnect({}, now);
      break;
    default:
      break;
  }
  owned_ = false;
}

// ------------------------------------------------------------------------- messages of the peer

void Connection::on_duplicate_req() {
  agent_.counters.add(CounterId::duplicates);
  switch (state_) {
    case State::ReqReceived:
      send(make_mra(About::Req));
      break;
    case State::RepSent:
      resend();
      break;
    case State::Remembered:
      send(refusal_of_req());
      break;
    case State::TimeWait:
      agent_.counters.add(CounterId::rejects_sent);
      send(make_rej(RejectReason::StaleConnection));
      break;
    default:
      break;  // a late duplicate: later messages have superseded it
  }
}

void Connection::on_rep(const Rep& rep) {
  if (!info_.active || (state_ != State::ReqSent && rep.local_comm_id != remote_id_)) {
    agent_.counters.add(CounterId::unexpected);
    return;
  }
  if (state_ != State::ReqSent) {
    agent_.counters.add(CounterId::duplicates);
    if (state_ == State::RepReceived) send(make_mra(About::Rep));
    if (state_ == State::Established || state_ == State::Remembered) resend();
    return;
  }
  state_ = State::RepReceived;
  remote_id_ = rep.local_comm_id;
  info_.remote_qpn = info_.qp_kind == QpKind::Xrc ? wire::Qpn(rep.local_eecn) : rep.local_qpn;
  info_.sq_psn = rep.starting_psn;
  info_.remote_ca_guid = rep.local_ca_guid;
  info_.responder_resources = rep.initiator_depth;
  info_.initiator_depth = rep.responder_resources;
  info_.rnr_retry_count = rep.rnr_retry_count;
  info_.flow_control = rep.flow_control;
  info_.remote_srq = rep.srq;
  info_.target_ack_delay = rep.target_ack_delay;
  info_.remote_ece = {rep.vendor_id, rep.ece_options};
  Event response = event(EventKind::ConnectResponse);
  response.private_data = PrivateData(rep.private_data);
  report(response);
}

void Connection::on_rtu(const Rtu& rtu) {
  if (info_.active || rtu.local_comm_id != remote_id_) {
    agent_.counters.add(CounterId::unexpected);
  } else if (state_ == State::RepSent) {
    state_ = State::Established;
    Event established = event(EventKind::Established);
    established.private_data = PrivateData(rtu.private_data);
    report(established);
  } else {
    agent_.counters.add(CounterId::duplicates);
    if (state_ == State::Remembered) resend();  // the peer takes the connection for established
  }
}

void Connection::on_mra(const Mra& mra, Instant now) {
  const bool expected = (state_ == State::ReqSent && mra.about == About::Req) ||
                        (state_ == State::RepSent && mra.about == About::Rep);
  if (!expected) return agent_.counters.add(CounterId::unexpected);
  agent_.counters.add(CounterId::mras_received);
  retry_.extend(iba_time(std::min(mra.service_timeout, kMaxServiceTimeout)), now);
}

void Connection::on_rej(const Rej& rej, Instant now) {
  if (remote_id_ != 0 && rej.local_comm_id != remote_id_ && rej.local_comm_id != 0) {
    return agent_.counters.add(CounterId::unexpected);
  }
  // A late duplicate of a REJ that a later, successful REQ has superseded.
  if (info_.active && rej.about == About::Req && state_ != State::ReqSent) {
    return agent_.counters.add(CounterId::unexpected);
  }
  Event rejected = event(EventKind::Rejected);
  rejected.reason = rej.reason;
  rejected.private_data = PrivateData(rej.private_data);
  switch (state_) {
    case State::ReqSent:
      if (rej.reason == RejectReason::InvalidServiceId && retry_.retry_after_refusal(now)) break;
      [[fallthrough]];
    case State::RepReceived:
      report(rejected);
      state_ = State::Closed;
      break;
    case State::ReqReceived:
    case State::RepSent:
      report(rejected);
      owned_ = false;
      remember(make_rej(RejectReason::StaleConnection), now);
      break;
    case State::Established:
    case State::DreqSent:
      rejected.kind = EventKind::Disconnected;
      rejected.error = ECONNRESET;
      report(rejected);
      end_connected(now);
      break;
    default:
      return agent_.counters.add(CounterId::unexpected);
  }
  agent_.counters.add(CounterId::rejects_received);
}

void Connection::on_dreq(const Dreq& dreq, Instant now) {
  if (state_ != State::ReqSent && dreq.local_comm_id != remote_id_) {
    return agent_.counters.add(CounterId::unexpected);
  }
  if (state_ == State::ReqReceived) return agent_.counters.add(CounterId::unexpected);
  if (dreq.remote_qpn != info_.local_qpn) return agent_.counters.add(CounterId::wrong_qpn);
  send(drep_for(dreq));
  switch (state_) {
    case State::RepReceived:
    case State::RepSent:
    case State::Established:
    case State::DreqSent: {  // both sides disconnect at the same time: each sends a DREP
      Event disconnected = event(EventKind::Disconnected);
      disconnected.private_data = PrivateData(dreq.private_data);
      report(disconnected);
      end_connected(now);
      break;
    }
    case State::ReqSent:
      // The peer accepted and ended before its REP reached us. It will reject our next
      // retransmission of the REQ.
      break;
    default:
      agent_.counters.add(CounterId::duplicates);
      break;
  }
}

// Acts as if the peer had disconnected. For a hardware NIC the peer's kernel sends the DREQ.
void Connection::on_peer_gone(Instant now) {
  switch (state_) {
    case State::RepReceived:
    case State::RepSent:
    case State::Established:
    case State::DreqSent:
      report(event(EventKind::Disconnected));
      end_connected(now);
      break;
    default:
      break;
  }
}

bool Connection::waits_for(const wire::Gid& host, uint64_t tid) const {
  return (state_ == State::ReqSent || state_ == State::DreqSent) &&
         info_.addresses.peer_gid == host && MadHeader::load(last_.data()).tid == tid;
}

void Connection::on_host_unreachable(int error, Instant until, Instant now) {
  // One returned datagram proves nothing: programs often start both ends at the same time.
  if (!retry_.has_retransmitted() || retry_.first_sent() > until) return;
  if (state_ == State::ReqSent) {
    const bool refused = error == ECONNREFUSED;
    Event e = event(refused ? EventKind::Rejected : EventKind::Unreachable);
    if (refused) {
      e.reason = RejectReason::InvalidServiceId;
    } else {
      e.error = error;
    }
    report(e);
    state_ = State::Closed;
  } else if (state_ == State::DreqSent) {
    on_peer_gone(now);
  }
}

void Connection::on_drep(const Drep& drep, Instant now) {
  if (state_ == State::TimeWait) return agent_.counters.add(CounterId::duplicates);
  if (state_ != State::DreqSent || drep.local_comm_id != remote_id_) {
    return agent_.counters.add(CounterId::unexpected);
  }
  Event disconnected = event(EventKind::Disconnected);
  disconnected.private_data = PrivateData(drep.private_data);
  report(disconnected);
  end_connected(now);
}

// -------------------------------------------------------------------------------------- deadlines

Instant Connection::deadline() const {
  switch (state_) {
    case State::ReqSent:
    case State::RepSent:
    case State::DreqSent:
      return retry_.deadline();
    case State::TimeWait:
    case State::Remembered:
      return ends_;
    default:
      return kNever;
  }
}

void Connection::on_deadline(Instant now) {
  if (now < deadline()) return;
  if (state_ == State::TimeWait || state_ == State::Remembered) {
    if (state_ == State::TimeWait) report(event(EventKind::TimewaitExit));
    state_ = State::Closed;
  } else if (retry_.use_retry(now)) {
    agent_.counters.add(CounterId::retransmissions);
    resend();
  } else {
    give_up(now);
  }
}

void Connection::give_up(Instant now) {
  agent_.counters.add(CounterId::timeouts);
  if (state_ == State::DreqSent) {
    Event disconnected = event(EventKind::Disconnected);
    disconnected.error = ETIMEDOUT;
    report(disconnected);
    return end_connected(now);
  }
  const Rej rej = make_rej(RejectReason::Timeout);
  agent_.counters.add(CounterId::rejects_sent);
  send(rej);
  Event unreachable = event(EventKind::Unreachable);
  unreachable.error = ETIMEDOUT;
  report(unreachable);
  if (state_ == State::ReqSent) {
    state_ = State::Closed;
  } else {
    owned_ = false;
    remember(rej, now);
  }
}

void Connection::end_connected(Instant now) {
  state_ = State::TimeWait;
  ends_ = now + iba_time(std::min(info_.ack_timeout, kMaxAckTimeout));
}

void Connection::remember(const Rej& rej, Instant now) {
  rej.store(last_);
  state_ = State::Remembered;
  ends_ = now + iba_time(std::min(info_.ack_timeout, kMaxAckTimeout));
}

bool Connection::reserves_remote_qpn() const {
  switch (state_) {
    case State::ReqReceived:
    case State::RepSent:
    case State::RepReceived:
    case State::Established:
    case State::DreqSent:
    case State::TimeWait:
      return true;
    default:
      return false;
  }
}

// --------------------------------------------------------------------------------------- messages

Rej Connection::make_rej(RejectReason reason) const {
  Rej rej;
  rej.tid = req_tid_;
  rej.remote_comm_id = remote_id_;
  rej.reason = reason;
  switch (state_) {
    case State::ReqReceived:
      // The peer learns our ID from an MRA.
      rej.local_comm_id = mra_sent_ ? id_ : 0;
      rej.about = About::Req;
      break;
    case State::RepReceived:
      rej.local_comm_id = id_;
      rej.about = About::Rep;
      break;
    case State::TimeWait:
      rej.local_comm_id = id_;
      rej.about = About::Req;
      break;
    default:
      rej.local_comm_id = id_;
      rej.about = About::Other;
      break;
  }
  if (reason == RejectReason::Timeout) {  // the peer finds its connection by this GUID and our ID
    rej.ari_length = sizeof agent_.config.ca_guid;
    store_be64(rej.ari.data(), agent_.config.ca_guid);
  }
  return rej;
}

// Converts the stored REJ for a peer that still waits for a REP.
Rej Connection::refusal_of_req() const {
  Rej rej = Rej::load(last_);
  rej.about = About::Req;
  if (rej.reason == RejectReason::Timeout) rej.reason = RejectReason::StaleConnection;
  return rej;
}

Mra Connection::make_mra(About about) {
  Mra mra;
  mra.tid = req_tid_;
  mra.local_comm_id = id_;
  mra.remote_comm_id = remote_id_;
  mra.about = about;
  mra.service_timeout =
      about == About::Rep ? agent_.config.establish_timeout : agent_.config.service_timeout;
  mra_sent_ = true;
  agent_.counters.add(CounterId::mras_sent);
  return mra;
}

Drep Connection::drep_for(const Dreq& dreq) const {
  Drep drep;
  drep.tid = dreq.tid;
  drep.local_comm_id = id_;
  drep.remote_comm_id = dreq.local_comm_id;
  return drep;
}

template <typename Message>
void Connection::send(const Message& message) {
  agent_.send(message, info_.addresses, info_.traffic_class);
}

template <typename Message>
void Connection::send_and_keep(const Message& message) {
  message.store(last_);
  resend();
}

void Connection::resend() { agent_.send_bytes(last_, info_.addresses, info_.traffic_class); }

Event Connection::event(EventKind kind) const {
  Event e;
  e.kind = kind;
  e.id = id_;
  e.active = info_.active;
  e.peer = info_.addresses.peer_ip;
  e.port = port_of(info_.addresses.service_id);
  return e;
}

void Connection::report(const Event& event) {
  if (owned_) agent_.report(event);
}

}  // namespace verbena::cm

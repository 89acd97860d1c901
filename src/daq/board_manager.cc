// BoardManager: the handlers of the connection manager's messages on a board.
#include "daq/board_manager.h"

namespace verbena::daq {

std::span<const QuirkName> quirk_names() {
  static constexpr QuirkName kNames[] = {
      {"modify-wedges", &Quirks::modify_wedges,
       "MODIFY_QP_RTS of a ready QP makes every OPEN_QP fail until a CLOSE_QP"},
      {"modify-hangs", &Quirks::modify_hangs,
       "MODIFY_QP_RTS of a QPN outside the pool stops the connection manager permanently"},
      {"stale-answers", &Quirks::stale_answers,
       "NO_QP, and NAK for a QPN outside the pool, repeat the previous response to its receiver"},
      {"leaks-qpns", &Quirks::leaks_qpns, "an OPEN_QP that fails keeps its QPN"},
      {"opens-twice", &Quirks::opens_twice, "a duplicate OPEN_QP takes a second QPN"},
      {"no-qp-is-ack", &Quirks::no_qp_is_ack, "as a master: NO_QP opens the QP as ACK does"},
      {"loses-pulses", &Quirks::loses_pulses,
       "a request at the instant at which a QP closes or fails stops the connection manager "
       "permanently"},
  };
  return kNames;
}

BoardManager::BoardManager(const Config& config)
    : config_(config), queue_pairs_(config.queue_pairs) {
  for (uint32_t i = 0; i < config.queue_pairs; ++i) free_.push_back(kFirstQpn + i);
}

void BoardManager::on_datagram(std::span<const std::byte> bytes, Instant now) {
  const auto in = Message::load(bytes);
  if (!in) return report(BoardOutcome::WrongLength, 0, {});
  if (hung_) return report(BoardOutcome::Hung, 0, *in);
  if (in->ack_valid) return on_response(*in);
  if (in->transmit.valid && in->request == Request::Null) return on_transmit(*in);
  if (in->info_valid) return on_request(*in, now);
  report(BoardOutcome::NoRequest, 0, *in);
}

void BoardManager::on_request(const Message& in, Instant now) {
  if (config_.quirks.loses_pulses && in.request != Request::Null && now == table_changed_at_) {
    hung_ = true;
    return report(BoardOutcome::Hung, 0, in);
  }
  switch (in.request) {
    case Request::OpenQp:
      return on_open(in);
    case Request::ModifyQpRts:
      return on_modify(in);
    case Request::CloseQp:
      return on_close(in, now);
    case Request::Null:
      return report(BoardOutcome::NoRequest, 0, in);
    default:
      return report(BoardOutcome::UnknownRequest, 0, in);
  }
}

void BoardManager::on_open(const Message& in) {
  if (const auto qpn = find_open_qp(in); qpn && !config_.quirks.opens_twice) {
    respond(in, {.qpn = *qpn, .ip = config_.ip}, Ack::Ack);
    return report(BoardOutcome::DuplicateOpen, *qpn, in);
  }
  if (free_.empty()) {
    respond_stale(in, Ack::NoQp);
    return report(BoardOutcome::Full, 0, in);
  }
  const uint32_t qpn = free_.front();
  const QpInfo ours{.qpn = qpn, .ip = config_.ip};
  if (wedged_) {
    if (config_.quirks.leaks_qpns) free_.pop_front();
    respond(in, ours, Ack::Error);
    return report(BoardOutcome::OpenFailed, qpn, in);
  }
  free_.pop_front();
  at(qpn) = {BoardQpState::Rts, in.local, in.listening_port};
  respond(in, ours, Ack::Ack);
  report(BoardOutcome::Opened, qpn, in);
}

std::optional<uint32_t> BoardManager::find_open_qp(const Message& in) const {
  for (uint32_t i = 0; i < config_.queue_pairs; ++i) {
    const QueuePair& qp = queue_pairs_[i];
    if (qp.state == BoardQpState::Rts && qp.peer == in.local) return kFirstQpn + i;
  }
  return std::nullopt;
}

void BoardManager::on_modify(const Message& in) {
  const uint32_t qpn = in.remote.qpn;
  if (!is_in_pool(qpn)) {
    if (config_.quirks.modify_hangs) {
      hung_ = true;
      return report(BoardOutcome::Hung, qpn, in);
    }
    respond(in, in.remote, Ack::Nak);
    return report(BoardOutcome::ModifyOutOfRange, qpn, in);
  }
  QpInfo ours = in.remote;
  ours.ip = config_.ip;
  // An open queue pair is already in RTS, so MODIFY_QP_RTS changes nothing.
  if (at(qpn).state != BoardQpState::Rts || config_.quirks.modify_wedges) {
    wedged_ = wedged_ || at(qpn).state == BoardQpState::Rts;
    respond(in, ours, Ack::Error);
    return report(BoardOutcome::ModifyFailed, qpn, in);
  }
  respond(in, ours, Ack::Ack);
  report(BoardOutcome::Modified, qpn, in);
}

void BoardManager::on_close(const Message& in, Instant now) {
  const uint32_t qpn = in.remote.qpn;
  if (!is_in_pool(qpn)) {
    respond_stale(in, Ack::Nak);
    return report(BoardOutcome::CloseOutOfRange, qpn, in);
  }
  wedged_ = false;
  QpInfo ours = in.remote;
  ours.ip = config_.ip;
  const BoardQpState state = at(qpn).state;
  if (state != BoardQpState::Rts && state != BoardQpState::Error) {
    respond(in, ours, Ack::Error);
    return report(BoardOutcome::CloseOfClosed, qpn, in);
  }
  if (exchange_ && exchange_->qpn == qpn) exchange_.reset();  // the host closed it first
  at(qpn) = {};
  table_changed_at_ = now;
  free_.push_back(qpn);
  respond(in, ours, Ack::Ack);
  report(BoardOutcome::Closed, qpn, in);
}

void BoardManager::on_transmit(const Message& in) {
  const bool ready = is_in_pool(in.remote.qpn) && at(in.remote.qpn).state == BoardQpState::Rts;
  report(ready && in.transmit.start ? BoardOutcome::TransmitStart : BoardOutcome::TransmitIgnored,
         in.remote.qpn, in);
}

// ------------------------------------------------------------------------------------ as a master

bool BoardManager::request_open(uint32_t host_ip, uint16_t host_port, Instant now) {
  if (exchange_ || hung_ || free_.empty()) return false;
  const uint32_t qpn = free_.front();
  free_.pop_front();
  at(qpn) = {BoardQpState::Opening, {.ip = host_ip}, host_port};
  Message m{.info_valid = true, .request = Request::OpenQp};
  m.local = {.qpn = qpn, .ip = config_.ip};
  m.remote.ip = host_ip;
  m.listening_port = kBoardPort;
  exchange_ = Exchange{{host_ip, host_port, m}, qpn, false, now + config_.master_timeout};
  outgoing_.push_back(exchange_->request);
  return true;
}

bool BoardManager::request_close(uint32_t qpn, Instant now) {
  if (exchange_ || hung_ || !is_in_pool(qpn)) return false;
  const QueuePair& qp = at(qpn);
  if (qp.state != BoardQpState::Rts && qp.state != BoardQpState::Error) return false;
  Message m{.info_valid = true, .request = Request::CloseQp};
  m.local = {.qpn = qpn, .ip = config_.ip};
  m.remote = qp.peer;
  m.listening_port = kBoardPort;
  exchange_ = Exchange{{qp.peer.ip, qp.peer_port, m}, qpn, false, now + config_.master_timeout};
  outgoing_.push_back(exchange_->request);
  return true;
}

void BoardManager::on_response(const Message& in) {
  if (!exchange_ || in.request != exchange_->request.message.request ||
      in.remote.ip != config_.ip || in.local.ip != exchange_->request.ip ||
      in.remote.qpn != exchange_->qpn) {
    return report(BoardOutcome::UnexpectedResponse, in.remote.qpn, in);
  }
  const uint32_t qpn = exchange_->qpn;
  const bool no_qp = in.ack == Ack::NoQp;
  if (in.request == Request::CloseQp) {
    if (in.ack != Ack::Ack && !no_qp) return fail_exchange(BoardOutcome::PeerRefused, in);
    exchange_.reset();
    at(qpn) = {};
    free_.push_back(qpn);
    return report(BoardOutcome::PeerClosed, qpn, in);
  }
  if (in.ack != Ack::Ack && !(no_qp && config_.quirks.no_qp_is_ack)) {
    return fail_exchange(BoardOutcome::PeerRefused, in);
  }
  at(qpn).state = BoardQpState::Rts;
  at(qpn).peer = in.local;
  exchange_.reset();
  report(BoardOutcome::PeerAccepted, qpn, in);
}

void BoardManager::on_deadline(Instant now) {
  if (!exchange_ || now < exchange_->deadline) return;
  if (!exchange_->is_retransmitted) {
    exchange_->is_retransmitted = true;
    exchange_->deadline = now + config_.master_timeout;
    outgoing_.push_back(exchange_->request);
    return;
  }
  fail_exchange(BoardOutcome::PeerSilent, exchange_->request.message);
}

// The exchange failed: an OPEN_QP frees its QPN again; a CLOSE_QP leaves the queue pair open.
void BoardManager::fail_exchange(BoardOutcome why, const Message& in) {
  const uint32_t qpn = exchange_->qpn;
  exchange_.reset();
  if (at(qpn).state == BoardQpState::Opening) {
    at(qpn) = {};
    free_.push_back(qpn);
  }
  report(why, qpn, in);
}

// ------------------------------------------------------------------------------------------------

void BoardManager::fail(uint32_t qpn, Instant now) {
  if (state_of(qpn) != BoardQpState::Rts) return;
  at(qpn).state = BoardQpState::Error;
  table_changed_at_ = now;
}

BoardQpState BoardManager::state_of(uint32_t qpn) const {
  return is_in_pool(qpn) ? at(qpn).state : BoardQpState::Reset;
}

void BoardManager::respond(const Message& in, const QpInfo& ours, Ack ack) {
  Message m{.info_valid = true, .request = in.request, .ack_valid = true, .ack = ack};
  m.local = ours;
  m.remote = in.local;
  m.listening_port = kBoardPort;
  last_response_ = {in.local.ip, in.listening_port, m};
  outgoing_.push_back(last_response_);
}

void BoardManager::respond_stale(const Message& in, Ack ack) {
  if (!config_.quirks.stale_answers) {
    QpInfo ours = in.remote;
    ours.ip = config_.ip;
    return respond(in, ours, ack);
  }
  Outgoing again = last_response_;
  again.message.info_valid = again.message.ack_valid = true;
  again.message.ack = ack;
  if (again.ip != 0) outgoing_.push_back(again);
}

void BoardManager::report(BoardOutcome outcome, uint32_t qpn, const Message& in) {
  events_.push_back({outcome, qpn, in, in.local.ip});
}

std::optional<Outgoing> BoardManager::next_outgoing() {
  if (outgoing_.empty()) return std::nullopt;
  const Outgoing out = outgoing_.front();
  outgoing_.pop_front();
  return out;
}

std::optional<BoardEvent> BoardManager::next_event() {
  if (events_.empty()) return std::nullopt;
  const BoardEvent event = events_.front();
  events_.pop_front();
  return event;
}

const char* text_of(BoardOutcome outcome) {
  switch (outcome) {
    case BoardOutcome::WrongLength:
      return "a datagram that is not 64 bytes: dropped";
    case BoardOutcome::NoRequest:
      return "a message without a request: dropped";
    case BoardOutcome::UnknownRequest:
      return "a request that boards do not support: dropped";
    case BoardOutcome::Hung:
      return "the connection manager hangs (a quirk): dropped";
    case BoardOutcome::Opened:
      return "opened";
    case BoardOutcome::DuplicateOpen:
      return "is already open: acknowledged again";
    case BoardOutcome::Full:
      return "no queue pair is free: NO_QP";
    case BoardOutcome::OpenFailed:
      return "cannot be opened (modify-wedges): ERROR";
    case BoardOutcome::Modified:
      return "is already ready";
    case BoardOutcome::ModifyFailed:
      return "cannot be modified: ERROR";
    case BoardOutcome::ModifyOutOfRange:
      return "cannot be modified, it is outside the pool: NAK";
    case BoardOutcome::Closed:
      return "closed";
    case BoardOutcome::CloseOutOfRange:
      return "cannot be closed, it is outside the pool: NAK";
    case BoardOutcome::CloseOfClosed:
      return "is not open and cannot be closed: ERROR";
    case BoardOutcome::TransmitStart:
      return "starts to transmit";
    case BoardOutcome::TransmitIgnored:
      return "is not ready to transmit: ignored";
    case BoardOutcome::UnexpectedResponse:
      return "a response without a request: dropped";
    case BoardOutcome::PeerAccepted:
      return "accepted by the host";
    case BoardOutcome::PeerRefused:
      return "refused by the host";
    case BoardOutcome::PeerSilent:
      return "the host did not respond to two requests: given up";
    case BoardOutcome::PeerClosed:
      return "closed by the board";
  }
  return "";
}

}  // namespace verbena::daq

// What each message does to a board.
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
  if (!in) return tell(BoardOutcome::WrongLength, 0, {});
  if (hung_) return tell(BoardOutcome::Hung, 0, *in);
  if (in->ack_valid) return on_answer(*in);
  if (in->transmit.valid && in->request == Request::Null) return on_transmit(*in);
  if (in->info_valid) return on_request(*in, now);
  tell(BoardOutcome::NothingAsked, 0, *in);
}

void BoardManager::on_request(const Message& in, Instant now) {
  if (config_.quirks.loses_pulses && in.request != Request::Null && now == table_changed_at_) {
    hung_ = true;
    return tell(BoardOutcome::Hung, 0, in);
  }
  switch (in.request) {
    case Request::OpenQp:
      return on_open(in);
    case Request::ModifyQpRts:
      return on_modify(in);
    case Request::CloseQp:
      return on_close(in, now);
    case Request::Null:
      return tell(BoardOutcome::NothingAsked, 0, in);
    default:
      return tell(BoardOutcome::UnknownRequest, 0, in);
  }
}

void BoardManager::on_open(const Message& in) {
  if (const auto qpn = opened_before(in); qpn && !config_.quirks.opens_twice) {
    answer(in, {.qpn = *qpn, .ip = config_.ip}, Ack::Ack);
    return tell(BoardOutcome::OpenedBefore, *qpn, in);
  }
  if (free_.empty()) {
    answer_stale(in, Ack::NoQp);
    return tell(BoardOutcome::Full, 0, in);
  }
  const uint32_t qpn = free_.front();
  const QpInfo ours{.qpn = qpn, .ip = config_.ip};
  if (wedged_) {
    if (config_.quirks.leaks_qpns) free_.pop_front();
    answer(in, ours, Ack::Error);
    return tell(BoardOutcome::OpenFailed, qpn, in);
  }
  free_.pop_front();
  at(qpn) = {BoardQpState::Rts, in.local, in.listening_port};
  answer(in, ours, Ack::Ack);
  tell(BoardOutcome::Opened, qpn, in);
}

std::optional<uint32_t> BoardManager::opened_before(const Message& in) const {
  for (uint32_t i = 0; i < config_.queue_pairs; ++i) {
    const QueuePair& qp = queue_pairs_[i];
    if (qp.state == BoardQpState::Rts && qp.peer == in.local) return kFirstQpn + i;
  }
  return std::nullopt;
}

void BoardManager::on_modify(const Message& in) {
  const uint32_t qpn = in.remote.qpn;
  if (!is_mine(qpn)) {
    if (config_.quirks.modify_hangs) {
      hung_ = true;
      return tell(BoardOutcome::Hung, qpn, in);
    }
    answer(in, in.remote, Ack::Nak);
    return tell(BoardOutcome::ModifyOutOfRange, qpn, in);
  }
  QpInfo ours = in.remote;
  ours.ip = config_.ip;
  // A queue pair is ready as soon as it is open: there is nothing left to modify.
  if (at(qpn).state != BoardQpState::Rts || config_.quirks.modify_wedges) {
    wedged_ = wedged_ || at(qpn).state == BoardQpState::Rts;
    answer(in, ours, Ack::Error);
    return tell(BoardOutcome::ModifyFailed, qpn, in);
  }
  answer(in, ours, Ack::Ack);
  tell(BoardOutcome::Modified, qpn, in);
}

void BoardManager::on_close(const Message& in, Instant now) {
  const uint32_t qpn = in.remote.qpn;
  if (!is_mine(qpn)) {
    answer_stale(in, Ack::Nak);
    return tell(BoardOutcome::CloseOutOfRange, qpn, in);
  }
  wedged_ = false;
  QpInfo ours = in.remote;
  ours.ip = config_.ip;
  const BoardQpState state = at(qpn).state;
  if (state != BoardQpState::Rts && state != BoardQpState::Error) {
    answer(in, ours, Ack::Error);
    return tell(BoardOutcome::CloseOfClosed, qpn, in);
  }
  if (asking_ && asking_->qpn == qpn) asking_.reset();  // the host was faster
  at(qpn) = {};
  table_changed_at_ = now;
  free_.push_back(qpn);
  answer(in, ours, Ack::Ack);
  tell(BoardOutcome::Closed, qpn, in);
}

void BoardManager::on_transmit(const Message& in) {
  const bool ready = is_mine(in.remote.qpn) && at(in.remote.qpn).state == BoardQpState::Rts;
  tell(ready && in.transmit.start ? BoardOutcome::TransmitStart : BoardOutcome::TransmitUseless,
       in.remote.qpn, in);
}

// ------------------------------------------------------------------------------------ as a master

bool BoardManager::ask_open(uint32_t host_ip, uint16_t host_port, Instant now) {
  if (asking_ || hung_ || free_.empty()) return false;
  const uint32_t qpn = free_.front();
  free_.pop_front();
  at(qpn) = {BoardQpState::Asking, {.ip = host_ip}, host_port};
  Message m{.info_valid = true, .request = Request::OpenQp};
  m.local = {.qpn = qpn, .ip = config_.ip};
  m.remote.ip = host_ip;
  m.listening_port = kBoardPort;
  asking_ = Question{{host_ip, host_port, m}, qpn, false, now + config_.master_timeout};
  outgoing_.push_back(asking_->said);
  return true;
}

bool BoardManager::ask_close(uint32_t qpn, Instant now) {
  if (asking_ || hung_ || !is_mine(qpn)) return false;
  const QueuePair& qp = at(qpn);
  if (qp.state != BoardQpState::Rts && qp.state != BoardQpState::Error) return false;
  Message m{.info_valid = true, .request = Request::CloseQp};
  m.local = {.qpn = qpn, .ip = config_.ip};
  m.remote = qp.peer;
  m.listening_port = kBoardPort;
  asking_ = Question{{qp.peer.ip, qp.peer_port, m}, qpn, false, now + config_.master_timeout};
  outgoing_.push_back(asking_->said);
  return true;
}

void BoardManager::on_answer(const Message& in) {
  if (!asking_ || in.request != asking_->said.message.request || in.remote.ip != config_.ip ||
      in.local.ip != asking_->said.ip || in.remote.qpn != asking_->qpn) {
    return tell(BoardOutcome::AnswerUnasked, in.remote.qpn, in);
  }
  const uint32_t qpn = asking_->qpn;
  const bool no_qp = in.ack == Ack::NoQp;
  if (in.request == Request::CloseQp) {
    if (in.ack != Ack::Ack && !no_qp) return give_up(BoardOutcome::PeerRefused, in);
    asking_.reset();
    at(qpn) = {};
    free_.push_back(qpn);
    return tell(BoardOutcome::PeerClosed, qpn, in);
  }
  if (in.ack != Ack::Ack && !(no_qp && config_.quirks.no_qp_is_ack)) {
    return give_up(BoardOutcome::PeerRefused, in);
  }
  at(qpn).state = BoardQpState::Rts;
  at(qpn).peer = in.local;
  asking_.reset();
  tell(BoardOutcome::PeerAccepted, qpn, in);
}

void BoardManager::on_deadline(Instant now) {
  if (!asking_ || now < asking_->deadline) return;
  if (!asking_->repeated) {
    asking_->repeated = true;
    asking_->deadline = now + config_.master_timeout;
    outgoing_.push_back(asking_->said);
    return;
  }
  give_up(BoardOutcome::PeerSilent, asking_->said.message);
}

// A question came to nothing. What was to be opened is not; what was to be closed stays.
void BoardManager::give_up(BoardOutcome why, const Message& in) {
  const uint32_t qpn = asking_->qpn;
  asking_.reset();
  if (at(qpn).state == BoardQpState::Asking) {
    at(qpn) = {};
    free_.push_back(qpn);
  }
  tell(why, qpn, in);
}

// ------------------------------------------------------------------------------------------------

void BoardManager::fail(uint32_t qpn, Instant now) {
  if (state_of(qpn) != BoardQpState::Rts) return;
  at(qpn).state = BoardQpState::Error;
  table_changed_at_ = now;
}

BoardQpState BoardManager::state_of(uint32_t qpn) const {
  return is_mine(qpn) ? at(qpn).state : BoardQpState::Reset;
}

void BoardManager::answer(const Message& in, const QpInfo& ours, Ack ack) {
  Message m{.info_valid = true, .request = in.request, .ack_valid = true, .ack = ack};
  m.local = ours;
  m.remote = in.local;
  m.listening_port = kBoardPort;
  last_answer_ = {in.local.ip, in.listening_port, m};
  outgoing_.push_back(last_answer_);
}

void BoardManager::answer_stale(const Message& in, Ack ack) {
  if (!config_.quirks.stale_answers) {
    QpInfo ours = in.remote;
    ours.ip = config_.ip;
    return answer(in, ours, ack);
  }
  Outgoing again = last_answer_;
  again.message.info_valid = again.message.ack_valid = true;
  again.message.ack = ack;
  if (again.ip != 0) outgoing_.push_back(again);
}

void BoardManager::tell(BoardOutcome outcome, uint32_t qpn, const Message& in) {
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
    case BoardOutcome::NothingAsked:
      return "a message that asks nothing: dropped";
    case BoardOutcome::UnknownRequest:
      return "a request that boards do not know: dropped";
    case BoardOutcome::Hung:
      return "the connection manager hangs (a quirk): dropped";
    case BoardOutcome::Opened:
      return "opened";
    case BoardOutcome::OpenedBefore:
      return "was opened before: acknowledged again";
    case BoardOutcome::Full:
      return "no queue pair is free: NO_QP";
    case BoardOutcome::OpenFailed:
      return "cannot be opened (modify-wedges): ERROR";
    case BoardOutcome::Modified:
      return "is ready as it was";
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
      return "is told to transmit";
    case BoardOutcome::TransmitUseless:
      return "is told to transmit and is not ready: ignored";
    case BoardOutcome::AnswerUnasked:
      return "an answer that nobody asked for: dropped";
    case BoardOutcome::PeerAccepted:
      return "accepted by the host";
    case BoardOutcome::PeerRefused:
      return "refused by the host";
    case BoardOutcome::PeerSilent:
      return "the host does not answer, asked twice: given up";
    case BoardOutcome::PeerClosed:
      return "closed, as the host was told";
  }
  return "";
}

}  // namespace verbena::daq

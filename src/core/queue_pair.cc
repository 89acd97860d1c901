// State changes, and the calls of the two halves.
#include "core/queue_pair.h"

#include <utility>

#include "core/absent_sides.h"
#include "core/requester.h"
#include "core/responder.h"
#include "core/uc_receiver.h"
#include "core/ud_receiver.h"
#include "core/unreliable_sender.h"

namespace verbena::core {
namespace {

bool sends_reliably(QpType type) { return type == QpType::Rc || type == QpType::XrcSend; }

std::unique_ptr<SendSide> make_send_side(QpCommon& common, const QpConfig& c) {
  switch (c.type) {
    case QpType::Uc:
      return std::make_unique<UcSender>(common, c.max_send_wr, c.max_send_sge, c.max_inline);
    case QpType::Ud:
      return std::make_unique<UdSender>(common, c.max_send_wr, c.max_send_sge, c.max_inline);
    case QpType::XrcReceive:
      return std::make_unique<NoSends>(common);
    default:
      return std::make_unique<Requester>(common, c.max_send_wr, c.max_send_sge, c.max_inline);
  }
}

std::unique_ptr<ReceiveSide> make_receive_side(QpCommon& common, const QpConfig& c) {
  switch (c.type) {
    case QpType::Uc:
      return std::make_unique<UcReceiver>(common, c.max_recv_wr, c.max_recv_sge);
    case QpType::Ud:
      return std::make_unique<UdReceiver>(common, c.max_recv_wr, c.max_recv_sge);
    case QpType::XrcSend:
      return std::make_unique<NoReceives>(common);
    default:
      return std::make_unique<Responder>(common, c.max_recv_wr, c.max_recv_sge);
  }
}

uint8_t opcode_base_of(QpType type) {
  switch (type) {
    case QpType::Uc:
      return wire::kUcBase;
    case QpType::Ud:
      return wire::kUdBase;
    case QpType::XrcSend:
    case QpType::XrcReceive:
      return wire::kXrcBase;
    default:
      return wire::kRcBase;
  }
}

}  // namespace

QueuePair::QueuePair(EngineState& engine, wire::Qpn qpn, const QpConfig& config)
    : common_{.engine = engine,
              .self = this,
              .qpn = qpn,
              .opcode_base = opcode_base_of(config.type),
              .pd = config.pd,
              .config = config,
              .attr = {},
              .failure = {}},
      requester_(make_send_side(common_, config)),
      reliable_(sends_reliably(config.type) ? static_cast<Requester*>(requester_.get()) : nullptr),
      responder_(make_receive_side(common_, config)) {}

Status QueuePair::post_send(std::span<const SendRequest> requests) {
  switch (common_.state) {
    case QpState::Reset:
    case QpState::Init:
    case QpState::Rtr:
      return Error{EINVAL, "the QP must be in RTS before ibv_post_send"};
    default:
      break;
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    Status status = requester_->post(requests[i]);
    if (!status.ok()) {
      requester_->unpost(static_cast<uint32_t>(i));
      return status;
    }
  }
  const bool stopped = common_.state == QpState::Error || common_.state == QpState::Sqe;
  if (stopped) requester_->flush(WcStatus::Flushed);
  check_failure();
  return {};
}

Status QueuePair::post_receive(const ReceiveRequest& request) {
  if (common_.state == QpState::Reset) {
    return Error{EINVAL, "the QP must be at least in INIT before ibv_post_recv"};
  }
  Status status = responder_->post(request);
  if (status.ok() && common_.state == QpState::Error) responder_->flush();
  check_failure();
  return status;
}

Status QueuePair::check_modify(const QpAttributes& attr, uint32_t mask) const {
  using namespace qp_attr;
  if ((mask & kCurState) != 0 && attr.current_state != common_.state) {
    return Error{EINVAL, "cur_qp_state does not match the QP's state"};
  }
  const QpState to = (mask & kState) != 0 ? attr.state : common_.state;
  if (to > QpState::Error) return Error{EINVAL, "no such QP state"};
  Status status = check_transition(type(), common_.state, to, mask);
  if (!status.ok()) return status;
  if ((mask & kPort) != 0 && attr.port != 1) return Error{EINVAL, "port_num must be 1"};
  if ((mask & kPkeyIndex) != 0 && attr.pkey_index != 0) {
    return Error{EINVAL, "pkey_index must be 0: the table has one entry"};
  }
  if ((mask & kAddressVector) != 0 && !attr.address.is_global) {
    return Error{EINVAL,
                 "RoCE needs a GRH: set ah_attr.is_global and grh.sgid_index (many programs take "
                 "the GID index as -g or -x)"};
  }
  if ((mask & kPathMtu) != 0) {
    const uint32_t mtu = wire::bytes_of(attr.path_mtu);
    if (mtu < 256 || mtu > 4096 || (mtu & (mtu - 1)) != 0) {
      return Error{EINVAL, "path_mtu must be one of IBV_MTU_256 to IBV_MTU_4096"};
    }
  }
  if ((mask & kTimeout) != 0 && attr.timeout > 31) return Error{EINVAL, "timeout is at most 31"};
  if ((mask & kRetryCount) != 0 && attr.retry_count > 7) {
    return Error{EINVAL, "retry_cnt is at most 7"};
  }
  if ((mask & kRnrRetry) != 0 && attr.rnr_retry > 7) return Error{EINVAL, "rnr_retry is at most 7"};
  if ((mask & kMinRnrTimer) != 0 && attr.min_rnr_timer > 31) {
    return Error{EINVAL, "min_rnr_timer is at most 31"};
  }
  if ((mask & kMaxRdAtomic) != 0 && attr.max_read_atomic > core::kMaxReadAtomic) {
    return Error{EINVAL, "max_rd_atomic is larger than the device's max_qp_init_rd_atom"};
  }
  if ((mask & kMaxRdAtomic) != 0 && attr.max_read_atomic == 0 && reliable_ != nullptr &&
      reliable_->has_reads_queued()) {
    return Error{EINVAL, "max_rd_atomic cannot become 0 while READs or atomics are queued"};
  }
  if ((mask & kMaxDestRdAtomic) != 0 && attr.max_dest_read_atomic > core::kMaxReadAtomic) {
    return Error{EINVAL, "max_dest_rd_atomic is larger than the device's max_qp_rd_atom"};
  }
  const bool limits_rate = (mask & kRateLimit) != 0 && attr.rate_limit != 0;
  if (limits_rate && (attr.rate_limit < kMinRateKbps || attr.rate_limit > kMaxRateKbps)) {
    return Error{EINVAL, "rate_limit is beyond the device's packet_pacing_caps"};
  }
  if ((mask & kAlternatePath) != 0) {
    return Error{EINVAL, "alternate paths do not exist on RoCE"};
  }
  return {};
}

void QueuePair::modify(const QpAttributes& attr, uint32_t mask) {
  using namespace qp_attr;
  // Allocations come first: if one fails, nothing has changed.
  if ((mask & kMaxDestRdAtomic) != 0) responder_->resize_resources(attr.max_dest_read_atomic);
  if ((mask & kMaxRdAtomic) != 0 && reliable_ != nullptr) {
    reliable_->reserve_reads(attr.max_read_atomic);
  }
  set_attributes(attr, mask);
  if ((mask & kRateLimit) != 0) set_rate_limit(attr.rate_limit, 0);
  if ((mask & kState) != 0) enter_state(attr.state);
  expose();
}

void QueuePair::set_attributes(const QpAttributes& attr, uint32_t mask) {
  using namespace qp_attr;
  QpAttributes& a = common_.attr;
  const auto set = [&](uint32_t bit, auto& to, const auto& from) {
    if ((mask & bit) != 0) to = from;
  };
  set(kAccessFlags, a.access, attr.access);
  set(kPkeyIndex, a.pkey_index, attr.pkey_index);
  set(kPort, a.port, attr.port);
  set(kQkey, a.qkey, attr.qkey);
  set(kAddressVector, a.address, attr.address);
  set(kAddressVector, a.path, attr.path);
  set(kAddressVector, a.source_gid, attr.source_gid);
  set(kAddressVector, a.path_packet_bytes, attr.path_packet_bytes);
  set(kAddressVector, a.is_on_this_host, attr.is_on_this_host);
  set(kPathMtu, a.path_mtu, attr.path_mtu);
  set(kTimeout, a.timeout, attr.timeout);
  set(kRetryCount, a.retry_count, attr.retry_count);
  set(kRnrRetry, a.rnr_retry, attr.rnr_retry);
  set(kRqPsn, a.rq_psn, attr.rq_psn & 0xFFFFFF);
  set(kSqPsn, a.sq_psn, attr.sq_psn & 0xFFFFFF);
  set(kMinRnrTimer, a.min_rnr_timer, attr.min_rnr_timer);
  set(kMaxRdAtomic, a.max_read_atomic, attr.max_read_atomic);
  set(kMaxDestRdAtomic, a.max_dest_read_atomic, attr.max_dest_read_atomic);
  set(kDestQpn, a.dest_qpn, attr.dest_qpn);
  a.sqd_notify = (mask & kEnSqdAsyncNotify) != 0 && attr.sqd_notify;
}

void QueuePair::enter_state(QpState to) {
  const QpState from = std::exchange(common_.state, to);
  switch (to) {
    case QpState::Reset:
      requester_->reset();
      responder_->reset();
      common_.failure.reset();
      established_ = false;
      common_.attr = QpAttributes{};
      set_rate_limit(0, 0);
      backoff_ = PathBackoff();
      notification_ = NotificationPoint();
      break;
    case QpState::Rtr:
      common_.extensions.connect(common_.qpn, common_.attr.dest_qpn);
      responder_->start();
      break;
    case QpState::Rts:
      if (from == QpState::Rtr) requester_->start();
      drain_announced_ = true;
      break;
    case QpState::Sqd:
      if (from == QpState::Rts) drain_announced_ = !common_.attr.sqd_notify;
      check_drained();
      break;
    case QpState::Error:
      if (from != QpState::Error) {
        responder_->drop_responses();
        enter_error(WcStatus::Flushed);
      }
      break;
    default:
      break;
  }
}

// Exposes the queue pair from RTS on. Before that, the first request raises an event.
void QueuePair::expose() {
  wire::Exposure* const exposure = common_.engine.exposure;
  if (exposure == nullptr || type() != QpType::Rc) return;
  const QpAttributes& a = common_.attr;
  if (common_.state != QpState::Rts && common_.state != QpState::Sqd) {
    return exposure->withdraw(common_.qpn);
  }
  const uint32_t reads = a.max_dest_read_atomic != 0 ? kRemoteRead : 0;
  exposure->expose(common_.qpn, {.source = a.source_gid,
                                 .destination = a.address.destination,
                                 .peer = a.dest_qpn,
                                 .pd = common_.pd,
                                 .access = a.access & (kRemoteWrite | reads)});
}

QpAttributes QueuePair::query() const {
  QpAttributes a = common_.attr;
  a.state = a.current_state = common_.state;
  if (common_.state >= QpState::Rtr) a.rq_psn = responder_->expected_psn().value();
  if (common_.state >= QpState::Rts) a.sq_psn = requester_->next_psn().value();
  return a;
}

std::optional<CounterId> QueuePair::reason_to_drop(const wire::Bth& bth,
                                                   const wire::RxMeta& meta) const {
  if (!takes_packets()) return CounterId::qp_not_ready;
  if (type() != QpType::Ud && !from_peer(meta)) return CounterId::wrong_source;
  constexpr uint8_t kTransportBits = 0xE0;
  if ((bth.opcode & kTransportBits) != common_.opcode_base) return CounterId::wrong_transport;
  // Full membership on one side is enough; the low 15 bits name the partition.
  if ((bth.pkey & 0x7FFF) != 0x7FFF) return CounterId::wrong_pkey;
  return std::nullopt;
}

void QueuePair::on_packet(wire::Packet& p, const wire::RxMeta& meta, Instant now) {
  if (const auto reason = reason_to_drop(p.bth, meta)) [[unlikely]]
    return common_.count(*reason);
  const bool marked = wire::is_marked(meta.traffic_class);
  if (marked) [[unlikely]]
    on_marked(p, now);
  if (p.op.direction == wire::Direction::Response) {
    if (common_.state == QpState::Rtr || reliable_ == nullptr) {
      return common_.count(CounterId::stale_responses);
    }
    // The window of a READ covers its responses, so a mark of these counts as one of the READ.
    const bool data_marked = marked && p.op.verb == wire::Verb::ReadResponse;
    reliable_->on_response(p, data_marked || common_.extensions.has_echo(p.bth), now);
    check_drained();
  } else {
    if (common_.state == QpState::Rtr && !established_ && type() != QpType::Ud) {
      established_ = true;
      common_.engine.raise({.kind = EventKind::CommEstablished, .qp = this});
    }
    if (p.bth.extension_flags != 0 && type() == QpType::Rc) take_piggybacked_ack(p, now);
    if (!takes_packets()) [[unlikely]]
      return common_.count(CounterId::qp_not_ready);
    if (!p.in_front.empty()) [[unlikely]]
      return common_.count(CounterId::malformed_packets);
    responder_->on_request(p, meta);
  }
  check_failure();
}

// Reports congestion on the way from the peer. A Verbena learns it from the next ACK of its
// requests, and its requester sees the marks of the responses to its READs itself.
void QueuePair::on_marked(const wire::Packet& p, Instant now) {
  common_.count(CounterId::np_ecn_marked_roce_packets);
  if (type() == QpType::Ud) return;  // no path to the sender is known
  const bool is_response = p.op.direction == wire::Direction::Response;
  if (is_response && common_.extensions.peer_buffers_requests()) return;
  if (!is_response && common_.extensions.peer_reads_echo(p.bth)) return common_.acks.on_marked();
  notification_.on_marked(now);
}

// RoCEv2 annex, A17.9.3.
uint32_t QueuePair::send_cnp(wire::PacketSink& sink, Instant now) {
  if (sink.room() == 0) return 0;
  wire::Packet cnp;
  cnp.bth.opcode = static_cast<uint8_t>(wire::Opcode::Cnp);
  cnp.bth.migrated = false;
  cnp.bth.becn = true;
  cnp.ecn_capable = false;
  push_packet(common_, sink, cnp, {}, 0);
  notification_.on_sent(now);
  common_.count(CounterId::np_cnp_sent);
  return 1;
}

bool QueuePair::on_cnp(const wire::Packet& cnp, const wire::RxMeta& meta, Instant now) {
  if (!takes_packets() || common_.peer == nullptr || !from_peer(meta) || !cnp.bth.becn ||
      (cnp.bth.pkey & 0x7FFF) != 0x7FFF) {
    return false;
  }
  // The ACKs of a Verbena report marks, except those of the first packets: it sends a CNP before it
  // knows its peer. Such a CNP counts only if it is received before the first ACK.
  if (common_.extensions.peer_buffers_requests()) return false;
  requester_->on_cnp(now);
  return true;
}

size_t QueuePair::on_run(const wire::PacketRun& run, Instant now) {
  const wire::Bth& bth = run.first().bth;
  const bool is_response = run.first().op.direction == wire::Direction::Response;
  // Before RTS no response is expected, and the first request raises an event.
  const bool is_early = common_.state == QpState::Rtr && (is_response || !established_);
  if (reliable_ == nullptr || is_early || reason_to_drop(bth, run.meta()) ||
      common_.extensions.has_piggyback(bth) || bth.becn ||
      wire::is_marked(run.meta().traffic_class)) {
    return 0;
  }
  const size_t handled =
      is_response ? reliable_->on_response_run(run, now) : responder_->on_request_run(run);
  check_failure();
  return handled;
}

// Handled before the request: the application must see the completion of its message before the
// reply.
void QueuePair::take_piggybacked_ack(wire::Packet& p, Instant now) {
  const wire::OptionalPsn last = common_.extensions.take_piggyback(p);
  if (!last) return;
  if (common_.state == QpState::Rtr) return common_.count(CounterId::stale_responses);
  reliable_->on_piggybacked_ack(*last, p.bth.becn, now);
  check_drained();
  check_failure();
}

void QueuePair::set_rate_limit(uint32_t kbps, uint32_t burst_bytes) {
  common_.attr.rate_limit = kbps;
  pacer_.set(kbps, burst_bytes);
  paced_until_ = kNever;
}

bool QueuePair::back_off(Instant now) {
  const Duration full_for = backoff_.on_full(now);
  if (is_unreliable(type()) && full_for > kMaxUnackedBackoff) return false;
  backoff_.wait(now);
  if (reliable_ != nullptr) reliable_->on_backoff(now);
  return true;
}

void QueuePair::reset_backoff(Instant now) {
  backoff_.on_room();
  if (reliable_ != nullptr) reliable_->end_backoff(now);
}

void QueuePair::try_one_sided(wire::PacketSink& sink, Instant now) {
  if (reliable_ != nullptr && !pacer_.limited()) reliable_->try_one_sided(sink, now);
  check_failure();
}

void QueuePair::revert_path_to_mtu(Instant now) {
  common_.attr.path_packet_bytes = 0;
  common_.peer->use_wire();
  backoff_.end_wait();  // the path was full from the end of the link until now
  end_backoff(now);
  if (reliable_ != nullptr) reliable_->on_path_reverted_to_mtu(now);
  check_failure();
}

SendSide::Readiness QueuePair::requests(Instant now) {
  using enum SendSide::Readiness;
  paced_until_ = kNever;
  if (backoff_.is_waiting() && now < backoff_.until()) return No;
  backoff_.end_wait();
  PeerPath* const peer = common_.peer;
  if (peer != nullptr && peer->is_paced()) [[unlikely]]
    peer->reopen_if_due(now);
  const SendSide::Readiness readiness = requester_->readiness(now);
  // Also if it is ready: it may have to wait behind others.
  if (readiness != No && peer != nullptr && peer->is_paced()) [[unlikely]]
    paced_until_ = peer->reopens_at();
  if (readiness != Ready || pacer_.open(now)) return readiness;
  paced_until_ = pacer_.reopens_at();
  return No;
}

bool QueuePair::from_peer(const wire::RxMeta& meta) const {
  return meta.source == common_.attr.address.destination &&
         meta.destination == common_.attr.source_gid;
}

void QueuePair::on_deadline(Instant now) {
  if (reliable_ != nullptr) reliable_->on_deadline(now);
  check_failure();
}

// A CNP first; then READ and atomic responses, since the peer waits for them; then a packet that
// may exceed the window; then requests, with the ACK where AckScheduler puts it. If several queue
// pairs respond, the last packets of their READ responses form a GSO batch of their own behind the
// others.
uint32_t QueuePair::transmit(wire::PacketSink& sink, Instant now, const Turn& turn) {
  const uint32_t budget = turn.budget;
  const bool on_wire = common_.attr.path_packet_bytes == 0;
  const bool only_active_qp = turn.only_active_qp;
  uint32_t sent = 0;
  if (notification_.is_due()) [[unlikely]]
    sent += send_cnp(sink, now);
  sent += responder_->send_responses(sink, budget - sent, !only_active_qp && on_wire);
  if (common_.has_unwindowed_packet) [[unlikely]]
    sent += reliable_->send_unwindowed(sink, now);
  check_failure();

  wire::OptionalPsn ack;
  if (only_active_qp && turn.requests && reliable_ != nullptr &&
      reliable_->can_piggyback(sink, now)) {
    ack = responder_->ack_to_piggyback();
  }
  const AckPlace ack_place = AckScheduler::place(
      {.only_active_qp = only_active_qp, .on_wire = on_wire, .can_piggyback = ack.has_value()});
  if (ack) common_.acks.offer(*ack);
  if (ack_place == AckPlace::First && sent < budget) sent += responder_->send_ack(sink, ack_place);
  if (turn.requests && sent < budget) {
    sent += transmit_requests(sink, now, {budget - sent, only_active_qp});
  }
  check_failure();
  check_drained();
  common_.acks.close_offer();
  // Also if no request piggybacked it.
  if (ack_place != AckPlace::First && sent < budget) sent += responder_->send_ack(sink, ack_place);
  return sent;
}

uint32_t QueuePair::transmit_requests(wire::PacketSink& sink, Instant now,
                                      const TransmitTurn& turn) {
  if (!pacer_.limited()) return requester_->transmit(sink, now, turn);
  PacedSink paced(sink, pacer_, now);
  return requester_->transmit(paced, now, turn);
}

// Acts on a failure that one of the halves has recorded.
void QueuePair::act_on_failure() {
  if (common_.state == QpState::Error) return;
  QpFailure failure = *common_.failure;
  failure.type = type();
  if (!try_append(common_.engine.failures, failure)) common_.count(CounterId::out_of_memory);
  const bool stops_sending_only = is_unreliable(type()) && failure.op && !failure.as_responder;
  if (stops_sending_only) {  // IBA 10.3.1: the receive queue is not affected
    common_.failure.reset();
    common_.state = QpState::Sqe;
    requester_->flush(failure.status);
    return check_failure();  // a completion may overrun its queue
  }
  enter_error(failure.as_responder || !failure.op ? WcStatus::Flushed : failure.status);
}

void QueuePair::fail_by_overrun() {
  if (common_.state == QpState::Reset) return;
  common_.fail_by_overrun();
  check_failure();
}

void QueuePair::enter_error(WcStatus first) {
  common_.state = QpState::Error;
  notification_ = NotificationPoint();
  expose();
  requester_->flush(first);
  responder_->flush();
}

void QueuePair::announce_drained() {
  if (drain_announced_ || !requester_->drained()) return;
  drain_announced_ = true;
  common_.engine.raise({.kind = EventKind::SqDrained, .qp = this});
}

}  // namespace verbena::core

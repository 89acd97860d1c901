// QueuePair: a sending and a receiving side with one state. The Engine creates it; the pointer
// stays valid until destroy.
#pragma once

#include <cstdint>

#include <memory>
#include <span>

#include "core/notification_point.h"
#include "core/pacer.h"
#include "core/path_backoff.h"
#include "core/qp_config.h"
#include "core/qp_sides.h"

namespace verbena::core {

// The place of a queue pair in the engine's lists.
struct QpScheduling {
  bool in_ready_list = false;
  bool in_waiting_list = false;
  uint32_t reserved_bytes = 0;     // of the window, since it was woken and until it sends
  uint64_t serial = 0;             // unique among all queue pairs of the engine
  Instant heap_deadline = kNever;  // the earliest entry of this queue pair in the deadline heap
};

class Requester;

class QueuePair {
 public:
  // UC and UD packets are dropped when the path has been full for this long.
  static constexpr Duration kMaxUnackedBackoff = milliseconds(100);

  QueuePair(EngineState& engine, wire::Qpn qpn, const QpConfig& config);
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  wire::Qpn qpn() const { return common_.qpn; }
  QpState state() const { return common_.state; }
  const QpAttributes& attributes() const { return common_.attr; }
  // With the current PSNs.
  QpAttributes query() const;
  PeerPath* peer() const { return common_.peer; }
  void set_peer(PeerPath* peer) { requester_->change_peer(peer); }
  const QpConfig& config() const { return common_.config; }
  QpType type() const { return common_.config.type; }

  // Posts all of them or, if one is invalid, none.
  Status post_send(std::span<const SendRequest> requests);
  Status post_receive(const ReceiveRequest& request);

  // Limits the rate of the requests; 0 kbps: no limit. A burst of 0 bytes means the default.
  void set_rate_limit(uint32_t kbps, uint32_t burst_bytes);
  // Null: no counters. They outlive the queue pair.
  void count_through(const OperationCounters* counters) { common_.counters = counters; }
  // One of its completion queues lost a completion.
  void fail_by_overrun();

  // Whether modify() would be accepted; changes nothing.
  Status check_modify(const QpAttributes& attr, uint32_t mask) const;
  void modify(const QpAttributes& attr, uint32_t mask);

  // Removes a piggybacked ACK from the packet.
  void on_packet(wire::Packet& packet, const wire::RxMeta& meta, Instant now);
  // False: the CNP is not from this queue pair's peer, or the queue pair has none.
  bool on_cnp(const wire::Packet& cnp, const wire::RxMeta& meta, Instant now);
  // The same for the first packets of a run; returns their number. 0: nothing has changed.
  size_t on_run(const wire::PacketRun& run, Instant now);
  void on_deadline(Instant now);
  struct Turn {
    uint32_t budget;      // packets
    bool requests;        // the queue pair is not in the waiting list
    bool only_active_qp;  // no other queue pair has anything to send
  };
  // Sends responses that are due and, if turn.requests, requests.
  uint32_t transmit(wire::PacketSink& sink, Instant now, const Turn& turn);
  // The fast path of on_packet() and transmit(), RC only (fast_path.cc). False: nothing has
  // changed; the caller uses the normal path.
  bool try_fast_receive(const wire::Packet& packet, const wire::RxMeta& meta, Instant now);
  bool try_fast_send(wire::PacketSink& sink, Instant recent);
  void finish_fast_send(Instant now);
  bool has_one_request() const;
  // A rate, and so the time, decides when packets leave.
  bool has_rate() const {
    return is_unreliable(type()) || pacer_.limited() ||
           (common_.peer != nullptr && common_.peer->has_rate());
  }
  // A packet is ready that does not wait for the window.
  bool responses_ready() const {
    return (responder_->ready() || common_.has_unwindowed_packet || notification_.is_due()) &&
           !backoff_.is_waiting();
  }
  SendSide::Readiness requests(Instant now);
  // A request may leave now, and nothing is in flight to the peer.
  bool can_send_at_once() const { return may_send() && common_.peer->is_idle(); }
  void forget_srq(const SharedReceiveQueue* srq) { responder_->forget_srq(srq); }
  // While an unreliable queue pair backs off from a full path, no packet leaves before the end of
  // that, so its pace has no deadline.
  Instant deadline() const {
    if (backoff_.is_waiting() && reliable_ == nullptr) [[unlikely]]
      return backoff_.until();
    return std::min(std::min(requester_->deadline(), paced_until_), backoff_.until());
  }
  // The path is full: nothing leaves for a time that doubles with each call. False: the path has
  // been full for so long that the caller sends, and the packets are dropped (UC, UD).
  bool back_off(Instant now);
  // The path is not full, or no longer.
  void end_backoff(Instant now) {
    if (backoff_.is_full()) [[unlikely]]
      reset_backoff(now);
  }
  // The path takes packets of at most the path MTU from now on.
  void revert_path_to_mtu(Instant now);
  // The path is full; one-sided access does not need it.
  void try_one_sided(wire::PacketSink& sink, Instant now);
  uint32_t packet_payload_bytes() const { return common_.packet_payload_bytes(); }
  bool nothing_outstanding() const { return requester_->drained(); }

  QpScheduling scheduling;  // only the engine uses it
  void* owner = nullptr;    // the ABI's object around this one

 private:
  bool takes_packets() const {
    return common_.state == QpState::Rtr || common_.state == QpState::Rts ||
           common_.state == QpState::Sqd || common_.state == QpState::Sqe;
  }
  // Neither the window, a full path nor a rate limit blocks requests.
  bool may_send() const {
    return common_.state == QpState::Rts && common_.peer != nullptr && common_.peer->has_room() &&
           common_.peer->waiting.empty() && !backoff_.is_waiting() && !pacer_.limited();
  }
  void set_attributes(const QpAttributes& attr, uint32_t mask);
  void enter_state(QpState to);
  // The reason to drop a packet before its sequence number is looked at, as a counter.
  std::optional<CounterId> reason_to_drop(const wire::Bth& bth, const wire::RxMeta& meta) const;
  bool from_peer(const wire::RxMeta& meta) const;
  uint32_t transmit_requests(wire::PacketSink& sink, Instant now, const TransmitTurn& turn);
  [[gnu::cold, gnu::noinline]] void on_marked(const wire::Packet& packet, Instant now);
  [[gnu::cold, gnu::noinline]] uint32_t send_cnp(wire::PacketSink& sink, Instant now);
  void take_piggybacked_ack(wire::Packet& packet, Instant now);
  void check_failure() {
    if (common_.failure) [[unlikely]]
      act_on_failure();
  }
  void expose();
  [[gnu::cold, gnu::noinline]] void act_on_failure();
  void enter_error(WcStatus first);
  void check_drained() {
    if (common_.state == QpState::Sqd) [[unlikely]]
      announce_drained();
  }
  [[gnu::cold, gnu::noinline]] void announce_drained();
  [[gnu::cold, gnu::noinline]] void reset_backoff(Instant now);

  QpCommon common_;
  std::unique_ptr<SendSide> requester_;
  Requester* const reliable_;  // requester_, or null if the transport has no ACKs or sends nothing
  std::unique_ptr<ReceiveSide> responder_;
  bool drain_announced_ = true;
  bool established_ = false;
  Pacer pacer_;
  Instant paced_until_ = kNever;  // requests wait for the pacer
  NotificationPoint notification_;
  PathBackoff backoff_;  // all packets wait: the path is full
};

}  // namespace verbena::core

// Requester: turns the send queue into packets, and responses into completions. The send queue is
// the retransmission buffer: to send again is to move the cursor back to the first unacknowledged
// PSN.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/time.h"
#include "core/qp_sides.h"
#include "core/work_queue.h"

namespace verbena::core {

class Requester final : public SendSide {
 public:
  Requester(QpCommon& qp, uint32_t max_wr, uint32_t max_sges, uint32_t max_inline);

  const SendQueue& queue() const { return queue_; }

  Status post(const SendRequest& request) override;
  void take_back(uint32_t count) override { queue_.take_back(count); }
  uint32_t transmit(wire::PacketSink& sink, Instant now, uint32_t budget) override;
  Readiness readiness(Instant now) override {
    const Blocked blocked = blocked_reason(now);
    if (blocked == Blocked::No) return Readiness::Ready;
    return blocked == Blocked::Window ? Readiness::WaitsForWindow : Readiness::No;
  }
  void on_response(const wire::Packet& packet, Instant now) override;
  void on_deadline(Instant now) override;
  Instant deadline() const override;
  void start() override;
  void change_window(PeerWindow* window) override;
  void reset() override;
  void flush(WcStatus first) override;
  bool drained() const override {
    return !anything_sent() || (unacked_ == highest_ && cursor_packet_ == 0);
  }
  bool has_reads_queued() const override;
  wire::Psn next_psn() const override { return next_; }

 private:
  enum class Blocked : uint8_t {
    No,
    NothingToSend,
    RnrWait,
    Drain,
    Fence,
    ReadLimit,
    Window,
    Order
  };

  // A READ request or an atomic on its way, by the PSNs it takes.
  struct OutstandingRead {
    wire::Psn first;
    wire::Psn last;
  };

  Blocked blocked_reason(Instant now);
  bool anything_sent() const { return started_; }
  void number(SendWqe& wqe);
  void run_local(SendWqe& wqe);
  bool send_request_packet(SendWqe& wqe, wire::PacketSink& sink, Instant now);
  void send_read(SendWqe& wqe, wire::PacketSink& sink);
  void send_atomic(SendWqe& wqe, wire::PacketSink& sink);
  void send_flush(SendWqe& wqe, wire::PacketSink& sink);
  bool send_message_packet(SendWqe& wqe, wire::PacketSink& sink);
  void advance_cursor(SendWqe& wqe, uint32_t packets, uint32_t cost);

  void on_acknowledge(const wire::Packet& packet, Instant now);
  void on_data(const wire::Packet& packet, Instant now);
  bool fits(const wire::Packet& answer, const SendWqe& wqe, uint32_t packet) const;
  bool take_answer(const wire::Packet& answer, uint64_t index, uint32_t packet);
  bool acknowledge_up_to(wire::Psn end, Instant now);
  void advance_unacked(uint32_t packets, Instant now);
  void retry();
  void implied_nak();
  void roll_back();
  void restart_ack_timer(Instant now);
  uint32_t packet_bytes(const SendWqe& wqe, uint32_t packet) const;
  uint32_t cost_of(const SendWqe& wqe, uint32_t first, uint32_t count) const;
  void fail_head(WcStatus status);

  QpCommon& qp_;
  SendQueue queue_;

  // The cursor: the next packet to send is packet `cursor_packet_` of request `cursor_`, with PSN
  // next_.
  uint64_t cursor_ = 0;
  uint32_t cursor_packet_ = 0;
  wire::Psn next_{0};
  wire::Psn unacked_{0};  // the first PSN the peer has not acknowledged
  wire::Psn highest_{0};  // one past the highest PSN ever sent
  bool started_ = false;

  std::vector<OutstandingRead> reads_;  // at most max_read_atomic
  uint32_t in_flight_cost_ = 0;         // this queue pair's part of the peer's window
  uint32_t since_ack_request_ = 0;      // packets sent since one asked for an acknowledgement
  uint32_t retries_left_ = 0;
  uint32_t rnr_retries_left_ = 0;
  uint32_t tries_ = 0;  // retries without progress, for the failure report
  std::optional<wire::Psn> implied_at_;
  std::optional<uint64_t>
      denied_;  // a request whose lkeys do not grant it: fails when it is the first
  Instant ack_deadline_ = kNever;
  Instant rnr_until_ = kNever;  // not before this may anything be sent again
};

// AETH's 5-bit RNR timer code (IBA table 45).
Duration rnr_delay(uint8_t code);
// Local ACK timeout: 4.096 us * 2^code, 0 = none.
Duration ack_timeout(uint8_t code);

}  // namespace verbena::core

// Requester: turns the send queue into packets, and responses into completions. The send queue is
// the retransmission buffer. Five files: sending what is new (requester.cc), and in which order
// (requester_batch.cc), taking responses (requester_response.cc), which packets are sent again, and
// why (requester_recovery.cc), and what is done without the peer (requester_direct.cc).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/time.h"
#include "core/placement.h"
#include "core/qp_sides.h"
#include "core/reorder_buffer.h"
#include "core/scoreboard.h"
#include "core/work_queue.h"

namespace verbena::core {

class Requester final : public SendSide {
 public:
  Requester(QpCommon& qp, uint32_t max_wr, uint32_t max_sges, uint32_t max_inline);

  Status post(const SendRequest& request) override;
  void take_back(uint32_t count) override { queue_.take_back(count); }
  uint32_t transmit(wire::PacketSink& sink, Instant now, uint32_t budget) override;
  bool can_piggyback(const wire::PacketSink& sink, Instant now) const override;
  uint32_t send_urgent(wire::PacketSink& sink, Instant now) override;
  Readiness readiness(Instant now) override {
    const Blocked blocked = blocked_reason(now);
    if (blocked == Blocked::No) return Readiness::Ready;
    return blocked == Blocked::Window ? Readiness::WaitsForWindow : Readiness::No;
  }
  void on_hold(Instant now) override;
  void on_room(Instant now) override;
  void on_narrow_path() override;
  void go_without_peer(wire::PacketSink& sink, Instant now) override;
  // The fast path (fast_path.cc): sending the only message.
  bool prepare_fast_send(const wire::PacketSink& sink, Instant now, Gather& payload);
  void commit_fast_send(wire::PacketSink& sink, Instant now, const Gather& payload);
  // The same for the piggybacked ACK of the only message.
  bool awaits_fast_ack(wire::Psn psn) const;
  void commit_fast_ack(Instant now);
  void on_response(const wire::Packet& packet, Instant now) override;
  void on_piggybacked_ack(wire::Psn last, Instant now) override;
  void on_deadline(Instant now) override;
  Instant deadline() const override;
  void reserve_reads(uint32_t count) override;
  void start() override;
  void change_peer(PeerPath* peer) override;
  void reset() override;
  void flush(WcStatus first) override;
  bool drained() const override {
    return !started_ || (unacked_ == next_ && cursor_packet_ == 0 && direct_bytes_ == 0);
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

  // Where a PSN that was sent lies in the send queue.
  struct Place {
    uint64_t index = 0;   // of the request
    uint32_t packet = 0;  // of it
  };
  // Packets of one request that one packet of ours asks for: several only of a READ.
  struct Piece {
    Place at;
    uint32_t packets = 1;
    wire::Psn first{0};
    bool repeated = false;
    wire::Psn end() const { return first + packets; }
  };

  // --- requester.cc -----------------------------------------------------------------------------
  Blocked blocked_reason(Instant now);
  Blocked new_request_blocked(Instant now);
  bool room_for(const SendWqe& wqe) const;
  uint32_t piece_packets(uint32_t cut_bytes) const;
  void number(SendWqe& wqe);
  void run_local(SendWqe& wqe);
  bool send_new(wire::PacketSink& sink, Instant now, bool ask_for_ack);
  bool push_request(const Piece& piece, wire::PacketSink& sink, bool ask_for_ack,
                    bool early = false);
  void note_sent(const Piece& piece);
  void advance_cursor(uint32_t packets);
  void start_clocks(wire::Psn first, Instant now);
  void fill_read(const SendWqe& wqe, const Piece& piece, wire::Packet& packet) const;
  void fill_message(const SendWqe& wqe, uint32_t packet_index, wire::Packet& packet) const;
  void piggyback_ack(uint64_t index, wire::Packet& packet);
  bool push_message_packet(Place at, wire::Packet& packet, wire::PacketSink& sink,
                           bool ask_for_ack);
  Piece piece_at(Place at) const;
  uint32_t packet_bytes(const SendWqe& wqe, uint32_t packet) const;
  uint32_t packets_of(const SendWqe& wqe) const;
  uint32_t cost_of(const SendWqe& wqe, uint32_t first, uint32_t count) const;

  // --- requester_batch.cc -----------------------------------------------------------------------
  uint32_t batch_limit() const;
  uint32_t batch_packets(uint32_t most);
  void send_batch(uint32_t packets, wire::PacketSink& sink, Instant now);
  void recall_order();
  template <typename Visit>
  void for_each_by_size(wire::Psn from, wire::Psn to, Visit visit) const;

  // --- requester_direct.cc ----------------------------------------------------------------------
  bool peer_sleeps(const wire::PacketSink& sink) const;
  bool may_go_direct(const SendWqe& wqe) const;
  bool may_go_unheard(const SendWqe& wqe, const wire::PacketSink& sink, Instant now) const;
  bool had_better_go_direct(const wire::PacketSink& sink, Instant now);
  bool go_direct(const SendWqe& wqe, wire::PacketSink& sink);
  void retract(wire::PacketSink& sink, Instant now);
  Instant stuck_time(Instant now) const;

  // --- requester_response.cc --------------------------------------------------------------------
  bool awaits(wire::Psn psn) const;
  void on_acknowledge(const wire::Packet& packet, Instant now);
  void take_acknowledgement(wire::Psn end, Instant now);
  void on_rnr_nak(const wire::Packet& packet, Instant now);
  void on_nak(const wire::Packet& packet, Instant now);
  void on_data(const wire::Packet& packet, Instant now);
  bool fits(const wire::Packet& answer, const SendWqe& wqe, uint32_t packet) const;
  void take_answer(const wire::Packet& answer, Instant now);
  bool place_answer(const wire::Packet& answer, const SendWqe& wqe, uint32_t packet);
  bool acknowledge_up_to(wire::Psn end, Instant now);
  void advance_unacked(uint32_t packets, Instant now);
  void fail_head(WcStatus status);

  // --- requester_recovery.cc --------------------------------------------------------------------
  // Which packets are lost:
  void acknowledge_late(wire::Psn end, Instant now);
  void on_late_data(const wire::Packet& packet, Instant now);
  void on_sequence_nak(const wire::Packet& packet, Instant now);
  void on_selective_nak(const wire::Packet& packet, Instant now);
  void find_lost_answers(Instant now);
  void on_timeout(Instant now);
  void send_all_again_from(wire::Psn from);
  bool overtaken(wire::Psn psn, Instant now);
  bool lose(wire::Psn psn, Instant now);
  bool use_up_retry();
  void report_loss(wire::Psn psn, Instant now);
  // Sending them again:
  Blocked lost_blocked();
  bool board_full() const;
  bool send_again(wire::PacketSink& sink, Instant now);
  Piece piece_to_repeat(wire::Psn psn);
  bool repeat(wire::Psn psn, wire::PacketSink& sink, bool ask_for_ack, Instant now);
  std::optional<wire::Psn> choose_probe();
  // The books:
  void begin_recovery();
  void end_recovery_if_over();
  void forget_losses();
  void learn_executed(wire::Psn end, Instant now);
  void settle_in_order(Instant now);
  void set_fate(wire::Psn psn, Fate fate);
  [[gnu::cold, gnu::noinline]] void settle_costs(uint32_t packets);
  Place place_of(wire::Psn psn) const;
  template <typename Visit>
  void for_each_piece(wire::Psn from, wire::Psn to, Visit visit);
  // Time:
  void restart_ack_timer(Instant now);
  void renew_retries() {
    retries_left_ = qp_.attr.retry_count;
    timeouts_in_a_row_ = 0;
  }
  void stop_ack_timer() { ack_deadline_ = probe_deadline_ = kNever; }
  Instant probe_time(Instant now) const;
  void end_measurement(Instant now);
  void end_probes(Instant now);

  QpCommon& qp_;
  SendQueue queue_;

  // The cursor: the next new packet is packet `cursor_packet_` of request `cursor_`, with PSN
  // next_.
  uint64_t cursor_ = 0;
  uint32_t cursor_packet_ = 0;
  wire::Psn next_{0};
  wire::Psn unacked_{0};  // the first PSN that is not done: not acknowledged, or not answered
  bool started_ = false;

  std::vector<OutstandingRead> reads_;  // at most max_read_atomic
  // What left sorted by size and not in the order of PSNs, as long as it may be under way.
  struct Batch {
    wire::Psn first;
    wire::Psn end;
  };
  std::vector<Batch> batches_;
  uint32_t batch_timeouts_ = 0;     // times that such a one was not acknowledged in time
  uint32_t in_flight_cost_ = 0;     // this queue pair's part of the peer's window
  uint32_t since_ack_request_ = 0;  // packets sent since one asked for an acknowledgement
  uint32_t retries_left_ = 0;
  uint32_t timeouts_in_a_row_ = 0;
  uint32_t rnr_retries_left_ = 0;
  uint32_t tries_ = 0;  // retries without progress, for the failure report
  std::optional<uint64_t>
      denied_;  // a request whose lkeys do not grant it: fails when it is the first
  Instant ack_deadline_ = kNever;
  bool timed_hold_ = false;     // ack_deadline_ is of what cannot leave
  Instant rnr_until_ = kNever;  // not before this may anything be sent again

  // What is done without the peer.
  uint32_t direct_bytes_ = 0;             // so much of the request at the head
  uint32_t direct_in_a_row_ = 0;          // requests, while the program neither paused nor polled
  uint64_t direct_refused_ = UINT64_MAX;  // a request that only the peer can do
  bool taken_back_ = false;               // the request at the head was, once
  uint64_t direct_seen_taken_ = 0;        // completions that it had taken then
  Instant direct_at_{};

  // Losses. The scoreboard is there from the first sign of one until all is as it was.
  std::unique_ptr<Scoreboard> board_;
  ReorderBuffer answers_;       // that came before one that is missing
  uint32_t probes_ = 0;         // in a row, without a sign of the peer
  Instant probed_at_ = kNever;  // the last of them
  Instant probe_deadline_ = kNever;
  bool probe_due_ = false;
  std::optional<wire::Psn> timed_;  // its round trip is being measured, since timed_at_
  Instant timed_at_{};
};

// AETH's 5-bit RNR timer code (IBA table 45).
Duration rnr_delay(uint8_t code);
// Local ACK timeout: 4.096 us * 2^code, 0 = none.
Duration ack_timeout(uint8_t code);

}  // namespace verbena::core

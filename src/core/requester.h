// Requester: turns the send queue into packets, and responses into completions. Its parts are
// SendCursor (PSNs), LossRecovery (losses and timers), DirectAccess (one-sided access) and
// SizeSortedBatches (the order of new packets). requester.cc sends, requester_response.cc receives.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/time.h"
#include "core/ack_requests.h"
#include "core/direct_access.h"
#include "core/loss_recovery.h"
#include "core/placement.h"
#include "core/qp_sides.h"
#include "core/reorder_buffer.h"
#include "core/send_cursor.h"
#include "core/size_sorted_batches.h"
#include "core/work_queue.h"

namespace verbena::core {

class Requester final : public SendSide {
 public:
  Requester(QpCommon& qp, uint32_t max_wr, uint32_t max_sges, uint32_t max_inline);

  Status post(const SendRequest& request) override;
  void unpost(uint32_t count) override { queue().unpost(count); }
  uint32_t transmit(wire::PacketSink& sink, Instant now, const TransmitTurn& turn) override;
  Readiness readiness(Instant now) override {
    const Blocked blocked = blocked_reason(now);
    if (blocked == Blocked::No) return Readiness::Ready;
    return blocked == Blocked::Window ? Readiness::WaitsForWindow : Readiness::No;
  }
  Instant deadline() const override { return recovery_.deadline(); }
  void on_cnp(Instant now) override { qp_.peer->on_cnp(now); }
  void start() override;
  void change_peer(PeerPath* peer) override { recovery_.change_peer(peer); }
  void reset() override;
  void flush(WcStatus first) override;
  bool drained() const override {
    return !cursor_.is_started() ||
           (!cursor_.has_outstanding() && !cursor_.is_inside_request() && !direct_.is_begun());
  }
  wire::Psn next_psn() const override { return cursor_.next(); }

  // --- reliable transports only -----------------------------------------------------------------
  // `marked`: see LossRecovery::begin_response().
  void on_response(const wire::Packet& packet, bool marked, Instant now);
  // The same for the first packets of a run; returns their number. 0: nothing has changed.
  size_t on_response_run(const wire::PacketRun& run, Instant now);
  // A request of the peer piggybacked the ACK of this PSN.
  void on_piggybacked_ack(wire::Psn last, bool marked, Instant now);
  void on_deadline(Instant now);
  // The next request is the only one, and a piggybacked ACK fits into its packet.
  bool can_piggyback(const wire::PacketSink& sink, Instant now) const;
  // Sends the packet that QpCommon::has_unwindowed_packet announces. Returns 1 or 0.
  uint32_t send_unwindowed(wire::PacketSink& sink, Instant now);
  // The path is full: no packet leaves.
  void on_backoff(Instant now);
  // The path is no longer full.
  void end_backoff(Instant now) { recovery_.end_backoff(now); }
  // The path is full: performs requests by one-sided access where possible.
  void try_one_sided(wire::PacketSink& sink, Instant now);
  // Packets are no longer than the path MTU from now on.
  void on_path_reverted_to_mtu(Instant now);
  // For a new max_rd_atomic. If it throws, nothing has changed.
  void reserve_reads(uint32_t count) { reads_.reserve(count); }
  bool has_reads_queued() const;

  // The fast path (fast_path.cc): sending the only message.
  bool has_one_request() const { return queue().size() == 1; }
  bool prepare_fast_send(const wire::PacketSink& sink, Instant recent, Gather& payload);
  void commit_fast_send(wire::PacketSink& sink, const Gather& payload);
  void finish_fast_send(Instant now);
  // The same for the piggybacked ACK of the only message.
  bool awaits_fast_ack(wire::Psn psn) const;
  void commit_fast_ack(Instant now);

 private:
  using Place = SendCursor::Place;
  using Chunk = SendCursor::Chunk;

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
  // The next step of transmit(), if it is not blocked.
  enum class Step : uint8_t { Retransmit, Local, OneSided, Send, Wait };

  // A READ chunk or an atomic in flight, by its PSNs.
  struct OutstandingRead {
    wire::Psn first;
    wire::Psn last;
  };

  SendQueue& queue() { return cursor_.queue(); }
  const SendQueue& queue() const { return cursor_.queue(); }

  // --- requester.cc -----------------------------------------------------------------------------
  Blocked blocked_reason(Instant now) const;
  Blocked new_request_blocked(Instant now) const;
  Blocked retransmit_blocked() const;
  bool has_room_for(const SendWqe& wqe) const;
  Step next_step(const wire::PacketSink& sink, Instant now);
  bool can_access() const { return !recovery_.is_active() && direct_.is_possible(); }
  void run_local(SendWqe& wqe);
  bool access_directly(wire::PacketSink& sink);
  void retract(wire::PacketSink& sink, Instant now);
  bool retransmit(wire::Psn psn, wire::PacketSink& sink, bool ends_burst, Instant now);
  bool retransmit_first_lost(wire::PacketSink& sink, Instant now);
  uint32_t send_new(wire::PacketSink& sink, Instant now, const TransmitTurn& turn);
  // How one packet leaves.
  struct PacketOptions {
    bool ends_burst = false;      // see AckRequests
    bool is_reordered = false;    // before one with a lower PSN
    bool only_active_qp = false;  // see TransmitTurn
  };
  void push_range(Chunk range, wire::PacketSink& sink, const PacketOptions& options);
  uint32_t push_run(const Chunk& range, wire::PacketSink& sink, const PacketOptions& options);
  bool push_request(const Chunk& chunk, wire::PacketSink& sink, const PacketOptions& options);
  void fill_read(const SendWqe& wqe, const Chunk& chunk, wire::Packet& packet) const;
  void fill_message(const SendWqe& wqe, uint32_t packet_index, wire::Packet& packet) const;
  void piggyback_ack(uint64_t index, wire::Packet& packet);
  bool push_message_packet(Place at, wire::Packet& packet, wire::PacketSink& sink,
                           const PacketOptions& options);

  // --- requester_response.cc --------------------------------------------------------------------
  bool awaits(wire::Psn psn) const;
  void on_ack(const wire::Packet& packet, Instant now);
  void take_ack(wire::Psn end, Instant now);
  void take_ack_in_recovery(wire::Psn end, Instant now);
  void on_rnr_nak(const wire::Packet& packet, Instant now);
  void on_nak(const wire::Packet& packet, Instant now);
  void on_data(const wire::Packet& packet, Instant now);
  void on_data_in_recovery(const wire::Packet& packet, Instant now);
  bool fits(const wire::Packet& response, const SendWqe& wqe, uint32_t packet) const;
  void take_response(const wire::Packet& response, Instant now);
  bool place_response(const wire::Packet& response, const SendWqe& wqe, uint32_t packet);
  bool acknowledge_up_to(wire::Psn end, Instant now);
  void acknowledge(uint32_t packets, Instant now);
  void begin_recovery();
  void complete_in_order(Instant now);
  void fail_head(WcStatus status) { recovery_.fail_head(status); }
  void clear_outstanding();

  QpCommon& qp_;
  SendCursor cursor_;
  LossRecovery recovery_;
  DirectAccess direct_;
  SizeSortedBatches batches_;
  ReorderBuffer responses_;             // received behind a missing one
  std::vector<OutstandingRead> reads_;  // at most max_read_atomic
  AckRequests ack_requests_;
  // A request whose lkeys do not grant its access. It fails when it reaches the head.
  std::optional<uint64_t> denied_;
};

}  // namespace verbena::core

// SizeSortedBatches: the order in which new messages leave. A GSO batch has packets of one size,
// but a message has several sizes: the first packet of a WRITE is longer than the others, the last
// one often shorter. If the peer accepts packets in any order, those of all messages that may leave
// now are sorted by size. A packet that leaves before one with a lower PSN has the `reordered` flag
// (core/ext), so that the peer does not detect a loss.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/qp_common.h"
#include "core/scoreboard.h"
#include "core/send_cursor.h"
#include "core/work_queue.h"

namespace verbena::core {

class SizeSortedBatches {
 public:
  SizeSortedBatches(QpCommon& qp, SendCursor& cursor) : qp_(qp), cursor_(cursor) {}

  // The number of packets from the cursor on, at most `max_packets`, that may leave sorted; 0 if
  // there is nothing to sort. Not during recovery.
  uint32_t plan(uint32_t max_packets);
  // If plan() has returned 0: so many packets may leave in PSN order before it finds more to sort.
  uint32_t packets_before_next_plan() const { return packets_before_next_plan_; }
  // Numbers them, moves the cursor behind them and calls visit(chunk, is_reordered) for all of
  // them, in the order in which they leave. A chunk is packets of one message and one kind.
  template <typename Visit>
  void send(uint32_t packets, Visit visit) {
    const wire::Psn first = cursor_.next();
    advance(packets);
    batches_.push_back({first, cursor_.next()});
    for_each_by_size(batches_.back(), visit);
  }

  // A new scoreboard assumes that packets left in PSN order.
  void restore_order(Scoreboard& board) const;

  void on_acked() {
    while (!batches_.empty() && !is_before(cursor_.unacked(), batches_.front().end)) {
      batches_.erase(batches_.begin());
    }
  }
  // The peer acknowledged nothing in time: batches become smaller.
  void on_timed_out();
  // Nothing is outstanding any more.
  void clear() { batches_.clear(); }
  void reset() {
    clear();
    timeouts_ = 0;
  }

 private:
  struct Batch {
    wire::Psn first;
    wire::Psn end;
  };
  // Packets of one kind have one size, as long as messages are of one kind.
  enum class Kind : uint8_t { First, Full, Rest };
  static constexpr std::array kKinds = {Kind::First, Kind::Full, Kind::Rest};

  static Kind kind_of(const SendWqe& wqe, uint32_t packet);
  // The packets of that kind from `packet` on.
  static uint32_t packets_of_kind(const SendWqe& wqe, uint32_t packet);
  uint32_t max_bytes() const;
  void advance(uint32_t packets);
  template <typename Visit>
  void for_each_by_size(const Batch& batch, Visit visit) const {
    const SendCursor::Place begin = cursor_.place_of(batch.first);
    for (const Kind kind : kKinds) {
      bool is_reordered = false;  // a packet with a lower PSN follows
      SendCursor::Place at = begin;
      for (wire::Psn psn = batch.first; psn != batch.end;) {
        const SendWqe& wqe = cursor_.queue().at(at.index);
        const Kind its = kind_of(wqe, at.packet);
        const auto left = static_cast<uint32_t>(batch.end.distance_from(psn));
        const uint32_t packets = std::min(packets_of_kind(wqe, at.packet), left);
        if (its == kind) visit(SendCursor::Chunk{at, packets, psn}, is_reordered);
        is_reordered |= its > kind;
        at = cursor_.place_behind(at, packets);
        psn = psn + packets;
      }
    }
  }

  QpCommon& qp_;
  SendCursor& cursor_;
  std::vector<Batch> batches_;  // that may be in flight, in PSN order
  uint32_t timeouts_ = 0;       // while one was in flight
  uint32_t packets_before_next_plan_ = UINT32_MAX;
};

}  // namespace verbena::core

// DirectAccess: WRITEs and READs that the requester does itself in the memory of a peer on the same
// host. They take no PSN, and the peer's responder never hears of them
// (docs/design/one-sided-access.md).
#pragma once

#include <cstdint>

#include "base/time.h"
#include "core/placement.h"
#include "core/qp_common.h"
#include "core/send_cursor.h"
#include "core/work_queue.h"
#include "wire/packet_io.h"

namespace verbena::core {

class DirectAccess {
 public:
  enum class Outcome : uint8_t {
    Refused,  // the peer has to do all of the request
    Partial,  // access() does the rest
    Done
  };
  // A direct copy is a system call, several times as expensive as a small packet. Packets suit a
  // stream better, and its first ones wake the peer. A stream is more requests than this, posted
  // without a pause and without a look at their completions.
  static constexpr uint32_t kMaxInARow = 16;
  static constexpr Duration kPause = microseconds(10);
  // For so long a peer that read nothing is left alone, unless it responds.
  static constexpr Duration kUnresponsiveFor = milliseconds(200);

  DirectAccess(QpCommon& qp, SendCursor& cursor) : qp_(qp), cursor_(cursor) {}

  // The request at the cursor is a WRITE or READ, and all requests before it are complete.
  bool is_possible() const {
    const SendWqe& wqe = cursor_.request();
    const bool one_sided = wqe.op == SendOp::Write || wqe.op == SendOp::Read;
    return one_sided && !wqe.numbered && cursor_.is_at_head() && wqe.length != 0 &&
           qp_.type == QpType::Rc && cursor_.index() != refused_;
  }
  // If it is possible: the request may take this way, so that the peer reads no packet of it.
  // Whether the peer sleeps may change meanwhile.
  bool is_likely(const wire::PacketSink& sink, Instant now) const {
    return is_begun() || qp_.peer->is_unresponsive(now) || is_asleep(sink);
  }
  // If it is possible: whether to do it. Counts towards a stream.
  bool is_preferred(const wire::PacketSink& sink, Instant now);
  // Does a packet's worth of the request at the cursor: the target exposes no more at once.
  Outcome access(wire::PacketSink& sink);
  // Part of the request at the cursor was done.
  bool is_begun() const { return bytes_done_ != 0; }
  void reset() { bytes_done_ = 0; }

  // The peer has read nothing for long. Removes all outstanding requests from the ring, provided
  // that none of them was read and that the first one can be done here. False: they stay.
  bool retract(wire::PacketSink& sink, Instant now);

 private:
  static constexpr uint64_t kNone = UINT64_MAX;

  bool is_asleep(const wire::PacketSink& sink) const;
  bool gather_local(uint32_t bytes, Gather& local);

  QpCommon& qp_;
  SendCursor& cursor_;
  uint32_t bytes_done_ = 0;   // of the request at the cursor
  uint64_t refused_ = kNone;  // a request that only the peer can do
  uint32_t in_a_row_ = 0;     // requests since the application last paused or polled
  uint64_t completions_ = 0;  // that it had taken from the CQ at the last one
  Instant last_at_{};         // when that was
};

}  // namespace verbena::core

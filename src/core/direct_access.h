// DirectAccess: one-sided WRITEs and READs, which the requester performs in the memory of a peer on
// the same host. They use no PSN, and the peer's responder takes no part
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
    Refused,  // the whole request must be sent in packets
    Partial,  // further calls of access() do the rest
    Done
  };
  // A direct copy is a system call, several times as expensive as a small packet. For a stream,
  // packets are cheaper, and the first ones wake the peer. A stream is more requests than this,
  // posted without a pause and without polling their completions.
  static constexpr uint32_t kMaxInARow = 16;
  static constexpr Duration kPause = microseconds(10);
  // A peer that read nothing counts as unresponsive for this time, unless it responds.
  static constexpr Duration kUnresponsiveFor = milliseconds(200);

  DirectAccess(QpCommon& qp, SendCursor& cursor) : qp_(qp), cursor_(cursor) {}

  // The request at the cursor is a WRITE or READ, and all requests before it are complete.
  bool is_possible() const {
    const SendWqe& wqe = cursor_.request();
    const bool one_sided = wqe.op == SendOp::Write || wqe.op == SendOp::Read;
    return one_sided && !wqe.numbered && cursor_.is_at_head() && wqe.length != 0 &&
           qp_.config.type == QpType::Rc && cursor_.index() != refused_;
  }
  // If is_possible(): the request will probably be done by one-sided access. The peer may still
  // wake up or fall asleep.
  bool is_likely(const wire::PacketSink& sink, Instant now) const {
    return is_begun() || qp_.peer->is_unresponsive(now) || is_asleep(sink);
  }
  // If is_possible(): whether to use one-sided access. Counts the request towards a stream.
  bool is_preferred(const wire::PacketSink& sink, Instant now);
  // Copies at most kMaxPayloadBytes of the request at the cursor, the limit of one direct copy.
  Outcome access(wire::PacketSink& sink);
  // Part of the request at the cursor was done.
  bool is_begun() const { return bytes_done_ != 0; }
  void reset() { bytes_done_ = 0; }

  // The peer is unresponsive. Retracts all outstanding requests, provided that the peer has read
  // none of them and that the first one is a WRITE or READ. False: they stay.
  bool retract(wire::PacketSink& sink, Instant now);

 private:
  static constexpr uint64_t kNone = UINT64_MAX;

  bool is_asleep(const wire::PacketSink& sink) const;
  bool gather_local(uint32_t bytes, Gather& local);

  QpCommon& qp_;
  SendCursor& cursor_;
  uint32_t bytes_done_ = 0;   // of the request at the cursor
  uint64_t refused_ = kNone;  // a request that must be sent in packets
  uint32_t in_a_row_ = 0;     // requests since the application last paused or polled
  uint64_t completions_ = 0;  // polled from the CQ before the last such request
  Instant last_at_{};         // the time of that request
};

}  // namespace verbena::core

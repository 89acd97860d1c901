// What the engine tells its owner after a turn: events for applications, and why a queue pair
// failed.
#pragma once

#include <cstdint>
#include <optional>

#include "core/types.h"
#include "wire/headers.h"

namespace verbena::core {

class CompletionQueue;
class QueuePair;
class SharedReceiveQueue;

// As ibv_event_type.
enum class EventKind : uint8_t {
  CqError = 0,
  QpFatal = 1,
  QpRequestError = 2,
  QpAccessError = 3,
  CommEstablished = 4,
  SqDrained = 5,
  SrqError = 14,
  SrqLimitReached = 15,
  LastWqeReached = 16,
};

struct AsyncEvent {
  EventKind kind;
  QueuePair* qp = nullptr;        // for QP events
  CompletionQueue* cq = nullptr;  // for CqError
  SharedReceiveQueue* srq = nullptr;
};

// A queue pair went into error (or stopped sending) by itself. One of these per failure; the owner
// puts it into words.
struct QpFailure {
  QpType type = QpType::Rc;
  wire::Qpn qpn;
  wire::Qpn peer_qpn;
  wire::Gid peer;
  WcStatus status = WcStatus::Success;
  bool as_responder = false;  // we refused the peer's request; otherwise ours failed
  std::optional<SendOp> op;   // requester: what failed
  uint64_t wr_id = 0;
  uint32_t length = 0;
  uint64_t remote_address = 0;
  uint32_t rkey = 0;
  uint8_t packet_opcode = 0;  // responder: what arrived
  uint32_t psn = 0;
  uint32_t retries = 0;       // requester: how often it was tried again
  bool memory_ended = false;  // requester: it was on its way through shared memory that is no more
};

}  // namespace verbena::core

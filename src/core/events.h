// The engine's reports to its owner after a turn: events for applications, and why a queue pair
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

// Why a queue pair went into error, or stopped sending, without a call of the application. One of
// these per failure; the owner logs it.
struct QpFailure {
  QpType type = QpType::Rc;
  wire::Qpn qpn;
  wire::Qpn peer_qpn;
  wire::Gid peer;
  WcStatus status = WcStatus::Success;
  bool as_responder = false;  // this side refused the peer's request
  std::optional<SendOp> op;   // requester: the operation that failed
  uint64_t wr_id = 0;
  uint32_t length = 0;
  uint64_t remote_address = 0;
  uint32_t rkey = 0;
  uint8_t packet_opcode = 0;  // responder: of the refused packet
  uint32_t psn = 0;
  uint32_t retries = 0;       // requester: retransmissions before the failure
  bool memory_ended = false;  // requester: the shared-memory link ended while it was outstanding
};

}  // namespace verbena::core

// The part of sending that all transports share: checking, queueing and completing work
// requests.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "core/placement.h"
#include "core/qp_common.h"
#include "core/work_queue.h"

namespace verbena::core {

// Checks the queue's capacity, the number of SGEs, and the lengths. Returns the message's length.
Result<uint32_t> check_request(const SendQueue& queue, const SendRequest& request);

// Writes a checked request, with its inline bytes, into the queue's next slot. The caller adds the
// fields of its transport and pushes.
SendWqe& fill_slot(SendQueue& queue, const SendRequest& request, uint32_t length);

// Bytes [offset, offset + length) of a request's message. False if an lkey does not grant them.
bool gather_message(const QpCommon& qp, SendQueue& queue, uint64_t index, uint32_t offset,
                    uint32_t length, Gather& out);

// Executes an invalidate or a bind. Returns the status of its completion.
WcStatus execute_local(QpCommon& qp, const SendWqe& wqe);

// Removes the request at the head and, if it is signaled or failed, posts its completion.
void complete_head(QpCommon& qp, SendQueue& queue, WcStatus status, uint32_t byte_count);

// RC's opcode for a packet of a SEND or WRITE. Other transports add their opcode base.
wire::Opcode message_opcode(SendOp op, bool first, bool last);

}  // namespace verbena::core

// What the sending sides of all transports do alike: checking and keeping requests, completing
// them.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "core/placement.h"
#include "core/qp_common.h"
#include "core/work_queue.h"

namespace verbena::core {

// Room, number of pieces, length, inline length. The result is the message's length.
Result<uint32_t> check_request(const SendQueue& queue, const SendRequest& request);

// Writes a checked request into the queue's next slot, inline bytes and all. The caller adds what
// its transport needs and pushes.
SendWqe& fill_slot(SendQueue& queue, const SendRequest& request, uint32_t length);

// Bytes [offset, offset + length) of a request's message. False if an lkey does not grant them.
bool gather_message(const QpCommon& qp, SendQueue& queue, uint64_t index, uint32_t offset,
                    uint32_t length, Gather& out);

// Invalidates or binds, as the local request asks; how it completes.
WcStatus execute_local(QpCommon& qp, const SendWqe& wqe);

// Takes the request at the head out of its queue and completes it, unless that was not asked for.
void complete_head(QpCommon& qp, SendQueue& queue, WcStatus status, uint32_t byte_count);

// RC's opcode for a packet of a SEND or WRITE; other transports have the same at another base.
wire::Opcode message_opcode(SendOp op, bool first, bool last);

}  // namespace verbena::core

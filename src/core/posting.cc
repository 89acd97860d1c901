// Checking, queueing and completing of work requests.
#include "core/posting.h"

#include <algorithm>
#include <cstring>

#include "base/vendor_error.h"

namespace verbena::core {
namespace {

WcOpcode completion_opcode(SendOp op) {
  switch (op) {
    case SendOp::Write:
    case SendOp::WriteImm:
      return WcOpcode::Write;
    case SendOp::Read:
      return WcOpcode::Read;
    case SendOp::CompareSwap:
      return WcOpcode::CompareSwap;
    case SendOp::FetchAdd:
      return WcOpcode::FetchAdd;
    case SendOp::LocalInvalidate:
      return WcOpcode::LocalInvalidate;
    case SendOp::BindWindow:
      return WcOpcode::BindWindow;
    case SendOp::AtomicWrite:
      return WcOpcode::AtomicWrite;
    case SendOp::Flush:
      return WcOpcode::Flush;
    default:
      return WcOpcode::Send;
  }
}

}  // namespace

Result<uint32_t> check_request(const SendQueue& queue, const SendRequest& r) {
  if (queue.full()) return Error{ENOMEM, "the send queue is full"};
  if (r.sges.size() > queue.max_sges()) return Error{EINVAL, "more SGEs than max_send_sge"};
  uint64_t length = 0;
  for (const Sge& sge : r.sges) length += sge.length;
  if (length > kMaxMessageBytes) return Error{EINVAL, "a message is at most 2 GiB"};
  const bool is_inline = (r.flags & kInline) != 0;
  if (is_inline && length > queue.max_inline()) {
    return Error{ENOMEM, "more inline data than max_inline_data"};
  }
  const bool gives_data = !is_local(r.op) && !is_read_or_atomic(r.op);
  if (is_inline && !gives_data && r.op != SendOp::AtomicWrite) {
    return Error{EINVAL, "only SEND and WRITE can be inline"};
  }
  return static_cast<uint32_t>(length);
}

SendWqe& fill_slot(SendQueue& queue, const SendRequest& r, uint32_t length) {
  const uint64_t index = queue.tail();
  SendWqe& wqe = queue.slot();
  wqe.numbered = false;
  wqe.chunk_packets = 1;
  wqe.sge_count = 0;
  wqe.wr_id = r.wr_id;
  wqe.op = r.op;
  wqe.flags = r.flags;
  wqe.length = is_local(r.op) ? 0 : length;
  wqe.immediate_or_rkey = r.immediate_or_rkey;
  wqe.remote_address = r.remote_address;
  wqe.rkey = r.rkey;
  wqe.remote_srqn = r.remote_srqn;
  if (is_atomic(r.op)) {
    wqe.compare_add = r.compare_add;
    wqe.swap = r.swap;
  } else if (r.op == SendOp::BindWindow) {
    wqe.window_rkey = r.window_rkey;
    wqe.bind = r.bind;
  } else if (r.op == SendOp::Flush) {
    wqe.flush = r.flush;
  }
  if ((r.flags & kInline) != 0) {
    std::byte* to = queue.inline_bytes(index);
    for (const Sge& sge : r.sges) {  // no lkey is checked: the caller's thread copies the bytes
      if (sge.length == 0) continue;
      std::memcpy(to, reinterpret_cast<const void*>(sge.address), sge.length);
      to += sge.length;
    }
  } else {
    wqe.sge_count = static_cast<uint16_t>(r.sges.size());
    std::ranges::copy(r.sges, queue.sge_slots(index).begin());
  }
  return wqe;
}

bool gather_message(const QpCommon& qp, SendQueue& queue, uint64_t index, uint32_t offset,
                    uint32_t length, Gather& out) {
  if ((queue.at(index).flags & kInline) == 0) {
    return gather(qp.engine.memory, qp.pd, queue.sges(index), offset, length, out);
  }
  if (length != 0) {
    out.spans[0] = {queue.inline_bytes(index) + offset, length};
    out.count = 1;
  }
  return true;
}

WcStatus execute_local(QpCommon& qp, const SendWqe& wqe) {
  MemoryView& memory = qp.engine.memory;
  if (wqe.op == SendOp::BindWindow) {
    return memory.bind_window(qp.pd, qp.qpn, wqe.window_rkey, wqe.bind) ? WcStatus::Success
                                                                        : WcStatus::WindowBind;
  }
  return memory.invalidate(qp.pd, qp.qpn, wqe.immediate_or_rkey) ? WcStatus::Success
                                                                 : WcStatus::LocalQpOperation;
}

void complete_head(QpCommon& qp, SendQueue& queue, WcStatus status, uint32_t byte_count) {
  const SendWqe& wqe = queue.front();
  const bool wanted =
      status != WcStatus::Success || qp.config.signal_all || (wqe.flags & kSignaled) != 0;
  queue.pop();
  if (qp.counters != nullptr) [[unlikely]]
    qp.counters->add_sent(wqe.op, status, wqe.length);
  if (!wanted) return;
  qp.complete(qp.config.send_cq, [&](Completion& c) {
    c.wr_id = wqe.wr_id;
    c.status = status;
    c.opcode = completion_opcode(wqe.op);
    c.byte_count = byte_count;
    if (status == WcStatus::RetryExceeded && qp.failure && qp.failure->memory_ended) {
      c.vendor_error = kVendorPeerEnded;
    }
  });
}

wire::Opcode message_opcode(SendOp op, bool first, bool last) {
  using enum wire::Opcode;
  switch (op) {
    case SendOp::Send:
      return first ? (last ? RcSendOnly : RcSendFirst) : (last ? RcSendLast : RcSendMiddle);
    case SendOp::SendImm:
      return first ? (last ? RcSendOnlyImm : RcSendFirst) : (last ? RcSendLastImm : RcSendMiddle);
    case SendOp::SendInvalidate:
      return first ? (last ? RcSendOnlyInvalidate : RcSendFirst)
                   : (last ? RcSendLastInvalidate : RcSendMiddle);
    case SendOp::WriteImm:
      return first ? (last ? RcWriteOnlyImm : RcWriteFirst)
                   : (last ? RcWriteLastImm : RcWriteMiddle);
    case SendOp::AtomicWrite:
      return RcAtomicWrite;
    default:
      return first ? (last ? RcWriteOnly : RcWriteFirst) : (last ? RcWriteLast : RcWriteMiddle);
  }
}

}  // namespace verbena::core

// Posting work requests: the hot path. It takes one lock for the whole list and allocates nothing.
#include <arpa/inet.h>

#include <mutex>

#include "abi/verbs/c_enum.h"
#include "abi/verbs/context.h"
#include "abi/verbs/errors.h"
#include "abi/verbs/objects.h"
#include "abi/verbs/send_request.h"

namespace verbena::abi {
namespace {

using core::SendOp;

static_assert(IBV_WR_RDMA_WRITE == static_cast<int>(SendOp::Write));
static_assert(IBV_WR_RDMA_WRITE_WITH_IMM == static_cast<int>(SendOp::WriteImm));
static_assert(IBV_WR_SEND == static_cast<int>(SendOp::Send));
static_assert(IBV_WR_SEND_WITH_IMM == static_cast<int>(SendOp::SendImm));
static_assert(IBV_WR_RDMA_READ == static_cast<int>(SendOp::Read));
static_assert(IBV_WR_ATOMIC_CMP_AND_SWP == static_cast<int>(SendOp::CompareSwap));
static_assert(IBV_WR_ATOMIC_FETCH_AND_ADD == static_cast<int>(SendOp::FetchAdd));
static_assert(IBV_WR_LOCAL_INV == static_cast<int>(SendOp::LocalInvalidate));
static_assert(IBV_WR_BIND_MW == static_cast<int>(SendOp::BindWindow));
static_assert(IBV_WR_SEND_WITH_INV == static_cast<int>(SendOp::SendInvalidate));
static_assert(IBV_WR_ATOMIC_WRITE == static_cast<int>(SendOp::AtomicWrite));
static_assert(kWrFlush == static_cast<unsigned>(SendOp::Flush));
static_assert(IBV_SEND_FENCE == core::kFence);
static_assert(IBV_SEND_SIGNALED == core::kSignaled);
static_assert(IBV_SEND_SOLICITED == core::kSolicited);
static_assert(IBV_SEND_INLINE == core::kInline);

// A scatter/gather list is read in place: the two structures are identical.
static_assert(sizeof(ibv_sge) == sizeof(core::Sge));
static_assert(offsetof(ibv_sge, addr) == offsetof(core::Sge, address));
static_assert(offsetof(ibv_sge, length) == offsetof(core::Sge, length));
static_assert(offsetof(ibv_sge, lkey) == offsetof(core::Sge, lkey));

constexpr uint32_t kSendFlags = core::kFence | core::kSignaled | core::kSolicited | core::kInline;

constexpr Error kBadSges{
    EINVAL, "num_sge is negative, larger than the device's max_sge, or without a list"};

bool good_sges(const ibv_sge* list, int count) {
  return count >= 0 && count <= static_cast<int>(core::kMaxSges) && (count == 0 || list != nullptr);
}

std::span<const core::Sge> sges_of(const ibv_sge* list, int count) {
  return {reinterpret_cast<const core::Sge*>(list), static_cast<size_t>(count)};
}

void translate_datagram(const ibv_send_wr& wr, core::SendRequest& to) {
  to.datagram.handle = wr.wr.ud.ah != nullptr ? from(wr.wr.ud.ah)->handle.get() : nullptr;
  to.datagram.qpn = wire::Qpn(wr.wr.ud.remote_qpn);
  to.datagram.qkey = wr.wr.ud.remote_qkey;
}

Status translate_bind(const ibv_send_wr& wr, core::SendRequest& to) {
  auto binding = binding_of(wr.bind_mw.mw, wr.bind_mw.bind_info, wr.bind_mw.rkey);
  if (!binding.ok()) return binding.error();
  to.window_rkey = wr.bind_mw.mw->handle;
  to.bind = binding.value();
  return {};
}

Status translate(const ibv_send_wr& wr, core::SendRequest& to) {
  if (!good_sges(wr.sg_list, wr.num_sge)) return kBadSges;
  if ((wr.send_flags & ~kSendFlags) != 0) {
    return Error{EINVAL, "send_flags has a flag that does not exist, or that is for raw packets"};
  }
  to.wr_id = wr.wr_id;
  const unsigned opcode = number_of(wr.opcode);
  to.op = static_cast<SendOp>(opcode);
  to.flags = wr.send_flags;
  to.sges = sges_of(wr.sg_list, wr.num_sge);
  switch (opcode) {
    case IBV_WR_SEND:
      return {};
    case IBV_WR_SEND_WITH_IMM:
      to.immediate_or_rkey = ntohl(wr.imm_data);
      return {};
    case IBV_WR_SEND_WITH_INV:
      to.immediate_or_rkey = wr.invalidate_rkey;
      return {};
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      to.immediate_or_rkey = ntohl(wr.imm_data);
      [[fallthrough]];
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_READ:
    case IBV_WR_ATOMIC_WRITE:
      to.remote_address = wr.wr.rdma.remote_addr;
      to.rkey = wr.wr.rdma.rkey;
      return {};
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      to.remote_address = wr.wr.atomic.remote_addr;
      to.rkey = wr.wr.atomic.rkey;
      to.compare_add = wr.wr.atomic.compare_add;
      to.swap = wr.wr.atomic.swap;
      return {};
    case IBV_WR_LOCAL_INV:
      to.immediate_or_rkey = wr.invalidate_rkey;
      to.sges = {};
      return {};
    case IBV_WR_BIND_MW:
      to.sges = {};
      return translate_bind(wr, to);
    case kWrFlush:  // ibv_send_wr has no fields for placement and selectivity
      return Error{EINVAL, "FLUSH is posted by ibv_wr_flush"};
    default:
      return Error{EINVAL, "queue pairs do not have this opcode"};
  }
}

// On failure `wr` points to the request that failed.
int post_sends(Qp& qp, ibv_send_wr*& wr) {
  if (qp.nic->is_abandoned()) [[unlikely]]
    return EIO;
  const bool is_xrc = qp.qp_base.qp_type == IBV_QPT_XRC_SEND;
  runtime::Nic::PostingGuard guard(*qp.lane);
  const Instant now = guard.lane().time_for_post(*qp.core);
  Status status;
  for (; wr != nullptr; wr = wr->next) {
    core::SendRequest request;
    status = translate(*wr, request);
    if (qp.core->type() == core::QpType::Ud) translate_datagram(*wr, request);
    if (is_xrc) request.remote_srqn = wr->qp_type.xrc.remote_srqn;
    if (status.ok()) status = guard.engine().post_send(*qp.core, request, now);
    if (!status.ok()) break;
  }
  guard.lane().after_post(*qp.core);
  if (!status.ok() && status.error().code == ENOMEM) guard.lane().make_room();
  return status.ok() ? 0 : post_failed("ibv_post_send", status.error());
}

int post_receives(Qp& qp, ibv_recv_wr*& wr) {
  if (qp.nic->is_abandoned()) [[unlikely]]
    return EIO;
  runtime::Lane& lane = *qp.lane;
  const std::lock_guard lock(lane.mutex());  // a receive gives the engine nothing to do
  const Instant now = lane.recent_time();
  Status status;
  for (; wr != nullptr; wr = wr->next) {
    status = kBadSges;
    if (good_sges(wr->sg_list, wr->num_sge)) {
      const core::ReceiveRequest request{wr->wr_id, sges_of(wr->sg_list, wr->num_sge)};
      status = lane.engine().post_receive(*qp.core, request, now);
    }
    if (!status.ok()) break;
  }
  // In the error state a receive is flushed at once, and a thread may be waiting for its
  // completion.
  if (qp.core->state() == core::QpState::Error) [[unlikely]] {
    lane.after_post(*qp.core);
    lane.deliver();
  }
  return status.ok() ? 0 : post_failed("ibv_post_recv", status.error());
}

int post_shared_receives(Srq& srq, ibv_recv_wr*& wr) {
  if (srq.nic->is_abandoned()) [[unlikely]]
    return EIO;
  Status status;
  for (; wr != nullptr; wr = wr->next) {
    status = kBadSges;
    if (good_sges(wr->sg_list, wr->num_sge)) {
      status = srq.core->post({wr->wr_id, sges_of(wr->sg_list, wr->num_sge)});
    }
    if (!status.ok()) break;
  }
  return status.ok() ? 0 : post_failed("ibv_post_srq_recv", status.error());
}

}  // namespace

int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad_wr) {
  const int code = without_exceptions([&] { return post_sends(*from(qp), wr); });
  if (code != 0) *bad_wr = wr;
  return code;
}

int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) {
  const int code = without_exceptions([&] { return post_receives(*from(qp), wr); });
  if (code != 0) *bad_wr = wr;
  return code;
}

int post_srq_recv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) {
  const int code = without_exceptions([&] { return post_shared_receives(*from(srq), wr); });
  if (code != 0) *bad_wr = wr;
  return code;
}

// A type 1 window is bound by a call, which posts a work request; the call chooses the new key.
int bind_mw(ibv_qp* qp, ibv_mw* mw, ibv_mw_bind* bind) {
  ibv_send_wr wr{};
  wr.wr_id = bind->wr_id;
  wr.opcode = IBV_WR_BIND_MW;
  wr.send_flags = bind->send_flags;
  wr.bind_mw.mw = mw;
  wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
  wr.bind_mw.bind_info = bind->bind_info;
  ibv_send_wr* bad = nullptr;
  const int code = post_send(qp, &wr, &bad);
  if (code == 0) mw->rkey = wr.bind_mw.rkey;  // the program chooses the key of a type 2 window
  return code;
}

}  // namespace verbena::abi

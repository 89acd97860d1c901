// Builds requests: the functions that the inlines of <infiniband/verbs.h> call.
#include "abi/verbs/wr_builders.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "abi/verbs/errors.h"
#include "abi/verbs/narrate.h"
#include "abi/verbs/objects.h"
#include "abi/verbs/send_request.h"

namespace verbena::abi {
namespace {

using core::SendOp;
using core::SendRequest;

constexpr uint32_t kBuilderFlags = core::kFence | core::kSignaled | core::kSolicited;

constexpr Error kNotStarted{EINVAL, "call ibv_wr_start first, in the same thread"};

constexpr uint64_t kDatagramOperations = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
constexpr uint64_t kUnacknowledgedOperations = kDatagramOperations | IBV_QP_EX_WITH_RDMA_WRITE |
                                               IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                                               IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW;
constexpr uint64_t kReliableOperations =
    kUnacknowledgedOperations | IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_RDMA_READ |
    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |
    IBV_QP_EX_WITH_ATOMIC_WRITE | kQpExWithFlush;

uint64_t operations_of(unsigned qp_type) {
  switch (qp_type) {
    case IBV_QPT_RC:
    case IBV_QPT_XRC_SEND:
      return kReliableOperations;
    case IBV_QPT_UC:
      return kUnacknowledgedOperations;
    case IBV_QPT_UD:
      return kDatagramOperations;
    default:
      return 0;
  }
}

}  // namespace

Status check_operations(unsigned qp_type, uint64_t operations) {
  if ((operations & IBV_QP_EX_WITH_TSO) != 0) {
    return Error{EOPNOTSUPP, "send_ops_flags: there is no TCP segmentation offload"};
  }
  if ((operations & ~operations_of(qp_type)) != 0) {
    return Error{EOPNOTSUPP, "send_ops_flags names an operation that this type does not have"};
  }
  return {};
}

WrBuilder::WrBuilder(const core::QpConfig& config, uint64_t operations, bool single_threaded)
    : operations_(operations),
      max_requests_(config.max_send_wr),
      max_sges_(std::max(config.max_send_sge, 1u)),
      max_inline_(config.max_inline),
      requests_(std::make_unique<SendRequest[]>(max_requests_)),
      addresses_(std::make_unique<runtime::SharedAddress[]>(max_requests_)),
      sges_(std::make_unique<core::Sge[]>(size_t{max_requests_} * max_sges_)),
      inline_(std::make_unique<std::byte[]>(size_t{max_requests_} * max_inline_)),
      session_(single_threaded) {
  status_ = kNotStarted;
}

void WrBuilder::start() {
  if (started()) {
    return refuse({EINVAL, "ibv_wr_start twice without ibv_wr_complete or ibv_wr_abort"});
  }
  session_.begin();
  count_ = 0;
  status_ = {};
}

void WrBuilder::end() {
  if (!started()) return;
  status_ = kNotStarted;
  for (size_t i = 0; i < count_; ++i) addresses_[i].reset();
  session_.end();
}

SendRequest* WrBuilder::add(uint64_t operation, const ibv_qp_ex& qp, SendOp op) {
  if (!status_.ok()) return nullptr;
  if ((operations_ & operation) == 0) {
    refuse({EINVAL, "send_ops_flags does not include this operation"});
    return nullptr;
  }
  if ((qp.wr_flags & ~(kBuilderFlags | IBV_SEND_INLINE)) != 0) {
    refuse({EINVAL, "wr_flags has a flag that does not exist, or that is for raw packets"});
    return nullptr;
  }
  if (count_ == max_requests_) {
    refuse({ENOMEM, "more requests than max_send_wr"});
    return nullptr;
  }
  SendRequest& request = requests_[count_++];
  request = SendRequest{};
  request.wr_id = qp.wr_id;
  request.op = op;
  request.flags = qp.wr_flags & kBuilderFlags;
  return &request;
}

SendRequest* WrBuilder::last() {
  if (!status_.ok()) return nullptr;
  if (count_ == 0) {
    refuse({EINVAL, "a setter needs an operation before it"});
    return nullptr;
  }
  return &requests_[count_ - 1];
}

void WrBuilder::set_sges(const ibv_sge* list, size_t count) {
  SendRequest* request = last();
  if (request == nullptr) return;
  if (count > max_sges_) return refuse({EINVAL, "more SGEs than max_send_sge"});
  core::Sge* to = sges_of_last();
  if (count != 0) std::memcpy(static_cast<void*>(to), list, count * sizeof *list);
  request->sges = {to, count};
  request->flags &= ~core::kInline;
}

void WrBuilder::set_inline(const ibv_data_buf* list, size_t count) {
  SendRequest* request = last();
  if (request == nullptr) return;
  std::byte* const begin = inline_.get() + (count_ - 1) * max_inline_;
  size_t length = 0;
  for (size_t i = 0; i < count; ++i) {
    if (list[i].length > max_inline_ - length) {
      return refuse({ENOMEM, "more inline data than max_inline_data"});
    }
    if (list[i].length != 0) std::memcpy(begin + length, list[i].addr, list[i].length);
    length += list[i].length;
  }
  core::Sge* to = sges_of_last();
  *to = {reinterpret_cast<uint64_t>(begin), static_cast<uint32_t>(length), 0};
  request->sges = {to, 1};
  request->flags |= core::kInline;
}

void WrBuilder::set_address(runtime::SharedAddress handle, wire::Qpn qpn, uint32_t qkey) {
  SendRequest* request = last();
  if (request == nullptr) return;
  request->datagram.handle = handle.get();
  request->datagram.qpn = qpn;
  request->datagram.qkey = qkey;
  addresses_[count_ - 1] = std::move(handle);
}

namespace {

WrBuilder& builder_of(ibv_qp_ex* qp) { return *from(&qp->qp_base)->builder; }

void wr_start(ibv_qp_ex* qp) {
  if (from(&qp->qp_base)->nic->is_abandoned())
    return;  // a thread of the parent may have held the lock
  builder_of(qp).start();
}

int wr_complete(ibv_qp_ex* public_qp) {
  Qp& qp = *from(&public_qp->qp_base);
  if (qp.nic->is_abandoned()) return EIO;
  WrBuilder& builder = *qp.builder;
  if (!builder.started()) return refuse("ibv_wr_complete", kNotStarted);
  Status status = builder.status();
  const int code = without_exceptions([&] {
    if (status.ok() && !builder.requests().empty()) {
      runtime::Nic::PostingGuard guard(*qp.lane);
      const Instant now = guard.lane().time_for_post(*qp.core);
      status = guard.engine().post_send(*qp.core, builder.requests(), now);
      if (status.ok()) {
        guard.lane().after_post(*qp.core);
        if (narrating()) narrate_posted(qp.qp_base, builder.requests());
      } else if (status.error().code == ENOMEM) {
        guard.lane().make_room();
      }
    }
    return 0;
  });
  builder.end();
  if (code != 0) return code;
  return status.ok() ? 0 : post_failed("ibv_wr_complete", status.error());
}

void wr_abort(ibv_qp_ex* qp) {
  if (!from(&qp->qp_base)->nic->is_abandoned()) builder_of(qp).end();
}

void wr_send(ibv_qp_ex* qp) { builder_of(qp).add(IBV_QP_EX_WITH_SEND, *qp, SendOp::Send); }

void wr_send_imm(ibv_qp_ex* qp, __be32 immediate) {
  SendRequest* r = builder_of(qp).add(IBV_QP_EX_WITH_SEND_WITH_IMM, *qp, SendOp::SendImm);
  if (r != nullptr) r->immediate_or_rkey = ntohl(immediate);
}

void wr_send_inv(ibv_qp_ex* qp, uint32_t rkey) {
  SendRequest* r = builder_of(qp).add(IBV_QP_EX_WITH_SEND_WITH_INV, *qp, SendOp::SendInvalidate);
  if (r != nullptr) r->immediate_or_rkey = rkey;
}

void wr_send_tso(ibv_qp_ex* qp, void*, uint16_t, uint16_t) {
  builder_of(qp).refuse({EOPNOTSUPP, "there is no TCP segmentation offload"});
}

SendRequest* add_remote(ibv_qp_ex* qp, uint64_t operation, SendOp op, uint32_t rkey,
                        uint64_t address) {
  SendRequest* r = builder_of(qp).add(operation, *qp, op);
  if (r == nullptr) return nullptr;
  r->rkey = rkey;
  r->remote_address = address;
  return r;
}

void wr_rdma_read(ibv_qp_ex* qp, uint32_t rkey, uint64_t address) {
  add_remote(qp, IBV_QP_EX_WITH_RDMA_READ, SendOp::Read, rkey, address);
}

void wr_rdma_write(ibv_qp_ex* qp, uint32_t rkey, uint64_t address) {
  add_remote(qp, IBV_QP_EX_WITH_RDMA_WRITE, SendOp::Write, rkey, address);
}

void wr_rdma_write_imm(ibv_qp_ex* qp, uint32_t rkey, uint64_t address, __be32 immediate) {
  SendRequest* r =
      add_remote(qp, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, SendOp::WriteImm, rkey, address);
  if (r != nullptr) r->immediate_or_rkey = ntohl(immediate);
}

void wr_atomic_cmp_swp(ibv_qp_ex* qp, uint32_t rkey, uint64_t address, uint64_t compare,
                       uint64_t swap) {
  SendRequest* r =
      add_remote(qp, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, SendOp::CompareSwap, rkey, address);
  if (r == nullptr) return;
  r->compare_add = compare;
  r->swap = swap;
}

void wr_atomic_fetch_add(ibv_qp_ex* qp, uint32_t rkey, uint64_t address, uint64_t add) {
  SendRequest* r =
      add_remote(qp, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, SendOp::FetchAdd, rkey, address);
  if (r != nullptr) r->compare_add = add;
}

void wr_bind_mw(ibv_qp_ex* qp, ibv_mw* mw, uint32_t rkey, const ibv_mw_bind_info* info) {
  WrBuilder& builder = builder_of(qp);
  if (info == nullptr) return builder.refuse({EINVAL, "a bind needs a range to bind to"});
  auto binding = binding_of(mw, *info, rkey);
  if (!binding.ok()) return builder.refuse(binding.error());
  SendRequest* r = builder.add(IBV_QP_EX_WITH_BIND_MW, *qp, SendOp::BindWindow);
  if (r == nullptr) return;
  r->window_rkey = mw->handle;
  r->bind = binding.value();
}

void wr_local_inv(ibv_qp_ex* qp, uint32_t rkey) {
  SendRequest* r = builder_of(qp).add(IBV_QP_EX_WITH_LOCAL_INV, *qp, SendOp::LocalInvalidate);
  if (r != nullptr) r->immediate_or_rkey = rkey;
}

void wr_atomic_write(ibv_qp_ex* qp, uint32_t rkey, uint64_t address, const void* word) {
  const ibv_data_buf buffer{const_cast<void*>(word), sizeof(uint64_t)};
  if (add_remote(qp, IBV_QP_EX_WITH_ATOMIC_WRITE, SendOp::AtomicWrite, rkey, address) != nullptr) {
    builder_of(qp).set_inline(&buffer, 1);
  }
}

void wr_flush(ibv_qp_ex* qp, uint32_t rkey, uint64_t address, size_t length, uint8_t placement,
              uint8_t selectivity) {
  if (length > UINT32_MAX) {
    return builder_of(qp).refuse({EINVAL, "a FLUSH covers less than 4 GiB"});
  }
  SendRequest* r = add_remote(qp, kQpExWithFlush, SendOp::Flush, rkey, address);
  if (r == nullptr) return;
  r->flush.length = static_cast<uint32_t>(length);
  r->flush.placement = placement;
  r->flush.selectivity = selectivity;
}

void wr_set_sge(ibv_qp_ex* qp, uint32_t lkey, uint64_t address, uint32_t length) {
  const ibv_sge sge{address, length, lkey};
  builder_of(qp).set_sges(&sge, 1);
}

void wr_set_sge_list(ibv_qp_ex* qp, size_t count, const ibv_sge* list) {
  builder_of(qp).set_sges(list, count);
}

void wr_set_inline_data(ibv_qp_ex* qp, void* address, size_t length) {
  const ibv_data_buf buffer{address, length};
  builder_of(qp).set_inline(&buffer, 1);
}

void wr_set_inline_data_list(ibv_qp_ex* qp, size_t count, const ibv_data_buf* list) {
  builder_of(qp).set_inline(list, count);
}

void wr_set_ud_addr(ibv_qp_ex* qp, ibv_ah* ah, uint32_t qpn, uint32_t qkey) {
  builder_of(qp).set_address(ah != nullptr ? from(ah)->handle : nullptr, wire::Qpn(qpn), qkey);
}

void wr_set_xrc_srqn(ibv_qp_ex* qp, uint32_t srqn) {
  SendRequest* r = builder_of(qp).last();
  if (r != nullptr) r->remote_srqn = srqn;
}

}  // namespace

// Fills every slot: the inlines call them unchecked. ibv_wr_complete rejects an operation that was
// not requested, instead of a crash.
void fill_builder_table(Qp& qp) {
  qp.wr_start = wr_start;
  qp.wr_complete = wr_complete;
  qp.wr_abort = wr_abort;
  qp.wr_send = wr_send;
  qp.wr_send_imm = wr_send_imm;
  qp.wr_send_inv = wr_send_inv;
  qp.wr_send_tso = wr_send_tso;
  qp.wr_rdma_read = wr_rdma_read;
  qp.wr_rdma_write = wr_rdma_write;
  qp.wr_rdma_write_imm = wr_rdma_write_imm;
  qp.wr_atomic_cmp_swp = wr_atomic_cmp_swp;
  qp.wr_atomic_fetch_add = wr_atomic_fetch_add;
  qp.wr_bind_mw = wr_bind_mw;
  qp.wr_local_inv = wr_local_inv;
  qp.wr_atomic_write = wr_atomic_write;
  qp.wr_flush = wr_flush;
  qp.wr_set_sge = wr_set_sge;
  qp.wr_set_sge_list = wr_set_sge_list;
  qp.wr_set_inline_data = wr_set_inline_data;
  qp.wr_set_inline_data_list = wr_set_inline_data_list;
  qp.wr_set_ud_addr = wr_set_ud_addr;
  qp.wr_set_xrc_srqn = wr_set_xrc_srqn;
}

}  // namespace verbena::abi

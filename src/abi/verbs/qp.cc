// Queue pairs: creation, modification, query and destruction. Posting is in post.cc.
#include <pthread.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>

#include "abi/verbs/c_enum.h"
#include "abi/verbs/context.h"
#include "abi/verbs/errors.h"
#include "abi/verbs/limits.h"
#include "abi/verbs/narrate.h"
#include "abi/verbs/objects.h"
#include "abi/verbs/qp_attributes.h"

namespace verbena::abi {
namespace {

static_assert(IBV_QPT_RC == static_cast<int>(core::QpType::Rc));
static_assert(IBV_QPT_UC == static_cast<int>(core::QpType::Uc));
static_assert(IBV_QPT_UD == static_cast<int>(core::QpType::Ud));
static_assert(IBV_QPT_XRC_SEND == static_cast<int>(core::QpType::XrcSend));
static_assert(IBV_QPT_XRC_RECV == static_cast<int>(core::QpType::XrcReceive));

constexpr Error kNoEce{EOPNOTSUPP, "the device has no options for connections (ECE)"};

Error why_not(unsigned type) {
  switch (type) {
    case IBV_QPT_RAW_PACKET:
      return {EOPNOTSUPP, "raw packet queue pairs are not supported"};
    case IBV_QPT_DRIVER:
      return {EOPNOTSUPP, "driver-specific queue pairs are not supported"};
    default:
      return {EINVAL, "the queue pair type does not exist"};
  }
}

Status check_init(const Pd* pd, const ibv_qp_init_attr& init) {
  const unsigned type = number_of(init.qp_type);
  if (type == IBV_QPT_XRC_RECV) {
    return Error{EINVAL, "an XRC receive queue pair is made by ibv_create_qp_ex, in an XRC domain"};
  }
  if (type != IBV_QPT_RC && type != IBV_QPT_UC && type != IBV_QPT_UD && type != IBV_QPT_XRC_SEND) {
    return why_not(type);
  }
  const bool receives = type != IBV_QPT_XRC_SEND;
  if (init.send_cq == nullptr || (receives && init.recv_cq == nullptr)) {
    return Error{EINVAL, "a queue pair needs a send_cq and (unless it is XRC send) a recv_cq"};
  }
  if (init.send_cq->context != pd->context || (receives && init.recv_cq->context != pd->context)) {
    return Error{EINVAL, "protection domain and completion queues belong to different contexts"};
  }
  if (receives && init.srq != nullptr) {
    if (init.srq->context != pd->context) {
      return Error{EINVAL, "the shared receive queue belongs to another context"};
    }
    if (type == IBV_QPT_UC) {
      return Error{EINVAL, "a UC queue pair cannot use a shared receive queue"};
    }
    if (from(init.srq)->xrcd != nullptr) {
      return Error{EINVAL, "an XRC shared receive queue serves XRC receive queue pairs only"};
    }
  }
  const ibv_qp_cap& cap = init.cap;
  if (cap.max_send_wr > kMaxQpWr || cap.max_recv_wr > kMaxQpWr) {
    return Error{EINVAL, "max_send_wr or max_recv_wr is larger than the device's max_qp_wr"};
  }
  if (cap.max_send_sge > core::kMaxSges || cap.max_recv_sge > core::kMaxSges) {
    return Error{EINVAL, "max_send_sge or max_recv_sge is larger than the device's max_sge"};
  }
  if (cap.max_inline_data > core::kMaxInlineBytes) {
    return Error{EINVAL, "max_inline_data is at most 1024"};
  }
  return {};
}

// A queue pair without its own receive queue ignores the requested size and reports none.
core::QpConfig config_for(const Pd* pd, const ibv_qp_init_attr& init) {
  core::QpConfig config;
  config.type = static_cast<core::QpType>(init.qp_type);
  config.pd = pd->id;
  config.send_cq = &from(init.send_cq)->queue;
  config.max_send_wr = std::max(init.cap.max_send_wr, 1u);
  config.max_send_sge = std::max(init.cap.max_send_sge, kMinSges);
  if (config.type != core::QpType::XrcSend) {
    config.receive_cq = &from(init.recv_cq)->queue;
    if (init.srq != nullptr) {
      config.srq = from(init.srq)->core;
    } else {
      config.max_recv_wr = std::max(init.cap.max_recv_wr, 1u);
      config.max_recv_sge = std::max(init.cap.max_recv_sge, kMinSges);
    }
  }
  config.max_inline = std::max(init.cap.max_inline_data, kMinInline);
  config.signal_all = init.sq_sig_all != 0;
  return config;
}

ibv_qp_cap cap_of(const core::QpConfig& config) {
  return {config.max_send_wr, config.max_recv_wr, config.max_send_sge, config.max_recv_sge,
          config.max_inline};
}

void fill_public(ibv_qp& q, ibv_context* context, const ibv_qp_init_attr& init, wire::Qpn qpn) {
  q.context = context;
  q.qp_context = init.qp_context;
  q.handle = qpn.index();
  q.qp_num = qpn.value();
  q.state = IBV_QPS_RESET;
  q.qp_type = init.qp_type;
  pthread_mutex_init(&q.mutex, nullptr);
  pthread_cond_init(&q.cond, nullptr);
}

// Objects that a queue pair refers to must outlive it.
void count_users(Qp& qp, int change) {
  const ibv_qp& q = qp.qp_base;
  if (q.pd != nullptr && change > 0) from(q.pd)->add_user();
  if (q.pd != nullptr && change < 0) from(q.pd)->drop_user();
  if (q.send_cq != nullptr) from(q.send_cq)->users.fetch_add(change);
  if (q.recv_cq != nullptr) from(q.recv_cq)->users.fetch_add(change);
  if (q.srq != nullptr) from(q.srq)->users.fetch_add(change);
  if (qp.xrcd != nullptr) qp.xrcd->users.fetch_add(change);
}

// `operations`: send_ops_flags of a queue pair with the ibv_wr_* interface.
Result<ibv_qp*> create_qp(Pd* pd, ibv_qp_init_attr* init, std::optional<uint64_t> operations = {}) {
  Context* context = from(pd->context);
  if (context->nic->is_abandoned()) return kDead;
  const Status checked = check_init(pd, *init);
  if (!checked.ok()) return checked.error();
  auto qp = std::make_unique<Qp>();
  qp->nic = context->nic.get();
  qp->owner.object = qp->as_public();
  qp->owner.async_channel = context->async.get();
  core::QpConfig config = config_for(pd, *init);
  if (operations) {
    // The word of ibv_wr_atomic_write is sent as inline data.
    if ((*operations & IBV_QP_EX_WITH_ATOMIC_WRITE) != 0) {
      config.max_inline = std::max<uint32_t>(config.max_inline, sizeof(uint64_t));
    }
    qp->builder = std::make_unique<WrBuilder>(config, *operations, pd->td != nullptr);
    fill_builder_table(*qp);
  }
  auto made = qp->nic->create_qp(config, &qp->owner);
  if (!made.ok()) return made.error();
  qp->core = made.value();
  qp->lane = &qp->nic->lane_of(*qp->core);
  ibv_qp& q = qp->qp_base;
  fill_public(q, pd->context, *init, qp->core->qpn());
  q.pd = pd;
  q.send_cq = init->send_cq;
  if (qp->core->config().receive_cq != nullptr) q.recv_cq = init->recv_cq;
  if (qp->core->config().srq != nullptr) q.srq = init->srq;
  init->cap = cap_of(qp->core->config());
  count_users(*qp, 1);
  context->add_user();
  if (narrating()) narrate_queue_pair(qp->qp_base, init->cap);
  return qp.release()->as_public();
}

// XRC receive. With `qpn`, another handle on the queue pair with this number.
Result<ibv_qp*> xrc_receive_qp(Context* context, Xrcd* xrcd, ibv_qp_init_attr* init,
                               std::optional<wire::Qpn> qpn) {
  if (context->nic->is_abandoned()) return kDead;
  if (xrcd == nullptr || xrcd->context != &context->context) {
    return Error{EINVAL, "an XRC receive queue pair needs an XRC domain of the same context"};
  }
  auto qp = std::make_unique<Qp>();
  qp->nic = context->nic.get();
  qp->owner.object = qp->as_public();
  qp->owner.async_channel = context->async.get();
  core::QpConfig config;
  config.type = core::QpType::XrcReceive;
  config.xrc_domain = xrcd->domain;
  auto made = qpn ? qp->nic->open_qp(*qpn, xrcd->domain, &qp->owner)
                  : qp->nic->create_qp(config, &qp->owner);
  if (!made.ok()) return made.error();
  qp->core = made.value();
  qp->lane = &qp->nic->lane_of(*qp->core);
  qp->xrcd = xrcd;
  fill_public(qp->qp_base, &context->context, *init, qp->core->qpn());
  {
    runtime::Nic::Guard guard(*qp->lane);
    qp->qp_base.state = static_cast<ibv_qp_state>(qp->core->state());
  }
  init->cap = {};
  count_users(*qp, 1);
  context->add_user();
  if (narrating()) narrate_queue_pair(qp->qp_base, init->cap);
  return qp.release()->as_public();
}

Result<ibv_qp*> create_qp_extended(Context* context, ibv_qp_init_attr_ex* init) {
  const uint32_t mask = init->comp_mask;
  constexpr uint32_t kKnown = (IBV_QP_INIT_ATTR_SEND_OPS_FLAGS << 1) - 1;
  if ((mask & ~kKnown) != 0) return Error{EINVAL, "comp_mask has a bit that does not exist"};
  // The plain attributes are a prefix of the extended ones.
  auto* plain = reinterpret_cast<ibv_qp_init_attr*>(init);
  if (number_of(init->qp_type) == IBV_QPT_XRC_RECV) {
    if ((mask & ~uint32_t{IBV_QP_INIT_ATTR_PD}) != IBV_QP_INIT_ATTR_XRCD) {
      return Error{EINVAL, "an XRC receive queue pair takes IBV_QP_INIT_ATTR_XRCD and no more"};
    }
    return xrc_receive_qp(context, from(init->xrcd), plain, {});
  }
  if ((mask & IBV_QP_INIT_ATTR_PD) == 0 || init->pd == nullptr) {
    return Error{EINVAL, "a queue pair needs a protection domain (IBV_QP_INIT_ATTR_PD)"};
  }
  if (init->pd->context != &context->context) {
    return Error{EINVAL, "the protection domain belongs to another context"};
  }
  std::optional<uint64_t> operations;
  if ((mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0) {
    operations = init->send_ops_flags;
    const Status checked = check_operations(number_of(init->qp_type), *operations);
    if (!checked.ok()) return checked.error();
  }
  if ((mask & ~uint32_t{IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS |
                        IBV_QP_INIT_ATTR_SEND_OPS_FLAGS}) != 0 ||
      ((mask & IBV_QP_INIT_ATTR_CREATE_FLAGS) != 0 && init->create_flags != 0)) {
    return Error{EOPNOTSUPP, "creation flags, XRC, TSO and receive hashing are not supported"};
  }
  return create_qp(from(init->pd), plain, operations);
}

Result<ibv_qp*> open_existing(Context* context, const ibv_qp_open_attr& open) {
  constexpr uint32_t kNeeded = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
  if ((open.comp_mask & kNeeded) != kNeeded || open.comp_mask >= IBV_QP_OPEN_ATTR_RESERVED) {
    return Error{EINVAL, "ibv_open_qp needs qp_num, xrcd and qp_type"};
  }
  if (number_of(open.qp_type) != IBV_QPT_XRC_RECV) {
    return Error{EINVAL, "only XRC receive queue pairs can be opened"};
  }
  ibv_qp_init_attr init{};
  init.qp_type = open.qp_type;
  if ((open.comp_mask & IBV_QP_OPEN_ATTR_CONTEXT) != 0) init.qp_context = open.qp_context;
  return xrc_receive_qp(context, from(open.xrcd), &init, wire::Qpn(open.qp_num));
}

// XRC has one half of RC. Attributes of the other half are ignored, not rejected.
int without_absent_half(ibv_qp_type type, int mask) {
  switch (type) {
    case IBV_QPT_XRC_SEND:
      return mask & ~(IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    case IBV_QPT_XRC_RECV:
      return mask & ~(IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY);
    default:
      return mask;
  }
}

Status limit_rate(Qp* qp, const ibv_qp_rate_limit_attr& attr) {
  if (qp->nic->is_abandoned()) return kDead;
  if (attr.comp_mask != 0) return Error{EINVAL, "comp_mask has a bit that does not exist"};
  if (qp->core->type() == core::QpType::XrcReceive) {
    return Error{EINVAL, "an XRC receive queue pair does not send, so it has no rate limit"};
  }
  const bool limited = attr.rate_limit != 0;
  if (limited && (attr.rate_limit < core::kMinRateKbps || attr.rate_limit > core::kMaxRateKbps)) {
    return Error{EINVAL, "rate_limit is beyond the device's packet_pacing_caps"};
  }
  if (!limited && (attr.max_burst_sz != 0 || attr.typical_pkt_sz != 0)) {
    return Error{EINVAL, "a burst needs a rate_limit"};
  }
  runtime::Nic::Guard guard(*qp->lane);
  if (qp->core->state() == core::QpState::Reset) {
    return Error{EINVAL, "the QP is in RESET, which clears the limit"};
  }
  const Instant now = guard.lane().time();
  guard.engine().set_rate_limit(*qp->core, attr.rate_limit, attr.max_burst_sz, now);
  guard.lane().after_post(*qp->core);
  return {};
}

// As in hardware drivers, unpolled completions are dropped with a queue pair that is destroyed or
// reset. Those of other queue pairs stay, in order. An event that was raised for a dropped one
// stays too, since a program must expect empty wake-ups. (An XRC receive queue pair has no
// completion queue itself.)
void drop_completions(const Qp& qp, wire::Qpn qpn) {
  for (ibv_cq* cq : {qp.qp_base.send_cq, qp.qp_base.recv_cq}) {
    if (cq == nullptr) continue;
    const std::lock_guard lock(from(cq)->poll_lock);
    from(cq)->queue.forget(qpn);
  }
}

Status modify_qp(Qp* qp, const ibv_qp_attr& attr, int mask) {
  if (qp->nic->is_abandoned()) return kDead;
  if ((mask & IBV_QP_PATH_MIG_STATE) != 0 && number_of(attr.path_mig_state) != IBV_MIG_MIGRATED) {
    return Error{EINVAL, "there is no alternate path: path_mig_state is always IBV_MIG_MIGRATED"};
  }
  if ((mask & IBV_QP_AV) != 0 && attr.ah_attr.port_num != 1) {
    return Error{EINVAL, "ah_attr.port_num must be 1"};
  }
  mask = without_absent_half(qp->qp_base.qp_type, mask);
  const Status modified = qp->nic->modify_qp(*qp->core, to_core(attr), static_cast<uint32_t>(mask));
  if (modified.ok() && narrating()) narrate_change(qp->qp_base, qp->qp_base.state, attr, mask);
  if (modified.ok() && (mask & IBV_QP_STATE) != 0) {
    qp->qp_base.state = attr.qp_state;
    if (number_of(attr.qp_state) == IBV_QPS_RESET) drop_completions(*qp, qp->core->qpn());
  }
  return modified;
}

Status query_qp(Qp* qp, ibv_qp_attr* attr, ibv_qp_init_attr* init) {
  const core::QpConfig& config = qp->core->config();
  {
    runtime::Nic::Guard guard(*qp->lane);
    const core::QpAttributes now = qp->core->query();
    *attr = to_public(now, now.state == core::QpState::Sqd && !qp->core->nothing_outstanding());
  }
  attr->cap = cap_of(config);
  const ibv_qp& q = qp->qp_base;
  *init = {};
  init->qp_context = q.qp_context;
  init->send_cq = q.send_cq;
  init->recv_cq = q.recv_cq;
  init->srq = q.srq;
  init->cap = attr->cap;
  init->qp_type = q.qp_type;
  init->sq_sig_all = config.signal_all ? 1 : 0;
  qp->qp_base.state = attr->qp_state;
  return {};
}

Status destroy_qp(Qp* qp) {
  ibv_qp& q = qp->qp_base;
  Context* context = from(q.context);
  if (!qp->nic->is_abandoned()) {
    const wire::Qpn qpn = qp->core->qpn();
    const Status destroyed = qp->nic->destroy_qp(qp->core, &qp->owner);
    if (!destroyed.ok()) return destroyed;
    drop_completions(*qp, qpn);
    context->async->forget(&q);
    pthread_mutex_lock(&q.mutex);
    while (q.events_completed != qp->async_events_taken) pthread_cond_wait(&q.cond, &q.mutex);
    pthread_mutex_unlock(&q.mutex);
  }
  count_users(*qp, -1);
  detach_counters(*qp);
  pthread_cond_destroy(&q.cond);
  pthread_mutex_destroy(&q.mutex);
  delete qp;
  context->drop_user();
  return {};
}

}  // namespace

int modify_qp_rate_limit(ibv_qp* qp, ibv_qp_rate_limit_attr* attr) {
  return status_of("ibv_modify_qp_rate_limit", [&] { return limit_rate(from(qp), *attr); });
}

ibv_qp* create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* attr) {
  return object_of<ibv_qp>("ibv_create_qp_ex",
                           [&] { return create_qp_extended(from(context), attr); });
}

ibv_qp* open_qp(ibv_context* context, ibv_qp_open_attr* attr) {
  return object_of<ibv_qp>("ibv_open_qp", [&] { return open_existing(from(context), *attr); });
}

}  // namespace verbena::abi

using namespace verbena;
using namespace verbena::abi;

extern "C" {

VERBENA_EXPORT ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* attr) {
  return object_of<ibv_qp>("ibv_create_qp", [&] { return create_qp(from(pd), attr); });
}

VERBENA_EXPORT int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attr, int attr_mask) {
  return status_of("ibv_modify_qp", [&] { return modify_qp(from(qp), *attr, attr_mask); });
}

VERBENA_EXPORT int ibv_query_qp(ibv_qp* qp, ibv_qp_attr* attr, int, ibv_qp_init_attr* init_attr) {
  return status_of("ibv_query_qp", [&] { return query_qp(from(qp), attr, init_attr); });
}

VERBENA_EXPORT int ibv_destroy_qp(ibv_qp* qp) {
  return status_of("ibv_destroy_qp", [&] { return destroy_qp(from(qp)); });
}

// Only queue pairs made with IBV_QP_INIT_ATTR_SEND_OPS_FLAGS have the ibv_wr_* functions.
VERBENA_EXPORT ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp* qp) {
  return from(qp)->builder != nullptr ? from(qp) : nullptr;
}

// 1 would promise that data is placed in memory in order. Only the last byte is.
VERBENA_EXPORT int ibv_query_qp_data_in_order(ibv_qp*, ibv_wr_opcode, uint32_t) { return 0; }

// Enhanced connection establishment is for options of a vendor's hardware. There are none, so both
// calls return what rdma-core returns for a driver without it; programs then skip it.
VERBENA_EXPORT int ibv_set_ece(ibv_qp*, ibv_ece*) { return refuse("ibv_set_ece", kNoEce); }

VERBENA_EXPORT int ibv_query_ece(ibv_qp*, ibv_ece*) { return refuse("ibv_query_ece", kNoEce); }

}  // extern "C"

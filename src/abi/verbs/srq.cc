// Shared receive queues: creation, modification, query and destruction. Posting is in post.cc.
#include <pthread.h>

#include <algorithm>
#include <memory>

#include "abi/verbs/c_enum.h"
#include "abi/verbs/context.h"
#include "abi/verbs/errors.h"
#include "abi/verbs/limits.h"
#include "abi/verbs/objects.h"

namespace verbena::abi {
namespace {

Result<ibv_srq*> create(Pd* pd, void* srq_context, ibv_srq_attr& attr, Xrcd* xrcd, Cq* cq) {
  Context* context = from(pd->context);
  if (context->nic->is_abandoned()) return kDead;
  if (attr.max_wr > kMaxSrqWr)
    return Error{EINVAL, "max_wr is larger than the device's max_srq_wr"};
  if (attr.max_sge > core::kMaxSges) {
    return Error{EINVAL, "max_sge is larger than the device's max_srq_sge"};
  }
  core::SrqConfig config;
  config.pd = pd->id;
  config.max_wr = std::max(attr.max_wr, 1u);
  config.max_sges = std::max(attr.max_sge, 1u);
  if (xrcd != nullptr) {
    config.xrc_domain = xrcd->domain;
    config.cq = &cq->queue;
  }
  auto srq = std::make_unique<Srq>();
  if (context->device->srqs.fetch_add(1) >= static_cast<int>(kMaxSrqs)) {
    context->device->srqs.fetch_sub(1);
    return Error{ENOMEM, "too many shared receive queues (see max_srq)"};
  }
  srq->nic = context->nic.get();
  srq->owner.object = static_cast<ibv_srq*>(srq.get());
  srq->owner.async_channel = context->async.get();
  try {
    srq->core = srq->nic->create_srq(config, &srq->owner);
  } catch (...) {
    context->device->srqs.fetch_sub(1);
    throw;
  }
  srq->xrcd = xrcd;
  srq->cq = cq;
  srq->context = pd->context;
  srq->srq_context = srq_context;
  srq->pd = pd;
  srq->handle = srq->core->number();
  pthread_mutex_init(&srq->mutex, nullptr);
  pthread_cond_init(&srq->cond, nullptr);
  attr.max_wr = config.max_wr;
  attr.max_sge = config.max_sges;
  pd->add_user();
  if (xrcd != nullptr) xrcd->users.fetch_add(1);
  if (cq != nullptr) cq->users.fetch_add(1);
  context->add_user();
  return srq.release();
}

Result<ibv_srq*> create_extended(Context* context, ibv_srq_init_attr_ex& init) {
  const uint32_t mask = init.comp_mask;
  if (mask >= IBV_SRQ_INIT_ATTR_RESERVED) {
    return Error{EINVAL, "comp_mask has a bit that does not exist"};
  }
  if ((mask & IBV_SRQ_INIT_ATTR_PD) == 0 || init.pd == nullptr) {
    return Error{EINVAL, "a shared receive queue needs a protection domain"};
  }
  if (init.pd->context != &context->context) {
    return Error{EINVAL, "the protection domain belongs to another context"};
  }
  const unsigned type =
      (mask & IBV_SRQ_INIT_ATTR_TYPE) != 0 ? number_of(init.srq_type) : unsigned{IBV_SRQT_BASIC};
  switch (type) {
    case IBV_SRQT_BASIC:
      return create(from(init.pd), init.srq_context, init.attr, nullptr, nullptr);
    case IBV_SRQT_XRC:
      break;
    case IBV_SRQT_TM:
      return Error{EOPNOTSUPP, "tag matching is not supported"};
    default:
      return Error{EINVAL, "no such type of shared receive queue"};
  }
  constexpr uint32_t kNeeded = IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
  if ((mask & kNeeded) != kNeeded || init.xrcd == nullptr || init.cq == nullptr) {
    return Error{EINVAL, "an XRC shared receive queue needs an XRC domain and a completion queue"};
  }
  if (init.xrcd->context != &context->context || init.cq->context != &context->context) {
    return Error{EINVAL, "XRC domain and completion queue must belong to the same context"};
  }
  return create(from(init.pd), init.srq_context, init.attr, from(init.xrcd), from(init.cq));
}

Status modify(Srq* srq, const ibv_srq_attr& attr, int mask) {
  if (srq->nic->is_abandoned()) return kDead;
  if ((mask & ~(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT)) != 0) {
    return Error{EINVAL, "only max_wr and srq_limit can be changed"};
  }
  std::optional<uint32_t> max_wr, limit;
  if ((mask & IBV_SRQ_MAX_WR) != 0) max_wr = attr.max_wr;
  if ((mask & IBV_SRQ_LIMIT) != 0) limit = attr.srq_limit;
  if (max_wr.value_or(0) > kMaxSrqWr) {
    return Error{EINVAL, "max_wr is larger than the device's max_srq_wr"};
  }
  return srq->nic->modify_srq(*srq->core, max_wr, limit);
}

Status query(Srq* srq, ibv_srq_attr* attr) {
  runtime::Nic::Guard guard(*srq->nic);
  *attr = {srq->core->config().max_wr, srq->core->config().max_sges, srq->core->limit()};
  return {};
}

Status destroy(Srq* srq) {
  if (srq->users.load() != 0) return Error{EBUSY, "queue pairs still use this receive queue"};
  Context* context = from(srq->context);
  if (!srq->nic->is_abandoned()) {
    srq->nic->destroy_srq(srq->core);
    context->async->forget(srq->owner.object);
    pthread_mutex_lock(&srq->mutex);
    while (srq->events_completed != srq->async_events_taken) {
      pthread_cond_wait(&srq->cond, &srq->mutex);
    }
    pthread_mutex_unlock(&srq->mutex);
  }
  from(srq->pd)->drop_user();
  if (srq->xrcd != nullptr) srq->xrcd->users.fetch_sub(1);
  if (srq->cq != nullptr) srq->cq->users.fetch_sub(1);
  context->device->srqs.fetch_sub(1);
  pthread_cond_destroy(&srq->cond);
  pthread_mutex_destroy(&srq->mutex);
  delete srq;
  context->drop_user();
  return {};
}

}  // namespace

ibv_srq* create_srq_ex(ibv_context* context, ibv_srq_init_attr_ex* init) {
  return object_of<ibv_srq>("ibv_create_srq_ex",
                            [&] { return create_extended(from(context), *init); });
}

int get_srq_num(ibv_srq* srq, uint32_t* number) {
  *number = from(srq)->core->number();
  return 0;
}

}  // namespace verbena::abi

using namespace verbena;
using namespace verbena::abi;

extern "C" {

VERBENA_EXPORT ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* init) {
  return object_of<ibv_srq>("ibv_create_srq", [&] {
    return create(from(pd), init->srq_context, init->attr, nullptr, nullptr);
  });
}

VERBENA_EXPORT int ibv_modify_srq(ibv_srq* srq, ibv_srq_attr* attr, int mask) {
  return status_of("ibv_modify_srq", [&] { return modify(from(srq), *attr, mask); });
}

VERBENA_EXPORT int ibv_query_srq(ibv_srq* srq, ibv_srq_attr* attr) {
  return status_of("ibv_query_srq", [&] { return query(from(srq), attr); });
}

VERBENA_EXPORT int ibv_destroy_srq(ibv_srq* srq) {
  return status_of("ibv_destroy_srq", [&] { return destroy(from(srq)); });
}

}  // extern "C"

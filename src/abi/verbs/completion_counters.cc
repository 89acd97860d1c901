// Completion counters (IBVERBS_1.18): the number of completed work requests, or of their bytes,
// without a completion for each. Operations of peers are not counted: one-sided access through
// shared memory does not involve this process.
#include <cstring>
#include <memory>

#include "abi/verbs/errors.h"
#include "abi/verbs/limits.h"
#include "abi/verbs/objects.h"

namespace verbena::abi {
namespace {

using Kind = core::OperationCounters::Kind;

struct CountedOperation {
  uint32_t bit;  // ibv_qp_attach_comp_cntr_op
  Kind kind;
};
constexpr CountedOperation kOperations[] = {{kCountSends, Kind::kSend},
                                            {kCountReceives, Kind::kReceive},
                                            {kCountReads, Kind::kRead},
                                            {kCountWrites, Kind::kWrite}};
constexpr uint32_t kSupported = kCountSends | kCountReceives | kCountReads | kCountWrites;

Status query_capabilities(void* caps, size_t caps_bytes) {
  const CounterCapabilities ours{UINT64_MAX, kMaxCompletionCounters, kSupported};
  if (caps_bytes < sizeof ours) return Error{EINVAL, "the structure is too small"};
  std::memset(caps, 0, caps_bytes);
  std::memcpy(caps, &ours, sizeof ours);
  return {};
}

Result<PublicCounter*> create(Context* context, const CounterInit& init) {
  if (init.comp_mask != 0 || init.flags != 0) {
    return Error{EINVAL, "comp_mask and flags must be 0"};
  }
  if (init.type != kCountWorkRequests && init.type != kCountBytes) {
    return Error{EINVAL, "a completion counter counts work requests or bytes"};
  }
  auto counter = std::make_unique<CompletionCounter>();
  if (context->device->completion_counters.fetch_add(1) >=
      static_cast<int>(kMaxCompletionCounters)) {
    context->device->completion_counters.fetch_sub(1);
    return Error{ENOMEM, "too many completion counters (see max_counters)"};
  }
  counter->context = &context->context;
  counter->handle = context->last_counter.fetch_add(1) + 1;
  counter->core.counts_bytes = init.type == kCountBytes;
  context->add_user();
  return counter.release();
}

Status destroy(CompletionCounter* counter) {
  if (counter->users.load() != 0) {
    return Error{EBUSY, "queue pairs that it is attached to remain"};
  }
  Context* context = from(counter->context);
  context->device->completion_counters.fetch_sub(1);
  delete counter;
  context->drop_user();
  return {};
}

Status check_attach(const Qp& qp, const CompletionCounter& counter, const CounterAttach& attach) {
  if (qp.nic->is_abandoned()) return kDead;
  if (attach.comp_mask != 0) return Error{EINVAL, "comp_mask has a bit that does not exist"};
  if (attach.operations == 0) return Error{EINVAL, "op_mask names no operation"};
  if ((attach.operations & ~kSupported) != 0) {
    return Error{EOPNOTSUPP, "op_mask names an operation that is not counted (see the caps)"};
  }
  if (qp.core->type() == core::QpType::XrcReceive) {
    return Error{EOPNOTSUPP, "an XRC receive queue pair has no completions of its own"};
  }
  if (counter.context != qp.qp_base.context) {
    return Error{EINVAL, "the completion counter belongs to another context"};
  }
  return {};
}

Status attach_to(Qp* qp, CompletionCounter* counter, const CounterAttach& attach) {
  const Status checked = check_attach(*qp, *counter, attach);
  if (!checked.ok()) return checked;
  runtime::Nic::Guard guard(*qp->lane);
  const core::QpState state = qp->core->state();
  if (state != core::QpState::Reset && state != core::QpState::Init) {
    return Error{EINVAL, "a completion counter is attached in RESET or INIT"};
  }
  for (const auto& [bit, kind] : kOperations) {
    if ((attach.operations & bit) != 0 && qp->counters.of[kind] != nullptr) {
      return Error{EBUSY, "another counter is attached for one of these operations"};
    }
  }
  for (const auto& [bit, kind] : kOperations) {
    if ((attach.operations & bit) == 0) continue;
    qp->counters.of[kind] = &counter->core;
    qp->attached[kind] = counter;
    counter->users.fetch_add(1);
  }
  counter->lanes.add(*qp->lane);
  qp->core->count_through(&qp->counters);
  return {};
}

// Makes progress first: a program may do nothing but read the counter in a loop.
int read(const CompletionCounter& counter, const std::atomic<uint64_t>& value, uint64_t* into) {
  return without_exceptions([&] {
    const auto& nic = from(counter.context)->nic;
    if (!nic->is_abandoned()) {
      nic->lanes().each_of(counter.lanes, [](runtime::Lane& lane) { lane.turn_for_poller(); });
    }
    *into = value.load(std::memory_order_acquire);
    return 0;
  });
}

}  // namespace

void detach_counters(Qp& qp) {
  for (CompletionCounter* counter : qp.attached) {
    if (counter != nullptr) counter->users.fetch_sub(1);
  }
}

}  // namespace verbena::abi

using namespace verbena;
using namespace verbena::abi;

extern "C" {

VERBENA_EXPORT int _ibv_query_comp_cntr_caps(ibv_context*, void* caps, size_t caps_size) {
  return status_of("ibv_query_comp_cntr_caps", [&] { return query_capabilities(caps, caps_size); });
}

VERBENA_EXPORT PublicCounter* ibv_create_comp_cntr(ibv_context* context, CounterInit* attr) {
  return object_of<PublicCounter>("ibv_create_comp_cntr",
                                  [&] { return create(from(context), *attr); });
}

VERBENA_EXPORT int ibv_destroy_comp_cntr(PublicCounter* counter) {
  return status_of("ibv_destroy_comp_cntr", [&] { return destroy(from(counter)); });
}

VERBENA_EXPORT int ibv_qp_attach_comp_cntr(ibv_qp* qp, PublicCounter* counter,
                                           CounterAttach* attr) {
  return status_of("ibv_qp_attach_comp_cntr",
                   [&] { return attach_to(from(qp), from(counter), *attr); });
}

VERBENA_EXPORT int ibv_set_comp_cntr(PublicCounter* counter, uint64_t value) {
  from(counter)->core.completed.store(value);
  return 0;
}

VERBENA_EXPORT int ibv_set_err_comp_cntr(PublicCounter* counter, uint64_t value) {
  from(counter)->core.failed.store(value);
  return 0;
}

VERBENA_EXPORT int ibv_inc_comp_cntr(PublicCounter* counter, uint64_t amount) {
  from(counter)->core.completed.fetch_add(amount);
  return 0;
}

VERBENA_EXPORT int ibv_inc_err_comp_cntr(PublicCounter* counter, uint64_t amount) {
  from(counter)->core.failed.fetch_add(amount);
  return 0;
}

VERBENA_EXPORT int ibv_read_comp_cntr(PublicCounter* counter, uint64_t* value) {
  return read(*from(counter), from(counter)->core.completed, value);
}

VERBENA_EXPORT int ibv_read_err_comp_cntr(PublicCounter* counter, uint64_t* value) {
  return read(*from(counter), from(counter)->core.failed, value);
}

}  // extern "C"

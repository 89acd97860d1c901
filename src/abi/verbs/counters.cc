// Counters objects. They count packets of flows, and there are no flows here: they can be created,
// but nothing can be attached to them.
#include <memory>

#include "abi/verbs/context.h"
#include "abi/verbs/errors.h"
#include "abi/verbs/objects.h"

namespace verbena::abi {

ibv_counters* create_counters(ibv_context* public_context, ibv_counters_init_attr* init) {
  return object_of<ibv_counters>("ibv_create_counters", [&]() -> Result<ibv_counters*> {
    Context* context = from(public_context);
    if (init != nullptr && init->comp_mask != 0) {
      return Error{EINVAL, "comp_mask has a bit that does not exist"};
    }
    auto counters = std::make_unique<ibv_counters>();
    counters->context = public_context;
    context->add_user();
    return counters.release();
  });
}

int destroy_counters(ibv_counters* counters) {
  Context* context = from(counters->context);
  delete counters;
  context->drop_user();
  return 0;
}

int attach_counters_point_flow(ibv_counters*, ibv_counter_attach_attr*, ibv_flow*) {
  return refuse("ibv_attach_counters_point_flow",
                {EOPNOTSUPP, "flow steering is not supported, so there is nothing to count"});
}

int read_counters(ibv_counters*, uint64_t*, uint32_t count, uint32_t flags) {
  return status_of("ibv_read_counters", [&]() -> Status {
    if ((flags & ~uint32_t{IBV_READ_COUNTERS_ATTR_PREFER_CACHED}) != 0) {
      return Error{EINVAL, "flags has a bit that does not exist"};
    }
    if (count != 0) return Error{EINVAL, "no counter is attached"};
    return {};
  });
}

}  // namespace verbena::abi

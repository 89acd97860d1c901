// Protection domains.
#include <atomic>
#include <memory>

#include "abi/verbs/context.h"
#include "abi/verbs/errors.h"
#include "abi/verbs/limits.h"
#include "abi/verbs/objects.h"

namespace verbena::abi {
namespace {

// Unique in the process, hence on every Nic. A number is never reused.
uint32_t next_id() {
  static std::atomic<uint32_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

Result<ibv_pd*> alloc_pd(Context* context) {
  auto pd = std::make_unique<Pd>();
  if (context->device->pds.fetch_add(1) >= static_cast<int>(kMaxPds)) {
    context->device->pds.fetch_sub(1);
    return Error{ENOMEM, "too many protection domains (see max_pd)"};
  }
  pd->id = next_id();
  pd->context = &context->context;
  pd->handle = pd->id;
  list_pd(*context, pd.get());
  context->add_user();
  return pd.release();
}

// A domain leaves the list before its users are counted, so that it cannot be imported after that.
Status dealloc_pd(Pd* pd) {
  Context* context = from(pd->context);
  const bool own = pd->kind == Pd::Kind::Own;
  if (own) unlist_pd(*context, pd);
  if (pd->has_objects()) {
    if (own) list_pd(*context, pd);
    return Error{
        EBUSY,
        "memory regions, windows, queue pairs, address handles, parent or imported domains of this "
        "protection domain remain"};
  }
  if (own) {
    context->device->pds.fetch_sub(1);
  } else {
    pd->stands_for->drop_user();
    if (pd->td != nullptr) pd->td->users.fetch_sub(1);
  }
  pd->drop_user();
  return {};
}

}  // namespace

void Pd::drop_user() {
  if (users.fetch_sub(1) != 1) return;
  Context* owner = from(context);
  delete this;
  owner->drop_user();
}

}  // namespace verbena::abi

using namespace verbena;
using namespace verbena::abi;

extern "C" {

VERBENA_EXPORT ibv_pd* ibv_alloc_pd(ibv_context* context) {
  return object_of<ibv_pd>("ibv_alloc_pd", [&] { return alloc_pd(from(context)); });
}

VERBENA_EXPORT int ibv_dealloc_pd(ibv_pd* pd) {
  return status_of("ibv_dealloc_pd", [&] { return dealloc_pd(from(pd)); });
}

}  // extern "C"

// Memory windows: allocated here, bound by work requests.
#include <memory>

#include "abi/verbs/c_enum.h"
#include "abi/verbs/context.h"
#include "abi/verbs/errors.h"
#include "abi/verbs/objects.h"

namespace verbena::abi {
namespace {

static_assert(IBV_MW_TYPE_1 == static_cast<int>(core::WindowType::Type1));
static_assert(IBV_MW_TYPE_2 == static_cast<int>(core::WindowType::Type2));

Result<ibv_mw*> allocate_window(Pd* pd, unsigned type) {
  Context* context = from(pd->context);
  if (type != IBV_MW_TYPE_1 && type != IBV_MW_TYPE_2) {
    return Error{EINVAL, "a memory window is of type 1 or 2"};
  }
  auto mw = std::make_unique<Mw>();
  auto key = context->nic->memory().add_window(pd->id, static_cast<core::WindowType>(type));
  if (!key.ok()) return key.error();
  mw->rkey = mw->handle = key.value();
  mw->context = pd->context;
  mw->pd = pd;
  mw->type = static_cast<ibv_mw_type>(type);
  pd->add_user();
  context->add_user();
  return mw.release();
}

Status free_window(Mw* mw) {
  Context* context = from(mw->context);
  const Status removed = context->nic->memory().remove_window(mw->handle);
  if (!removed.ok()) return removed;
  from(mw->pd)->drop_user();
  delete mw;
  context->drop_user();
  return {};
}

}  // namespace

ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type) {
  return object_of<ibv_mw>("ibv_alloc_mw",
                           [&] { return allocate_window(from(pd), number_of(type)); });
}

int dealloc_mw(ibv_mw* mw) {
  return status_of("ibv_dealloc_mw", [&] { return free_window(from(mw)); });
}

}  // namespace verbena::abi

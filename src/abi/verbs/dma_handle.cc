// DMA handles: hints for PCIe transactions (which CPU's cache, what kind of memory). There are no
// such transactions here, so a handle only has to be valid and to be counted.
#include <memory>

#include "abi/verbs/errors.h"
#include "abi/verbs/memory_region.h"
#include "abi/verbs/objects.h"

namespace verbena::abi {
namespace {

constexpr uint8_t kMaxHint = 3;        // two bits in a PCIe header
constexpr uint8_t kMaxMemoryType = 1;  // volatile, persistent

Result<DmaHandle*> allocate(Context* context, const DmaHandleInit& init) {
  if (context->nic->dead()) return kDead;
  const uint32_t mask = init.comp_mask;
  if ((mask & ~(kDmaHandleCpu | kDmaHandleHint | kDmaHandleMemoryType)) != 0) {
    return Error{EINVAL, "a comp_mask bit that does not exist"};
  }
  if ((mask & kDmaHandleHint) != 0 && init.processing_hint > kMaxHint) {
    return Error{EINVAL, "a processing hint is at most 3"};
  }
  if ((mask & kDmaHandleMemoryType) != 0 && init.memory_type > kMaxMemoryType) {
    return Error{EINVAL, "a memory type that does not exist"};
  }
  auto handle = std::make_unique<DmaHandle>();
  handle->context = &context->context;
  context->add_user();
  return handle.release();
}

}  // namespace

DmaHandle* alloc_dmah(ibv_context* context, DmaHandleInit* init) {
  return object_of<DmaHandle>("ibv_alloc_dmah", [&] { return allocate(from(context), *init); });
}

int dealloc_dmah(DmaHandle* handle) {
  Context* context = from(handle->context);
  delete handle;
  context->drop_user();
  return 0;
}

}  // namespace verbena::abi

using namespace verbena::abi;

extern "C" {

VERBENA_EXPORT DmaHandle* ibv_alloc_dmah(ibv_context* context, DmaHandleInit* init) {
  return alloc_dmah(context, init);
}

VERBENA_EXPORT int ibv_dealloc_dmah(DmaHandle* handle) { return dealloc_dmah(handle); }

}  // extern "C"

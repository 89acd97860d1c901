// DMA handles: hints for PCIe transactions (the CPU's cache, the kind of memory). There are no such
// transactions here, so a handle only has to be valid and counted.
#include <sched.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <memory>

#include "abi/verbs/errors.h"
#include "abi/verbs/memory_region.h"
#include "abi/verbs/objects.h"

namespace verbena::abi {
namespace {

constexpr uint8_t kMaxHint = 3;        // two bits in a PCIe header
constexpr uint8_t kMaxMemoryType = 1;  // volatile, persistent

// Whether the CPU is one that the calling thread may run on.
Status check_cpu(uint32_t cpu) {
  const int cpus = std::max(get_nprocs_conf(), CPU_SETSIZE);
  const std::unique_ptr<cpu_set_t, decltype([](cpu_set_t* s) { CPU_FREE(s); })> permitted(
      CPU_ALLOC(static_cast<size_t>(cpus)));
  if (permitted == nullptr) return kNoMemory;
  const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(cpus));
  CPU_ZERO_S(bytes, permitted.get());
  if (sched_getaffinity(0, bytes, permitted.get()) != 0) {
    return Error{errno, "cannot query the CPUs that the thread may run on"};
  }
  if (CPU_ISSET_S(cpu, bytes, permitted.get())) return {};
  if (cpu >= static_cast<uint32_t>(get_nprocs_conf())) {
    return Error{EINVAL, "cpu_id names a CPU that does not exist"};
  }
  return Error{EPERM, "the calling thread may not run on the CPU that cpu_id names"};
}

Result<DmaHandle*> allocate(Context* context, const DmaHandleInit& init) {
  const uint32_t mask = init.comp_mask;
  if ((mask & ~(kDmaHandleCpu | kDmaHandleHint | kDmaHandleMemoryType)) != 0) {
    return Error{EINVAL, "comp_mask has a bit that does not exist"};
  }
  if ((mask & kDmaHandleHint) != 0 && init.processing_hint > kMaxHint) {
    return Error{EINVAL, "a processing hint is at most 3"};
  }
  if ((mask & kDmaHandleMemoryType) != 0 && init.memory_type > kMaxMemoryType) {
    return Error{EINVAL, "the memory type does not exist"};
  }
  if ((mask & kDmaHandleCpu) != 0) {
    const Status usable = check_cpu(init.cpu_id);
    if (!usable.ok()) return usable.error();
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
  return status_of("ibv_dealloc_dmah", [&]() -> Status {
    if (handle->regions.load() != 0) {
      return Error{EBUSY, "memory regions that were registered with this DMA handle remain"};
    }
    Context* context = from(handle->context);
    delete handle;
    context->drop_user();
    return {};
  });
}

}  // namespace verbena::abi

using namespace verbena::abi;

extern "C" {

VERBENA_EXPORT DmaHandle* ibv_alloc_dmah(ibv_context* context, DmaHandleInit* init) {
  return alloc_dmah(context, init);
}

VERBENA_EXPORT int ibv_dealloc_dmah(DmaHandle* handle) { return dealloc_dmah(handle); }

}  // extern "C"

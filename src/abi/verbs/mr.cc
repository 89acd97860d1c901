// Memory regions.
#include <memory>

#include "abi/verbs/c_enum.h"
#include "abi/verbs/context.h"
#include "abi/verbs/errors.h"
#include "abi/verbs/mapped_memory.h"
#include "abi/verbs/objects.h"

#undef ibv_reg_mr
#undef ibv_reg_mr_iova

namespace verbena::abi {
namespace {

static_assert(IBV_ACCESS_LOCAL_WRITE == core::kLocalWrite);
static_assert(IBV_ACCESS_REMOTE_WRITE == core::kRemoteWrite);
static_assert(IBV_ACCESS_REMOTE_READ == core::kRemoteRead);
static_assert(IBV_ACCESS_REMOTE_ATOMIC == core::kRemoteAtomic);
static_assert(IBV_ACCESS_MW_BIND == core::kWindowBind);
static_assert(IBV_ACCESS_ZERO_BASED == core::kZeroBased);

constexpr unsigned kKnownAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                  IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
                                  IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED |
                                  IBV_ACCESS_ON_DEMAND | IBV_ACCESS_HUGETLB;
// A window on the region may be given write access later.
constexpr unsigned kWritingAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                    IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND;
constexpr uint32_t kEngineAccess = core::kLocalWrite | core::kRemoteWrite | core::kRemoteRead |
                                   core::kRemoteAtomic | core::kWindowBind;

Status check_request(uintptr_t address, size_t length, unsigned access) {
  if ((access & ~kKnownAccess) != 0) return Error{EINVAL, "an access flag that does not exist"};
  if (address == 0 && length == SIZE_MAX) {
    return Error{EOPNOTSUPP, "registering the whole address space (implicit ODP) is not supported"};
  }
  if (address + length < address) return Error{EINVAL, "address + length wraps around 2^64"};
  const bool on_demand = (access & IBV_ACCESS_ON_DEMAND) != 0;
  return check_memory(address, length, (access & kWritingAccess) != 0,
                      on_demand ? Presence::Mapped : Presence::Populated);
}

// `iova` is what peers and work requests will call the region's first byte.
Result<ibv_mr*> register_memory(Pd* pd, void* address, size_t length, uint64_t iova,
                                unsigned access) {
  Context* context = from(pd->context);
  if (context->nic->dead()) return kDead;
  access &= ~unsigned{IBV_ACCESS_OPTIONAL_RANGE};  // hints such as relaxed ordering
  const Status checked = check_request(reinterpret_cast<uintptr_t>(address), length, access);
  if (!checked.ok()) return checked.error();
  if ((access & IBV_ACCESS_ZERO_BASED) != 0) iova = 0;
  auto mr = std::make_unique<Mr>();
  {
    runtime::Nic::Guard guard(*context->nic);
    auto key = guard.engine().memory().add_region(pd->id, static_cast<std::byte*>(address), length,
                                                  iova, access & kEngineAccess);
    if (!key.ok()) return key.error();
    mr->lkey = mr->rkey = mr->handle = key.value();
  }
  mr->context = pd->context;
  mr->pd = pd;
  mr->addr = address;
  mr->length = length;
  pd->users.fetch_add(1);
  context->add_user();
  return mr.release();
}

Status deregister_memory(Mr* mr) {
  Context* context = from(mr->context);
  if (!context->nic->dead()) {
    runtime::Nic::Guard guard(*context->nic);
    const Status removed = guard.engine().memory().remove_region(mr->lkey);
    if (!removed.ok()) return removed;
  }
  from(mr->pd)->users.fetch_sub(1);
  delete mr;
  context->drop_user();
  return {};
}

Status advise(Pd* pd, unsigned advice, uint32_t flags, const ibv_sge* sges, uint32_t count) {
  Context* context = from(pd->context);
  if (context->nic->dead()) return kDead;
  if (advice != IBV_ADVISE_MR_ADVICE_PREFETCH && advice != IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE &&
      advice != IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT) {
    return Error{EOPNOTSUPP, "an advice that is not known"};
  }
  if ((flags & ~uint32_t{IBV_ADVISE_MR_FLAG_FLUSH}) != 0) {
    return Error{EINVAL, "a flag that does not exist"};
  }
  const bool write = advice == IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE;
  for (uint32_t i = 0; i < count; ++i) {
    if (sges[i].length == 0) continue;
    const std::byte* memory = nullptr;
    {
      runtime::Nic::Guard guard(*context->nic);
      memory = guard.engine().memory().resolve_local(sges[i].lkey, pd->id, sges[i].addr,
                                                     sges[i].length, write ? core::kLocalWrite : 0);
    }
    if (memory == nullptr) return Error{EFAULT, "not within the region that the lkey names"};
    if (advice == IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT) continue;
    const Status there = check_memory(reinterpret_cast<uintptr_t>(memory), sges[i].length, write,
                                      Presence::Populated);
    if (!there.ok()) return there;
  }
  return {};
}

}  // namespace

int advise_mr(ibv_pd* pd, ibv_advise_mr_advice advice, uint32_t flags, ibv_sge* sges,
              uint32_t count) {
  return status_of("ibv_advise_mr",
                   [&] { return advise(from(pd), number_of(advice), flags, sges, count); });
}

}  // namespace verbena::abi

using namespace verbena;       // NOLINT(google-build-using-namespace)
using namespace verbena::abi;  // NOLINT(google-build-using-namespace)

extern "C" {

VERBENA_EXPORT ibv_mr* ibv_reg_mr(ibv_pd* pd, void* addr, size_t length, int access) {
  return object_of<ibv_mr>("ibv_reg_mr", [&] {
    return register_memory(from(pd), addr, length, reinterpret_cast<uintptr_t>(addr),
                           static_cast<unsigned>(access));
  });
}

VERBENA_EXPORT ibv_mr* ibv_reg_mr_iova(ibv_pd* pd, void* addr, size_t length, uint64_t iova,
                                       int access) {
  return object_of<ibv_mr>("ibv_reg_mr_iova", [&] {
    return register_memory(from(pd), addr, length, iova, static_cast<unsigned>(access));
  });
}

VERBENA_EXPORT ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* addr, size_t length, uint64_t iova,
                                        unsigned int access) {
  return object_of<ibv_mr>("ibv_reg_mr_iova2",
                           [&] { return register_memory(from(pd), addr, length, iova, access); });
}

VERBENA_EXPORT int ibv_dereg_mr(ibv_mr* mr) {
  return status_of("ibv_dereg_mr", [&] { return deregister_memory(from(mr)); });
}

// The old region stays as it was.
VERBENA_EXPORT int ibv_rereg_mr(ibv_mr*, int, ibv_pd*, void*, size_t, int) {
  refuse("ibv_rereg_mr", Error{EOPNOTSUPP, "not supported: deregister and register again"});
  return IBV_REREG_MR_ERR_INPUT;
}

VERBENA_EXPORT ibv_mr* ibv_reg_dmabuf_mr(ibv_pd*, uint64_t, size_t, uint64_t, int, int) {
  return object_of<ibv_mr>("ibv_reg_dmabuf_mr", []() -> Result<ibv_mr*> {
    return Error{EOPNOTSUPP, "device memory behind a dma-buf is out of a process's reach"};
  });
}

VERBENA_EXPORT ibv_dm* ibv_import_dm(ibv_context*, uint32_t) {
  return object_of<ibv_dm>("ibv_import_dm", []() -> Result<ibv_dm*> {
    return Error{EOPNOTSUPP, "objects of another process cannot be imported"};
  });
}

VERBENA_EXPORT void ibv_unimport_dm(ibv_dm*) {}

}  // extern "C"

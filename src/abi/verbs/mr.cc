// Memory regions of the program's own memory, and the common part of all regions.
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <span>

#include "abi/verbs/c_enum.h"
#include "abi/verbs/context.h"
#include "abi/verbs/errors.h"
#include "abi/verbs/mapped_memory.h"
#include "abi/verbs/memory_region.h"
#include "abi/verbs/narrate.h"
#include "abi/verbs/objects.h"
#include "os/no_cancel.h"

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
static_assert(kAccessFlushGlobal == core::kFlushGlobal);
static_assert(kAccessFlushPersistent == core::kFlushPersistent);

constexpr unsigned kKnownAccess =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
    IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_ON_DEMAND |
    IBV_ACCESS_HUGETLB | kAccessFlushGlobal | kAccessFlushPersistent;
// A window on the region may get write access later.
constexpr unsigned kWritingAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                    IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND;
constexpr uint32_t kEngineAccess = core::kLocalWrite | core::kRemoteWrite | core::kRemoteRead |
                                   core::kRemoteAtomic | core::kWindowBind | core::kFlushGlobal |
                                   core::kFlushPersistent;

// Memory that is not on demand is accessed without further checks, so all of it must be mapped now.
Status check_memory_for(uintptr_t address, size_t length, unsigned access) {
  if (address + length < address) return Error{EINVAL, "address + length wraps around 2^64"};
  if ((access & IBV_ACCESS_ON_DEMAND) != 0) return {};
  if (address == 0 && length == SIZE_MAX) {
    return Error{EINVAL, "only IBV_ACCESS_ON_DEMAND registers the whole address space"};
  }
  return check_memory(address, length, writes(access), Presence::Populated);
}

bool is_reachable(const std::byte* at, uint64_t bytes, bool write) {
  return check_memory(reinterpret_cast<uintptr_t>(at), bytes, write, Presence::Populated).ok();
}

// The engine's lock is held during this, and other threads wait: a hardware NIC that waits for the
// medium stalls its queue as well. Memory without a file causes no wait.
bool write_back(std::byte* at, uint64_t bytes) {
  const os::NoCancel no_cancel;
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t skipped = reinterpret_cast<uintptr_t>(at) & (page - 1);
  return bytes == 0 || msync(at - skipped, bytes + skipped, MS_SYNC) == 0;
}

// Null: ordinary memory.
const core::MemoryBacking* backing_for(unsigned access) {
  static constexpr core::MemoryBacking kOnDemand{.reachable = is_reachable};
  static constexpr core::MemoryBacking kPersistent{.persist = write_back};
  static constexpr core::MemoryBacking kBoth{.reachable = is_reachable, .persist = write_back};
  const bool on_demand = (access & IBV_ACCESS_ON_DEMAND) != 0;
  if ((access & kAccessFlushPersistent) != 0) return on_demand ? &kBoth : &kPersistent;
  return on_demand ? &kOnDemand : nullptr;
}

Result<ibv_mr*> register_memory(Pd* pd, void* address, size_t length, uint64_t iova,
                                unsigned access) {
  auto known = known_access(access);
  if (!known.ok()) return known.error();
  const Status checked =
      check_memory_for(reinterpret_cast<uintptr_t>(address), length, known.value());
  if (!checked.ok()) return checked.error();
  if ((access & IBV_ACCESS_ZERO_BASED) != 0) iova = 0;
  auto mr = add_region(pd, Mr::Kind::Memory, static_cast<std::byte*>(address), length, iova,
                       known.value());
  if (!mr.ok()) return mr.error();
  mr.value()->addr = address;
  if (narrating()) narrate_region(*mr.value(), access);
  return mr.value();
}

// The region is local only: a peer cannot use it.
Result<ibv_mr*> allocate_null(Pd* pd) {
  Context* context = from(pd->context);
  auto mr = std::make_unique<Mr>();
  auto key = context->nic->memory().add_null_region(pd->id);
  if (!key.ok()) return key.error();
  mr->lkey = mr->handle = key.value();
  mr->kind = Mr::Kind::Null;
  mr->context = pd->context;
  mr->pd = pd;
  mr->length = SIZE_MAX;
  pd->add_user();
  context->add_user();
  return mr.release();
}

Status deregister_memory(Mr* mr) {
  Context* context = from(mr->context);
  const auto removed = context->nic->remove_region(mr->lkey);
  if (!removed.ok()) return removed.error();
  if (mr->dm != nullptr) mr->dm->drop_user();
  if (mr->buffer != nullptr) release_buffer(mr->buffer);
  if (mr->dma_handle != nullptr) mr->dma_handle->regions.fetch_sub(1);
  if (mr->mapping != nullptr) munmap(mr->mapping, mr->mapping_bytes);
  from(mr->pd)->drop_user();
  delete mr;
  context->drop_user();
  return {};
}

constexpr Error kOnDemandDma{EINVAL, "on-demand memory cannot have a DMA handle"};

constexpr int kReregFlags =
    IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;

Status check_change(const Mr* mr, int flags, const Pd* pd, const void* address, size_t length,
                    unsigned access) {
  if (mr->kind != Mr::Kind::Memory) {
    return Error{EINVAL, "only a region of the program's own memory can be re-registered"};
  }
  if (flags == 0 || (flags & ~kReregFlags) != 0)
    return Error{EINVAL, "flags request no known change"};
  if ((flags & IBV_REREG_MR_CHANGE_TRANSLATION) != 0 && (address == nullptr || length == 0)) {
    return Error{EINVAL, "a new translation needs an address and a length"};
  }
  if ((flags & IBV_REREG_MR_CHANGE_ACCESS) == 0 && access != 0) {
    return Error{EINVAL, "access flags are given without IBV_REREG_MR_CHANGE_ACCESS"};
  }
  if ((flags & IBV_REREG_MR_CHANGE_PD) != 0 && (pd == nullptr || pd->context != mr->context)) {
    return Error{EINVAL, "the new protection domain is missing or of another context"};
  }
  return {};
}

// All or nothing: after a failure the region is unchanged.
Status change_memory(Mr* mr, int flags, Pd* pd, void* address, size_t length, unsigned access) {
  Context* context = from(mr->context);
  const Status possible = check_change(mr, flags, pd, address, length, access);
  if (!possible.ok()) return possible;
  const bool moves = (flags & IBV_REREG_MR_CHANGE_TRANSLATION) != 0;
  if (!moves) {
    address = mr->addr;
    length = mr->length;
  }
  if ((flags & IBV_REREG_MR_CHANGE_ACCESS) == 0) access = mr->access;
  if ((flags & IBV_REREG_MR_CHANGE_PD) == 0) pd = from(mr->pd);
  auto known = known_access(access);
  if (!known.ok()) return known.error();
  if (mr->dma_handle != nullptr && (access & IBV_ACCESS_ON_DEMAND) != 0) return kOnDemandDma;
  const Status there =
      check_memory_for(reinterpret_cast<uintptr_t>(address), length, known.value());
  if (!there.ok()) return there;
  const auto old = context->nic->memory().region_of(mr->lkey);
  if (!old) return Error{EINVAL, "the region was deregistered through an import"};
  core::RegionInfo region = *old;
  region.pd = pd->id;
  region.base = static_cast<std::byte*>(address);
  region.length = length;
  if (moves) {
    region.iova =
        (known.value() & IBV_ACCESS_ZERO_BASED) != 0 ? 0 : reinterpret_cast<uintptr_t>(address);
  }
  region.access = known.value() & kEngineAccess;
  region.backing = backing_for(known.value());
  const Status changed = context->nic->change_region(mr->lkey, region);
  if (!changed.ok()) return changed;
  pd->add_user();
  from(mr->pd)->drop_user();
  mr->pd = pd;
  mr->addr = address;
  mr->length = length;
  mr->access = known.value();
  return {};
}

// Checks one range: the region must belong to the domain, contain the range, and be writable for a
// prefetch for writing.
Result<core::RegionInfo> advised_region(Pd* pd, const ibv_sge& sge, bool write) {
  const core::MemoryRegistry& memory = from(pd->context)->nic->memory();
  const auto found = memory.region_of(sge.lkey);
  if (!found && memory.is_window(sge.lkey)) return Error{EINVAL, "the key is a memory window's"};
  if (!found) return Error{EFAULT, "no region has this lkey"};
  const core::RegionInfo& region = *found;
  if (region.pd != pd->id) return Error{EPERM, "the region belongs to another protection domain"};
  if (write && (region.access & core::kLocalWrite) == 0) {
    return Error{EPERM, "the region is not registered for writing"};
  }
  if (sge.addr < region.iova || sge.length > region.length ||
      sge.addr - region.iova > region.length - sge.length) {
    return Error{EFAULT, "not within the region that the lkey names"};
  }
  return region;
}

// Pages are faulted in before the call returns, with or without IBV_ADVISE_MR_FLAG_FLUSH.
Status advise(Pd* pd, unsigned advice, uint32_t flags, const ibv_sge* sges, uint32_t count) {
  if (advice != IBV_ADVISE_MR_ADVICE_PREFETCH && advice != IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE &&
      advice != IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT) {
    return Error{EOPNOTSUPP, "unknown advice"};
  }
  if ((flags & ~uint32_t{IBV_ADVISE_MR_FLAG_FLUSH}) != 0) {
    return Error{EINVAL, "flags has a bit that does not exist"};
  }
  if (sges == nullptr || count == 0) return Error{EINVAL, "no range is given"};
  const bool write = advice == IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE;
  for (const ibv_sge& sge : std::span(sges, count)) {
    auto region = advised_region(pd, sge, write);
    if (!region.ok()) return region.error();
    const bool can_fault =
        region.value().backing != nullptr && region.value().backing->reachable != nullptr;
    if (!can_fault || advice == IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT) continue;
    const uintptr_t at =
        reinterpret_cast<uintptr_t>(region.value().base) + (sge.addr - region.value().iova);
    const Status there = check_memory(at, sge.length, write, Presence::Populated);
    if (!there.ok()) return there;
  }
  return {};
}

// The mask determines the source of the memory: an address, a descriptor, or a buffer of ours.
Result<ibv_mr*> register_masked(Pd* pd, const RegionInit& init) {
  const uint64_t mask = init.comp_mask;
  const auto access = static_cast<unsigned>(init.access);
  const bool has_iova = (mask & kRegionIova) != 0;
  const bool has_fd = (mask & kRegionFd) != 0;
  if ((mask & kRegionBuffer) != 0) {
    if ((mask & kRegionAddress) == 0 || has_fd || (mask & kRegionFdOffset) != 0 ||
        init.buffer == nullptr) {
      return Error{EINVAL, "a buffer is registered by its handle and an address in it"};
    }
    return register_buffer(pd, init.buffer, init.addr, init.length,
                           has_iova ? init.iova : reinterpret_cast<uintptr_t>(init.addr), access);
  }
  if (has_fd) {
    if ((mask & kRegionFdOffset) == 0 || (mask & kRegionAddress) != 0 || !has_iova) {
      return Error{EINVAL, "a descriptor needs an offset and an iova, and has no address"};
    }
    return register_dmabuf(pd, init.fd_offset, init.length, init.iova, init.fd, access);
  }
  if ((mask & kRegionAddress) == 0 || (mask & kRegionFdOffset) != 0) {
    return Error{EINVAL, "a region needs an address or a descriptor"};
  }
  return register_memory(pd, init.addr, init.length,
                         has_iova ? init.iova : reinterpret_cast<uintptr_t>(init.addr), access);
}

Result<ibv_mr*> register_extended(Pd* pd, const RegionInit& init) {
  constexpr uint64_t kKnown = (kRegionBuffer << 1) - 1;
  if ((init.comp_mask & ~kKnown) != 0)
    return Error{EINVAL, "comp_mask has a bit that does not exist"};
  if ((init.comp_mask & kRegionDmaHandle) == 0) return register_masked(pd, init);
  if (init.dmah == nullptr || init.dmah->context != pd->context) {
    return Error{EINVAL, "the DMA handle is missing or of another context"};
  }
  if ((init.access & IBV_ACCESS_ON_DEMAND) != 0) return kOnDemandDma;
  auto mr = register_masked(pd, init);
  if (!mr.ok()) return mr.error();
  from(mr.value())->dma_handle = init.dmah;
  init.dmah->regions.fetch_add(1);
  return mr.value();
}

}  // namespace

Result<unsigned> known_access(unsigned access) {
  access &= ~unsigned{IBV_ACCESS_OPTIONAL_RANGE};  // hints such as relaxed ordering
  if ((access & ~kKnownAccess) != 0) return Error{EINVAL, "access has a flag that does not exist"};
  return access;
}

bool writes(unsigned access) { return (access & kWritingAccess) != 0; }

Result<Mr*> add_region(Pd* pd, Mr::Kind kind, std::byte* base, size_t length, uint64_t iova,
                       unsigned access) {
  Context* context = from(pd->context);
  auto mr = std::make_unique<Mr>();
  auto key = context->nic->memory().add_region(
      {pd->id, base, length, iova, access & kEngineAccess, backing_for(access)});
  if (!key.ok()) return key.error();
  mr->lkey = mr->rkey = mr->handle = key.value();
  mr->kind = kind;
  mr->access = access;
  mr->context = pd->context;
  mr->pd = pd;
  mr->length = length;
  pd->add_user();
  context->add_user();
  return mr.release();
}

int advise_mr(ibv_pd* pd, ibv_advise_mr_advice advice, uint32_t flags, ibv_sge* sges,
              uint32_t count) {
  return status_of("ibv_advise_mr",
                   [&] { return advise(from(pd), number_of(advice), flags, sges, count); });
}

ibv_mr* alloc_null_mr(ibv_pd* pd) {
  return object_of<ibv_mr>("ibv_alloc_null_mr", [&] { return allocate_null(from(pd)); });
}

ibv_mr* reg_mr_ex(ibv_pd* pd, RegionInit* init) {
  return object_of<ibv_mr>("ibv_reg_mr_ex", [&] { return register_extended(from(pd), *init); });
}

}  // namespace verbena::abi

using namespace verbena;
using namespace verbena::abi;

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

// All checks precede the first change, so the old region is intact after a failure. This error code
// reports that.
VERBENA_EXPORT int ibv_rereg_mr(ibv_mr* mr, int flags, ibv_pd* pd, void* addr, size_t length,
                                int access) {
  const int code = status_of("ibv_rereg_mr", [&] {
    return change_memory(from(mr), flags, from(pd), addr, length, static_cast<unsigned>(access));
  });
  return code == 0 ? 0 : IBV_REREG_MR_ERR_INPUT;
}

VERBENA_EXPORT ibv_mr* ibv_reg_mr_ex(ibv_pd* pd, RegionInit* init) { return reg_mr_ex(pd, init); }

}  // extern "C"

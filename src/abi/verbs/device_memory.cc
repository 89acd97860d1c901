// Device memory: see struct Dm. Its regions are zero-based, because it has no address in the
// process.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <memory>

#include "abi/verbs/context.h"
#include "abi/verbs/errors.h"
#include "abi/verbs/limits.h"
#include "abi/verbs/memory_region.h"
#include "abi/verbs/objects.h"

namespace verbena::abi {
namespace {

size_t page_bytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

bool within(uint64_t offset, size_t length, size_t total) {
  return offset <= total && length <= total - offset;
}

// The checks have the order of libmlx5, whose device memory has the same limits.
Status check_copy(const Dm& dm, uint64_t offset, size_t length) {
  if (!within(offset, length, dm.length)) {
    return Error{EFAULT, "offset + length is beyond the device memory"};
  }
  if (offset % 4 != 0 || length % 4 != 0) {
    return Error{EINVAL, "offset and length must be multiples of 4"};
  }
  return {};
}

int copy_to(ibv_dm* dm, uint64_t offset, const void* from_host, size_t length) {
  return status_of("ibv_memcpy_to_dm", [&] {
    const Status checked = check_copy(*from(dm), offset, length);
    if (checked.ok() && length != 0) std::memcpy(from(dm)->memory + offset, from_host, length);
    return checked;
  });
}

int copy_from(void* to_host, ibv_dm* dm, uint64_t offset, size_t length) {
  return status_of("ibv_memcpy_from_dm", [&] {
    const Status checked = check_copy(*from(dm), offset, length);
    if (checked.ok() && length != 0) std::memcpy(to_host, from(dm)->memory + offset, length);
    return checked;
  });
}

void unmap(Dm& dm) {
  if (dm.memory != nullptr) munmap(dm.memory, dm.mapped);
  if (dm.fd >= 0) close(dm.fd);
}

// The seals prevent a holder of the descriptor from shrinking the memory.
Status map(Dm& dm, size_t length) {
  dm.length = length;
  dm.mapped = (length + page_bytes() - 1) & ~(page_bytes() - 1);
  dm.fd = memfd_create("verbena device memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (dm.fd < 0) return Error{errno, "cannot create a descriptor (too many open files?)"};
  if (ftruncate(dm.fd, static_cast<off_t>(dm.mapped)) != 0 ||
      fcntl(dm.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return kNoMemory;
  }
  void* at = mmap(nullptr, dm.mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, dm.fd, 0);
  if (at == MAP_FAILED) return kNoMemory;
  dm.memory = static_cast<std::byte*>(at);
  return {};
}

bool reserve(Device& device, uint64_t bytes) {
  if (device.device_memory.fetch_add(bytes) + bytes <= kMaxDeviceMemory) return true;
  device.device_memory.fetch_sub(bytes);
  return false;
}

Result<ibv_dm*> allocate(Context* context, const ibv_alloc_dm_attr& attr) {
  if (attr.comp_mask != 0) return Error{EINVAL, "comp_mask has a bit that does not exist"};
  if (attr.length == 0) return Error{EINVAL, "the length of the device memory is 0"};
  if (attr.log_align_req >= 63 || size_t{1} << attr.log_align_req > page_bytes()) {
    return Error{EINVAL, "device memory is aligned to pages at most"};
  }
  if (attr.length > kMaxDeviceMemory || !reserve(*context->device, attr.length)) {
    return Error{ENOMEM, "not enough device memory (see max_dm_size)"};
  }
  auto dm = std::make_unique<Dm>();
  const Status mapped = map(*dm, attr.length);
  if (!mapped.ok()) {
    unmap(*dm);
    context->device->device_memory.fetch_sub(attr.length);
    return mapped.error();
  }
  dm->context = &context->context;
  dm->memcpy_to_dm = copy_to;
  dm->memcpy_from_dm = copy_from;
  dm->handle = static_cast<uint32_t>(dm->fd);
  list_dm(*context, dm.get());
  context->add_user();
  return dm.release();
}

// The object leaves the list before its users are counted, so that it cannot be imported after
// that.
Status release(Dm* dm) {
  Context* context = from(dm->context);
  const bool own = dm->stands_for == nullptr;
  if (own) unlist_dm(*context, dm);
  if (dm->has_users()) {
    if (own) list_dm(*context, dm);
    return Error{EBUSY, "memory regions or imports of this device memory remain"};
  }
  dm->drop_user();
  return {};
}

Result<ibv_mr*> register_part(Pd* pd, Dm* dm, uint64_t offset, size_t length, unsigned access) {
  if (dm->context != pd->context) {
    return Error{EINVAL, "device memory and protection domain belong to different contexts"};
  }
  auto known = known_access(access);
  if (!known.ok()) return known.error();
  if ((known.value() & IBV_ACCESS_ZERO_BASED) == 0) {
    return Error{EINVAL, "a region of device memory is IBV_ACCESS_ZERO_BASED"};
  }
  if ((known.value() & IBV_ACCESS_ON_DEMAND) != 0) {
    return Error{EINVAL, "device memory cannot be registered on demand"};
  }
  if (!within(offset, length, dm->length)) {
    return Error{EINVAL, "offset + length is beyond the device memory"};
  }
  auto mr = add_region(pd, Mr::Kind::DeviceMemory, dm->memory + offset, length, 0, known.value());
  if (!mr.ok()) return mr.error();
  mr.value()->dm = dm;
  dm->add_user();
  return mr.value();
}

}  // namespace

ibv_dm* alloc_dm(ibv_context* context, ibv_alloc_dm_attr* attr) {
  return object_of<ibv_dm>("ibv_alloc_dm", [&] { return allocate(from(context), *attr); });
}

int free_dm(ibv_dm* dm) {
  return status_of("ibv_free_dm", [&] { return release(from(dm)); });
}

ibv_mr* reg_dm_mr(ibv_pd* pd, ibv_dm* dm, uint64_t offset, size_t length, unsigned access) {
  return object_of<ibv_mr>(
      "ibv_reg_dm_mr", [&] { return register_part(from(pd), from(dm), offset, length, access); });
}

void Dm::drop_user() {
  if (users.fetch_sub(1) != 1) return;
  Context* owner = from(context);
  if (stands_for != nullptr) {
    stands_for->drop_user();
  } else {
    owner->device->device_memory.fetch_sub(length);
    unmap(*this);
  }
  delete this;
  owner->drop_user();
}

int dm_export_dmabuf_fd(ibv_dm* dm) {
  const int fd = fcntl(from(dm)->fd, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) refuse("ibv_dm_export_dmabuf_fd", Error{errno, "cannot create a descriptor"});
  return fd;
}

}  // namespace verbena::abi

extern "C" {

VERBENA_EXPORT int ibv_dm_export_dmabuf_fd(ibv_dm* dm) {
  return verbena::abi::dm_export_dmabuf_fd(dm);
}

}  // extern "C"

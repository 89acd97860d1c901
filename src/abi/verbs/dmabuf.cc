// Regions of memory behind a descriptor. The memory is mapped into the process, because a CPU
// accesses it. That works for every dma-buf whose exporter allows mapping, and for memory files.
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "abi/verbs/errors.h"
#include "abi/verbs/memory_region.h"
#include "abi/verbs/objects.h"

namespace verbena::abi {
namespace {

// The number of bytes behind the descriptor. A dma-buf reports its size only by lseek and keeps no
// position.
Result<uint64_t> size_of(int fd) {
  struct stat status;
  if (fstat(fd, &status) != 0) return Error{errno, "not an open descriptor"};
  if (S_ISREG(status.st_mode)) return static_cast<uint64_t>(status.st_size);
  const off_t end = lseek(fd, 0, SEEK_END);
  if (end < 0) return Error{EINVAL, "the descriptor has no memory behind it"};
  return static_cast<uint64_t>(end);
}

Error why_not_mapped(int code) {
  switch (code) {
    case EACCES:
    case EPERM:
      return {EACCES, "the descriptor does not allow the access that the flags request"};
    case ENODEV:
      return {EOPNOTSUPP, "the memory behind the descriptor does not support mapping"};
    default:
      return {code, "the memory behind the descriptor cannot be mapped"};
  }
}

}  // namespace

Result<ibv_mr*> register_dmabuf(Pd* pd, uint64_t offset, size_t length, uint64_t iova, int fd,
                                unsigned access) {
  auto known = known_access(access);
  if (!known.ok()) return known.error();
  if ((known.value() & (IBV_ACCESS_ON_DEMAND | IBV_ACCESS_ZERO_BASED)) != 0) {
    return Error{EINVAL, "a dma-buf is neither on demand nor zero-based: it has an iova"};
  }
  auto size = size_of(fd);
  if (!size.ok()) return size.error();
  if (length == 0 || offset > size.value() || length > size.value() - offset) {
    return Error{EINVAL, "offset + length exceeds the memory behind the descriptor"};
  }
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t into_page = offset & (page - 1);
  if ((iova & (page - 1)) != into_page) {
    return Error{EINVAL, "offset and iova must have the same offset within a page"};
  }
  const int rights = PROT_READ | (writes(known.value()) ? PROT_WRITE : 0);
  const size_t mapped = length + into_page;
  void* at = mmap(nullptr, mapped, rights, MAP_SHARED, fd, static_cast<off_t>(offset - into_page));
  if (at == MAP_FAILED) return why_not_mapped(errno);
  auto mr = add_region(pd, Mr::Kind::DmaBuf, static_cast<std::byte*>(at) + into_page, length, iova,
                       known.value());
  if (!mr.ok()) {
    munmap(at, mapped);
    return mr.error();
  }
  mr.value()->mapping = at;
  mr.value()->mapping_bytes = mapped;
  mr.value()->addr = reinterpret_cast<void*>(offset);  // as in rdma-core
  return mr.value();
}

}  // namespace verbena::abi

using namespace verbena;
using namespace verbena::abi;

extern "C" {

VERBENA_EXPORT ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* pd, uint64_t offset, size_t length, uint64_t iova,
                                         int fd, int access) {
  return object_of<ibv_mr>("ibv_reg_dmabuf_mr", [&] {
    return register_dmabuf(from(pd), offset, length, iova, fd, static_cast<unsigned>(access));
  });
}

}  // extern "C"

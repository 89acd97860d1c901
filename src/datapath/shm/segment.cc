// Creates, validates and maps segments.
#include "datapath/shm/segment.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <new>
#include <utility>

namespace verbena::datapath {
namespace {

// The file contains a page with the two controls, then the two rings. Each ring is mapped twice in
// a row, so that a record across the end is contiguous.
constexpr size_t kControlBytes = 4096;
constexpr size_t kControlStride = 1024;
constexpr size_t kFileBytes = kControlBytes + 2 * kRingBytes;
constexpr size_t kMappedBytes = kControlBytes + 4 * kRingBytes;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
static_assert(sizeof(RingControl) <= kControlStride);

bool map_at(std::byte* at, size_t bytes, int descriptor, size_t offset) {
  return ::mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, descriptor,
                static_cast<off_t>(offset)) != MAP_FAILED;
}

}  // namespace

Segment::Segment(Segment&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)), mapper_(other.mapper_) {}

Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(mapper_, other.mapper_);
  return *this;
}

// A forked child does not inherit the mapping; another one may have this address.
Segment::~Segment() {
  if (base_ != nullptr && mapper_ == ::getpid()) ::munmap(base_, kMappedBytes);
}

Result<Segment> Segment::create(os::UniqueFd& descriptor) {
  rlimit largest{};  // growing a file beyond it raises SIGXFSZ
  if (::getrlimit(RLIMIT_FSIZE, &largest) != 0 || largest.rlim_cur < kFileBytes) {
    return Error{EFBIG, "the file size limit is below the size of the shared memory (ulimit -f)"};
  }
  os::UniqueFd fd(::memfd_create("verbena", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return Error{errno, "the kernel refuses to create shared memory (memfd_create)"};
  if (::ftruncate(fd.get(), kFileBytes) != 0 || ::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    return Error{errno, "cannot seal the size of the shared memory"};
  }
  auto mapped = map(fd.get());
  if (mapped.ok()) descriptor = std::move(fd);
  return mapped;
}

Result<Segment> Segment::adopt(int descriptor) {
  struct stat file {};
  struct statfs system {};
  const int seals = ::fcntl(descriptor, F_GET_SEALS);  // only memfds have seals
  if (seals < 0 || (seals & kSeals) != kSeals || ::fstat(descriptor, &file) != 0 ||
      file.st_size != static_cast<off_t>(kFileBytes) || ::fstatfs(descriptor, &system) != 0 ||
      system.f_type != TMPFS_MAGIC) {  // hugetlbfs may run out of pages
    return Error{EINVAL, "the peer sent an invalid shared-memory segment"};
  }
  return map(descriptor);
}

Result<Segment> Segment::map(int descriptor) {
  void* const reserved =
      ::mmap(nullptr, kMappedBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return Error{errno, "no address space for shared memory"};
  Segment s;
  s.base_ = static_cast<std::byte*>(reserved);
  s.mapper_ = ::getpid();
  std::byte* at = s.base_;
  bool ok = map_at(at, kControlBytes, descriptor, 0);
  at += kControlBytes;
  for (size_t ring = 0; ring < 2; ++ring) {
    for (int copy = 0; copy < 2; ++copy, at += kRingBytes) {
      ok = ok && map_at(at, kRingBytes, descriptor, kControlBytes + ring * kRingBytes);
    }
  }
  // A forked child must not keep the pages or write to them.
  ok = ok && ::madvise(s.base_, kMappedBytes, MADV_DONTFORK) == 0;
  if (!ok) return Error{errno, "shared memory cannot be mapped"};
  return s;
}

RingMemory Segment::written_by(LinkEnd end) const {
  const auto ring = static_cast<size_t>(end);
  return {.control = std::launder(reinterpret_cast<RingControl*>(base_ + ring * kControlStride)),
          .base = base_ + kControlBytes + ring * 2 * kRingBytes,
          .bytes = kRingBytes};
}

}  // namespace verbena::datapath

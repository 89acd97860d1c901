// Making, checking and mapping segments.
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

// In the file: a page with the two controls, then the two rings. In memory each ring lies twice in
// a row, so that a record that goes over the end is still in one piece.
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

// In the child of a fork it is not mapped, but something else may be there by now.
Segment::~Segment() {
  if (base_ != nullptr && mapper_ == ::getpid()) ::munmap(base_, kMappedBytes);
}

Result<Segment> Segment::create(os::UniqueFd& descriptor) {
  rlimit largest{};  // to grow a file beyond it would kill the program (SIGXFSZ)
  if (::getrlimit(RLIMIT_FSIZE, &largest) != 0 || largest.rlim_cur < kFileBytes) {
    return Error{EFBIG, "files may not be as large as shared memory (ulimit -f)"};
  }
  os::UniqueFd fd(::memfd_create("verbena", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return Error{errno, "the kernel gives no shared memory (memfd_create)"};
  if (::ftruncate(fd.get(), kFileBytes) != 0 || ::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    return Error{errno, "shared memory cannot be given a fixed size"};
  }
  auto mapped = map(fd.get());
  if (mapped.ok()) descriptor = std::move(fd);
  return mapped;
}

Result<Segment> Segment::adopt(int descriptor) {
  struct stat file {};
  struct statfs system {};
  const int seals = ::fcntl(descriptor, F_GET_SEALS);  // memfds alone have them
  if (seals < 0 || (seals & kSeals) != kSeals || ::fstat(descriptor, &file) != 0 ||
      file.st_size != static_cast<off_t>(kFileBytes) || ::fstatfs(descriptor, &system) != 0 ||
      system.f_type != TMPFS_MAGIC) {  // of huge pages there may be too few
    return Error{EINVAL, "what the peer sent is no segment of shared memory"};
  }
  return map(descriptor);
}

Result<Segment> Segment::map(int descriptor) {
  void* const reserved =
      ::mmap(nullptr, kMappedBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return Error{errno, "no room for shared memory"};
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
  // A forked child has no part in it: it must not keep the pages, nor write by mistake.
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

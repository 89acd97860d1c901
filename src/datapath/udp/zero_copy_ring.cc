// Allocation of the ring, and the position of the next batch.
#include "datapath/udp/zero_copy_ring.h"

#include <sys/mman.h>

#include "base/check.h"

namespace verbena::datapath {
namespace {

constexpr size_t kPage = 4096;

}  // namespace

// Aligned for huge pages. The sender's processor writes the kernel's state of a page and the
// receiver's reads it; a huge page has one such state.
ZeroCopyRing::ZeroCopyRing() {
  void* const at =
      ::mmap(nullptr, 2 * kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return;
  auto* const from = static_cast<std::byte*>(at);
  const size_t before = -reinterpret_cast<uintptr_t>(at) % kBytes;
  base_ = from + before;
  if (before != 0) ::munmap(from, before);
  ::munmap(base_ + kBytes, kBytes - before);
  ::madvise(base_, kBytes, MADV_HUGEPAGE);
}

ZeroCopyRing::~ZeroCopyRing() {
  if (base_ != nullptr) ::munmap(base_, kBytes);
}

std::byte* ZeroCopyRing::begin_batch(size_t max_bytes) {
  VERBENA_CHECK(max_bytes <= kBytes);
  next_ = (next_ + kPage - 1) / kPage * kPage;
  if (next_ + max_bytes > kBytes) next_ = 0;
  return base_ + next_;
}

}  // namespace verbena::datapath

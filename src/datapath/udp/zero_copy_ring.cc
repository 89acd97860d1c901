// Where the next batch goes in a peer's lent memory.
#include "datapath/udp/zero_copy_ring.h"

#include <sys/mman.h>

#include "base/check.h"

namespace verbena::datapath {
namespace {

constexpr size_t kPage = 4096;

}  // namespace

// Aligned, so that it can be huge pages: the kernel's notes about a page are written here and read
// by the receiver's processor, and a huge page has them in one place.
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

std::byte* ZeroCopyRing::place(size_t most) {
  VERBENA_CHECK(most <= kBytes);
  next_ = (next_ + kPage - 1) / kPage * kPage;
  if (next_ + most > kBytes) next_ = 0;
  return base_ + next_;
}

}  // namespace verbena::datapath

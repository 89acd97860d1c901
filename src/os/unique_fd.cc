// The descriptors that UniqueFds own, in a form that the child of a fork can read: it must not
// allocate, free, or wait for a lock that another thread of its parent may have held.
#include "os/unique_fd.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <cstddef>

namespace verbena::os {
namespace {

// As many as the kernel allows a process by default (fs.nr_open). The child does not close higher
// ones; they end with it, or with its exec().
constexpr size_t kDescriptors = size_t{1} << 20;
constexpr size_t kPerWord = 64;

using Word = std::atomic<uint64_t>;
constinit std::array<Word, kDescriptors / kPerWord> owned{};  // one bit per descriptor
constinit std::atomic<size_t> used_words{0};                  // the words after these are 0

bool is_listed(int fd) { return fd >= 0 && static_cast<size_t>(fd) < kDescriptors; }
Word& word_of(int fd) { return owned[static_cast<size_t>(fd) / kPerWord]; }
uint64_t bit_of(int fd) { return uint64_t{1} << static_cast<size_t>(fd) % kPerWord; }

void list(int fd) {
  if (!is_listed(fd)) return;
  const size_t needed = static_cast<size_t>(fd) / kPerWord + 1;
  size_t used = used_words.load(std::memory_order_relaxed);
  while (used < needed && !used_words.compare_exchange_weak(used, needed)) {
  }
  word_of(fd).fetch_or(bit_of(fd));
}

// Before the descriptor is closed: afterwards it may be another owner's.
void unlist(int fd) {
  if (is_listed(fd)) word_of(fd).fetch_and(~bit_of(fd));
}

}  // namespace

constinit std::atomic<uint32_t> UniqueFd::generation{0};

UniqueFd::UniqueFd(int fd) : fd_(fd), generation_(current_generation()) { list(fd); }

int UniqueFd::release() {
  const int fd = get();
  if (fd >= 0) unlist(fd);
  fd_ = -1;
  return fd;
}

void UniqueFd::reset() {
  if (const int fd = release(); fd >= 0) ::close(fd);
}

void UniqueFd::close_all_in_child() {
  generation.fetch_add(1, std::memory_order_relaxed);
  const size_t used = used_words.load(std::memory_order_relaxed);
  for (size_t i = 0; i < used; ++i) {
    for (uint64_t bits = owned[i].exchange(0); bits != 0; bits &= bits - 1) {
      ::close(static_cast<int>(i * kPerWord) + std::countr_zero(bits));
    }
  }
}

}  // namespace verbena::os

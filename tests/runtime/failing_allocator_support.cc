// Replaces operator new of the whole program. While no allocation fails it is malloc().
#include "tests/runtime/failing_allocator_support.h"

#include <sys/prctl.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>

namespace verbena::test {
namespace {

std::atomic<FailIn> failing_threads{FailIn::NoThread};
std::atomic<int64_t> seen{0};
std::atomic<int64_t> first_failing{0};
std::atomic<int64_t> end_of_failing{0};

bool is_background_thread() {
  char name[16] = {};
  prctl(PR_GET_NAME, name);
  return std::strcmp(name, "verbena") == 0;
}

bool fails() {
  const FailIn threads = failing_threads.load(std::memory_order_relaxed);
  if (threads == FailIn::NoThread) return false;
  if (threads == FailIn::BackgroundThreads && !is_background_thread()) return false;
  const int64_t number = ++seen;
  return number >= first_failing && number < end_of_failing;
}

void* allocate(size_t bytes, size_t alignment) {
  if (fails()) return nullptr;
  if (bytes == 0) bytes = 1;
  if (alignment <= alignof(std::max_align_t)) return std::malloc(bytes);
  return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

void* allocate_or_throw(size_t bytes, size_t alignment) {
  void* const memory = allocate(bytes, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void fail_allocations(FailIn threads, int64_t first, int64_t count) {
  failing_threads = FailIn::NoThread;
  seen = 0;
  first_failing = first;
  end_of_failing = first + count;
  failing_threads = threads;
}

int64_t allocations_seen() { return seen; }

}  // namespace verbena::test

using verbena::test::allocate;
using verbena::test::allocate_or_throw;

void* operator new(size_t bytes) { return allocate_or_throw(bytes, 1); }
void* operator new[](size_t bytes) { return allocate_or_throw(bytes, 1); }
void* operator new(size_t bytes, std::align_val_t a) {
  return allocate_or_throw(bytes, static_cast<size_t>(a));
}
void* operator new[](size_t bytes, std::align_val_t a) {
  return allocate_or_throw(bytes, static_cast<size_t>(a));
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes, 1); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes, 1); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

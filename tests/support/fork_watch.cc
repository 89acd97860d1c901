// Replaces the allocator and pthread_mutex_lock() for the program and all its libraries.
#include "tests/support/fork_watch.h"

#include <gtest/gtest.h>

#include <dlfcn.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

namespace {

std::atomic<pid_t> watched_parent = 0;  // 0: no fork is being watched
struct Calls {
  int allocator = 0;
  int mutex_locks = 0;
} calls;
bool is_provoking = false;

// Other threads of the parent run on during the fork, and do not count.
bool in_watched_child() { return watched_parent != 0 && getpid() != watched_parent; }
void note_allocator() { calls.allocator += in_watched_child() ? 1 : 0; }

using Lock = int (*)(pthread_mutex_t*);
Lock next_lock() {
  static std::atomic<Lock> next = nullptr;  // no guard: it would be a lock itself
  if (next == nullptr) next = reinterpret_cast<Lock>(dlsym(RTLD_NEXT, "pthread_mutex_lock"));
  return next;
}

}  // namespace

#define REPLACES __attribute__((visibility("default")))

extern "C" {

void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* old, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void* old);

REPLACES void* malloc(size_t bytes) noexcept {
  note_allocator();
  return __libc_malloc(bytes);
}
REPLACES void* calloc(size_t count, size_t bytes) noexcept {
  note_allocator();
  return __libc_calloc(count, bytes);
}
REPLACES void* realloc(void* old, size_t bytes) noexcept {
  note_allocator();
  return __libc_realloc(old, bytes);
}
REPLACES void* aligned_alloc(size_t alignment, size_t bytes) noexcept {
  note_allocator();
  return __libc_memalign(alignment, bytes);
}
REPLACES void free(void* old) noexcept {
  note_allocator();
  __libc_free(old);
}
REPLACES int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  calls.mutex_locks += in_watched_child() ? 1 : 0;
  return next_lock()(mutex);
}

}  // extern "C"

namespace verbena::test {
namespace {

void provoke_in_child() {
  if (!is_provoking) return;
  static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&mutex);
  pthread_mutex_unlock(&mutex);
  void* volatile some = malloc(1);
  free(some);
}

// The calls of all fork handlers in a child.
Calls calls_of_handlers() {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  watched_parent = getpid();
  const pid_t child = fork();
  watched_parent = 0;
  if (child == 0) _exit(write(ends[1], &calls, sizeof calls) == sizeof calls ? 0 : 1);
  close(ends[1]);
  Calls of_child;
  EXPECT_EQ(read(ends[0], &of_child, sizeof of_child), ssize_t{sizeof of_child});
  close(ends[0]);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  return of_child;
}

}  // namespace

void expect_safe_fork_handlers() {
  // The replaced functions are in use: a handler of this test is seen.
  static const int installed = pthread_atfork(nullptr, nullptr, &provoke_in_child);
  ASSERT_EQ(installed, 0);
  is_provoking = true;
  const Calls provoked = calls_of_handlers();
  is_provoking = false;
  ASSERT_GE(provoked.allocator, 2);
  ASSERT_GE(provoked.mutex_locks, 1);
  const Calls of_library = calls_of_handlers();
  EXPECT_EQ(of_library.allocator, 0);
  EXPECT_EQ(of_library.mutex_locks, 0);
}

}  // namespace verbena::test

#else

namespace verbena::test {

void expect_safe_fork_handlers() {
  GTEST_SKIP() << "the sanitizer replaces the functions that this test replaces";
}

}  // namespace verbena::test

#endif

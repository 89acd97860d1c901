// What the fork handlers of the library do in the child. In a process with several threads, POSIX
// allows the child only async-signal-safe calls: another thread may have held the lock of the
// allocator, or any other, at the fork, and the child would wait for it for ever.
#pragma once

namespace verbena::test {

// Forks, and fails the test if a fork handler allocates, frees or locks a mutex in the child. Skips
// the test in a sanitized build: sanitizers replace the same functions.
void expect_safe_fork_handlers();

}  // namespace verbena::test

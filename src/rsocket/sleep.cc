// Call and sleep_on: see sleep.h.
#include "rsocket/sleep.h"

#include <pthread.h>

#include <cerrno>

#include "rsocket/clock.h"

namespace verbena::rsocket {

namespace {

struct ThisThread {
  int calls = 0;
  int cancel_state = PTHREAD_CANCEL_DISABLE;  // the application's, outside of calls
};
thread_local ThisThread this_thread;

}  // namespace

Call::Call() {
  if (this_thread.calls++ > 0) return;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &this_thread.cancel_state);
}

Call::~Call() {
  if (--this_thread.calls > 0) return;
  pthread_setcancelstate(this_thread.cancel_state, nullptr);
}

bool Call::nested() { return this_thread.calls > 1; }

Status sleep_on(pollfd* descriptors, size_t count, Instant deadline) {
  timespec left{};
  if (deadline != kNever) {
    const int64_t ns = deadline.ns - now().ns;
    if (ns > 0) left = {ns / 1'000'000'000, ns % 1'000'000'000};
  }
  pthread_setcancelstate(this_thread.cancel_state, nullptr);
  const int ready = ::ppoll(descriptors, count, deadline == kNever ? nullptr : &left, nullptr);
  const int error = errno;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
  if (ready > 0) return {};
  return Error{ready < 0 ? error : EAGAIN};
}

}  // namespace verbena::rsocket

// Call and sleep_on: see sleep.h.
#include "rsocket/sleep.h"

#include <pthread.h>

#include <cerrno>

#include "rsocket/clock.h"

// The functions behind pthread_cleanup_push() in C; <pthread.h> declares them for C only.
extern "C" {
void __pthread_register_cancel(__pthread_unwind_buf_t* landing);
void __pthread_unregister_cancel(__pthread_unwind_buf_t* landing);
}

namespace verbena::rsocket {

namespace {

struct ThisThread {
  int calls = 0;
  int cancel_state = PTHREAD_CANCEL_DISABLE;  // the application's state outside of calls
  bool cancelled = false;
};
thread_local ThisThread this_thread;

// The sleep itself. No object with a destructor may exist between the landing and the system call.
// Returns -errno or the number of ready descriptors.
int cancellable_ppoll(pollfd* descriptors, size_t count, const timespec* limit) {
  __pthread_unwind_buf_t landing;
  if (__sigsetjmp_cancel(landing.__cancel_jmp_buf, 0) != 0) {
    __pthread_unregister_cancel(&landing);
    this_thread.cancelled = true;
    return -ECANCELED;
  }
  __pthread_register_cancel(&landing);
  pthread_setcancelstate(this_thread.cancel_state, nullptr);
  const int ready = ::ppoll(descriptors, count, limit, nullptr);
  const int outcome = ready < 0 ? -errno : ready;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
  __pthread_unregister_cancel(&landing);
  return outcome;
}

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

void Call::end_if_cancelled() {
  if (this_thread.cancelled && this_thread.calls == 0) pthread_exit(PTHREAD_CANCELED);
}

Status sleep_on(pollfd* descriptors, size_t count, Instant deadline) {
  if (this_thread.cancelled) return Error{ECANCELED};
  timespec left{};
  if (deadline != kNever) {
    const int64_t ns = deadline.ns - now().ns;
    if (ns > 0) left = {ns / 1'000'000'000, ns % 1'000'000'000};
  }
  const int ready = cancellable_ppoll(descriptors, count, deadline == kNever ? nullptr : &left);
  if (ready > 0) return {};
  return Error{ready < 0 ? -ready : EAGAIN};
}

}  // namespace verbena::rsocket

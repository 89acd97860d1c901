// Sleeping on descriptors, with support for thread cancellation.
//
// pthread_cancel() ends a thread by unwinding its stack. It must not unwind frames of this library:
// they hold locks, and their destructors cannot run, because the library contains its own C++
// runtime. So a thread can be cancelled only while it sleeps. The unwinding is caught there, the
// call returns normally through its frames, and the thread ends after that (end_if_cancelled).
#pragma once

#include <poll.h>

#include <cstddef>

#include "base/result.h"
#include "base/time.h"

namespace verbena::rsocket {

// Every call holds one of these.
class Call {
 public:
  Call();
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // Whether the thread was inside a call already. Without this check an interposing library that
  // turns all sockets into rsockets would intercept those that the lower libraries open.
  static bool nested();
  // Called after the call. Does not return if the thread was cancelled during the call.
  static void end_if_cancelled();
};

// ppoll() as a cancellation point. OK: a descriptor is ready. EAGAIN: the deadline has passed.
// EINTR. ECANCELED: the call must return.
Status sleep_on(pollfd* descriptors, size_t count, Instant deadline);

}  // namespace verbena::rsocket

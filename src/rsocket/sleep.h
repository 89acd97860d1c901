// Sleeping on descriptors, and thread cancellation while doing so.
//
// pthread_cancel() ends a thread by unwinding its stack. It must not unwind frames of this library:
// they hold locks, and their destructors cannot run, since the library brings its own C++ runtime.
// So a thread is cancelled only where it sleeps, there the unwinding is caught, the call comes back
// through its frames in the ordinary way, and the thread ends at the door (end_if_cancelled).
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

  // Whether the thread was inside a call already. An interposing library that makes rsockets of all
  // sockets would otherwise get its hands on those that the libraries below open for themselves.
  static bool nested();
  // After the call. Does not come back where the thread was cancelled in it.
  static void end_if_cancelled();
};

// ppoll() as a cancellation point. OK: something is ready. EAGAIN: the deadline came. EINTR.
// ECANCELED: the call must come to its end.
Status sleep_on(pollfd* descriptors, size_t count, Instant deadline);

}  // namespace verbena::rsocket

// Sleeping on descriptors, and thread cancellation while doing so.
#pragma once

#include <poll.h>

#include <cstddef>

#include "base/result.h"
#include "base/time.h"

namespace verbena::rsocket {

// A thread may be cancelled only where it sleeps: everywhere else it would leave locks and queue
// pairs in between. Every call holds one of these.
class Call {
 public:
  Call();
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // Whether the thread was inside a call already. An interposing library that makes rsockets of all
  // sockets would otherwise get its hands on those that the libraries below open for themselves.
  static bool nested();
};

// ppoll() as a cancellation point; OK when something is ready, EAGAIN at the deadline, or EINTR.
Status sleep_on(pollfd* descriptors, size_t count, Instant deadline);

}  // namespace verbena::rsocket

// pthread_cancel must not strike inside the library: system calls are cancellation points, and a
// thread that is unwound in the middle of a turn would leave the lock taken. The call in progress
// finishes; the cancellation takes effect at the application's next cancellation point.
//
// It costs as much as handling a packet. So where packets are posted and polled for it stands only
// around calls of the C library that may be cancelled; syscall() is none.
#pragma once

#include <pthread.h>

namespace verbena::os {

class NoCancel {
 public:
  NoCancel() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~NoCancel() { pthread_setcancelstate(before_, nullptr); }
  NoCancel(const NoCancel&) = delete;
  NoCancel& operator=(const NoCancel&) = delete;

 private:
  int before_ = 0;
};

}  // namespace verbena::os

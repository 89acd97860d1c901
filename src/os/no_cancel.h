// NoCancel disables pthread_cancel while the library runs. System calls are cancellation points,
// and a thread that is cancelled in the middle of a turn leaves the lock taken. The call in
// progress finishes; the cancellation takes effect at the application's next cancellation point.
//
// NoCancel costs as much as the handling of one packet. The code that posts and polls therefore
// uses it only around calls of the C library that are cancellation points. syscall() is not one.
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

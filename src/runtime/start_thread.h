// Starts the libraries' own threads. They block all signals, so that signals are handled by the
// application's threads.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace verbena::runtime {

// 0, or an errno.
inline int start_thread(pthread_t& thread, void* (*body)(void*), void* argument) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error = pthread_create(&thread, nullptr, body, argument);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return error;
}

}  // namespace verbena::runtime

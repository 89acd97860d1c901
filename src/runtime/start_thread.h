// Starts the libraries' own threads. They block all signals, so that signals are handled by the
// application's threads.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <cstdint>

namespace verbena::runtime {

enum class Ends : uint8_t {
  Joined,
  // From the start: in the child of a fork, the thread sanitizer confuses a thread that is detached
  // later with one of the parent's.
  Detached,
};

// 0, or an errno.
inline int start_thread(pthread_t& thread, void* (*body)(void*), void* argument,
                        Ends ends = Ends::Joined) {
  pthread_attr_t attributes;
  int error = pthread_attr_init(&attributes);
  if (error != 0) return error;
  if (ends == Ends::Detached) {
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  }
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  error = pthread_create(&thread, &attributes, body, argument);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  return error;
}

}  // namespace verbena::runtime

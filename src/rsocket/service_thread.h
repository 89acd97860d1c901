// ServiceThread: the thread that works while the application makes no calls. It accepts connection
// requests, drives connection set-up, detects disconnects, sends keepalive probes, and replies to
// peers that ask for a datagram socket's queue pair.
//
// There is one per process, started with the first socket that needs it. It sleeps while no event
// or timer is due.
#pragma once

#include <pthread.h>

#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>

#include "base/result.h"
#include "base/time.h"

namespace verbena::rsocket {

class ServiceThread {
 public:
  static ServiceThread& instance();

  // Calls Socket::on_ready(descriptor) whenever the descriptor is readable.
  Status watch(int descriptor, int socket_number);
  void unwatch(int descriptor, int socket_number);
  // Calls the socket's on_tick() at that time. Replaces an earlier time; kNever cancels it.
  void wake_at(Instant time, int socket_number);

  // Called when the library is unloaded.
  static void stop();
  static void abandon_in_child();

 private:
  ServiceThread() = default;
  Status start();
  void run();
  Instant next_tick();
  void set_due(int socket_number, Instant time);
  void tick(Instant time);

  std::mutex lock_;
  bool running_ = false;
  bool stopping_ = false;
  pthread_t thread_{};
  int epoll_ = -1;
  int wake_ = -1;                            // eventfd
  std::set<std::pair<Instant, int>> due_;    // time and socket number
  std::unordered_map<int, Instant> due_of_;  // the same, by socket number
};

}  // namespace verbena::rsocket

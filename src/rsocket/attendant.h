// Attendant: the thread that does what must happen while the application is elsewhere: it takes
// connection requests and walks connections through their set-up, hears that a peer hung up, looks
// after idle connections, and answers who asks for a datagram socket's queue pair.
//
// One per process, started with the first socket that needs it. It sleeps while nothing happens.
#pragma once

#include <pthread.h>

#include <mutex>
#include <set>

#include "base/result.h"
#include "base/time.h"

namespace verbena::rsocket {

class Attendant {
 public:
  static Attendant& instance();

  // Calls Socket::on_ready(descriptor) for as long as it is readable.
  Status watch(int descriptor, int socket_number);
  void unwatch(int descriptor, int socket_number);
  // Calls Socket::on_tick of all watched sockets then, or earlier.
  void wake_at(Instant time);

  // When the library goes away.
  static void stop();
  static void forget_in_child();

 private:
  Attendant() = default;
  Status start();
  void run();
  void tick(Instant time);

  std::mutex lock_;
  bool running_ = false;
  bool stopping_ = false;
  pthread_t thread_{};
  int epoll_ = -1;
  int wake_ = -1;  // eventfd
  Instant next_tick_ = kNever;
  std::multiset<int> numbers_;  // of the sockets watched, once per descriptor
};

}  // namespace verbena::rsocket

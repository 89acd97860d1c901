// Attendant: the thread that does what must happen while the application is elsewhere: it takes
// connection requests and walks connections through their set-up, hears that a peer hung up, looks
// after idle connections, and answers who asks for a datagram socket's queue pair.
//
// One per process, started with the first socket that needs it. It sleeps while nothing happens.
#pragma once

#include <pthread.h>

#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>

#include "base/result.h"
#include "base/time.h"

namespace verbena::rsocket {

class Attendant {
 public:
  static Attendant& instance();

  // Calls Socket::on_ready(descriptor) for as long as it is readable.
  Status watch(int descriptor, int socket_number);
  void unwatch(int descriptor, int socket_number);
  // Calls Socket::on_tick of that socket then, instead of when it was told before. kNever: not.
  void wake_at(Instant time, int socket_number);

  // When the library goes away.
  static void stop();
  static void forget_in_child();

 private:
  Attendant() = default;
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
  std::set<std::pair<Instant, int>> due_;    // which socket wants to be called when
  std::unordered_map<int, Instant> due_of_;  // the same by socket
};

}  // namespace verbena::rsocket

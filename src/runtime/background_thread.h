// BackgroundThread: the thread of a lane. It sleeps until a packet is received, a deadline passes
// or another thread wakes it, and runs on the NUMA node of the application. Its Body does the work.
#pragma once

#include <pthread.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "base/result.h"
#include "base/time.h"
#include "os/numa.h"
#include "os/unique_fd.h"
#include "runtime/recent_clock.h"

namespace verbena::runtime {

class BackgroundThread {
 public:
  class Body {
   public:
    // Runs in the thread, until is_stopping().
    virtual void run_background() = 0;

   protected:
    ~Body() = default;
  };
  // Descriptors that end a sleep besides the datapath's; -1 for none.
  static constexpr size_t kExtraFds = 2;
  using ExtraFds = std::array<int, kExtraFds>;

  // Why a sleep ended.
  struct Wakeup {
    Instant at;
    bool packets = false;  // the datapath's descriptor is readable
    std::array<bool, kExtraFds> extra{};
  };

  ~BackgroundThread() { VERBENA_CHECK(!running_); }
  Status start(int datapath_fd, Body& body);
  bool is_running() const { return running_; }
  // Ends the thread, which must not need a lock that the caller holds.
  void stop();
  bool is_stopping() const { return stopping_.load(std::memory_order_relaxed); }
  // In the child of a fork: the thread does not exist there.
  void abandon() { running_ = false; }

  // Ends the current or the next sleep. Any thread, with or without the owner's lock.
  void wake();

  // --- under the owner's lock -------------------------------------------------------------------
  bool is_asleep() const { return sleeps_until_ != kAwake; }
  // kAwake, before every instant, while the thread is awake.
  Instant sleeps_until() const { return sleeps_until_; }
  // A wake() follows: the thread decides again how long it sleeps.
  void expect_wake() { sleeps_until_ = kAwake; }
  // Whether the datapath's descriptor ends a sleep.
  void wait_for_packets(bool on);
  // Requests that the thread runs on the caller's NUMA node.
  void follow_caller() { placement_.note_caller(); }

  // --- in the thread ----------------------------------------------------------------------------
  // Before the first round.
  void begin() { placement_.begin(); }
  // Under the owner's lock: the thread falls asleep as soon as it has released the lock.
  void prepare_to_sleep(Instant until) { sleeps_until_ = until; }
  // Without the lock. At the time limit, sleep_on(now) may extend the sleep by `interval`.
  template <typename SleepOn>
  Wakeup sleep(Instant from, Instant until, const ExtraFds& extra, Duration interval,
               SleepOn&& sleep_on) {
    Wakeup wakeup;
    Duration length = until == kNever ? kForever : until - from;
    while (!sleep_once(length, extra, wakeup) && sleep_on(runtime::now())) length = interval;
    wakeup.at = runtime::now();
    return wakeup;
  }
  // Under the owner's lock.
  void woke_up() { sleeps_until_ = kAwake; }
  void move_near_caller() { placement_.follow(); }

 private:
  static constexpr Instant kAwake{INT64_MIN};
  static constexpr Duration kForever{INT64_MAX};

  static void* thread_main(void* self);
  // False: the time limit was reached.
  bool sleep_once(Duration length, const ExtraFds& extra, Wakeup& wakeup);

  Body* body_ = nullptr;
  pthread_t thread_{};
  bool running_ = false;
  std::atomic<bool> stopping_{false};
  int datapath_fd_ = -1;
  os::UniqueFd wake_;      // eventfd
  os::UniqueFd progress_;  // epoll around the datapath's descriptor
  Instant sleeps_until_ = kAwake;
  os::Placement placement_;
};

}  // namespace verbena::runtime

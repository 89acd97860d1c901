// How signals affect the wait for an event. (Cancellation is tested through the exported calls: the
// address sanitizer does not support cancelled threads.)
#include "runtime/event_channel.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <memory>
#include <thread>

namespace verbena::runtime {
namespace {

std::atomic<int> handled{0};

void handle(int) { handled.fetch_add(1); }

void install_handler(int flags) {
  struct sigaction action {};
  action.sa_handler = handle;
  action.sa_flags = flags;
  ASSERT_EQ(sigaction(SIGUSR1, &action, nullptr), 0);
}

class WaitingThread {
 public:
  explicit WaitingThread(EventChannel& channel)
      : thread_([this, &channel] {
          Event event;
          result_ = channel.pop(&event);
          done_ = true;
        }) {}
  bool done() const { return done_; }
  // Sends the signal and waits until its handler has run.
  void interrupt() {
    const int before = handled;
    ASSERT_EQ(pthread_kill(thread_.native_handle(), SIGUSR1), 0);
    while (handled == before) std::this_thread::yield();
  }
  int join() {
    thread_.join();
    return result_;
  }

 private:
  std::atomic<bool> done_{false};
  std::atomic<int> result_{-1};
  std::thread thread_;
};

TEST(EventChannel, HandlerWithSaRestartDoesNotEndTheWait) {
  install_handler(SA_RESTART);
  const std::unique_ptr<EventChannel> channel(EventChannel::create().value());
  WaitingThread waiting(*channel);
  for (int i = 0; i < 50; ++i) {
    usleep(1000);
    waiting.interrupt();
  }
  EXPECT_FALSE(waiting.done());
  channel->push({1, nullptr});
  EXPECT_EQ(waiting.join(), 0);
}

TEST(EventChannel, HandlerWithoutSaRestartInterruptsTheWait) {
  install_handler(0);
  const std::unique_ptr<EventChannel> channel(EventChannel::create().value());
  WaitingThread waiting(*channel);
  while (!waiting.done()) {  // the first signal may come before it sleeps
    usleep(1000);
    if (!waiting.done()) waiting.interrupt();
  }
  EXPECT_EQ(waiting.join(), EINTR);
}

}  // namespace
}  // namespace verbena::runtime

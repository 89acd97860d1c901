// Waiting at a socket: all waiting threads are woken, no matter which one reads the event. This is
// the code that streams and datagrams share, with a completion queue that the test controls.
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "rsocket/socket.h"

namespace verbena::rsocket {
namespace {

class QueueSocket final : public Socket {
 public:
  QueueSocket() : Socket(0), channel_(::eventfd(0, EFD_NONBLOCK)) {}
  ~QueueSocket() override { ::close(channel_); }

  // Adds a completion. It raises an event only if the queue is armed.
  void complete(short readiness) {
    completed_ = static_cast<short>(completed_ | readiness);
    if (!armed_) return;
    ::eventfd_write(channel_, 1);
  }
  bool armed() const { return armed_; }
  // Waits for a condition that never becomes true.
  Status wait_without_result(Instant deadline) {
    Lock lock(lock_);
    return wait(lock, deadline, [] { return false; });
  }
  int checks() const { return checks_; }

  Status bind(const SocketAddress&) override { return {}; }
  Status connect(const SocketAddress&) override { return {}; }
  Status shutdown(int) override { return {}; }
  Result<size_t> send(Buffers&, const Transfer&) override { return size_t{0}; }
  Result<size_t> receive(Buffers&, Transfer&) override { return size_t{0}; }
  Result<SocketAddress> name() override { return SocketAddress{}; }
  Result<SocketAddress> peer_name() override { return SocketAddress{}; }
  Status set_option(int, int, const void*, socklen_t) override { return {}; }
  Status get_option(int, int, void*, socklen_t*) override { return {}; }
  void flush(Duration) override {}
  void close() override {}
  void on_ready(int) override {}

 private:
  void progress() override {
    ++checks_;
    const auto before = ready_;
    ready_ = static_cast<short>(ready_ | std::exchange(completed_, short{0}));
    if (ready_ & ~before) wake_waiters();
  }
  bool arm() override { return !std::exchange(armed_, true); }
  void drain_events() override {
    eventfd_t count;
    if (armed_ && ::eventfd_read(channel_, &count) == 0) armed_ = false;
  }
  void add_descriptors(std::vector<pollfd>* to) const override {
    to->push_back({channel_, POLLIN, 0});
  }
  short readiness() const override { return ready_; }

  int channel_;
  bool armed_ = false;
  int checks_ = 0;
  short completed_ = 0;
  short ready_ = 0;
};

// A thread that sleeps at the socket, up to its call of ppoll().
struct SleepingThread {
  SleepingThread(QueueSocket& socket, short events) : at(socket) {
    EXPECT_TRUE(wakeup.open().ok());
    node.wakeup = &wakeup;
    EXPECT_EQ(at.poll_and_register(events, &node, &descriptors), 0);
    descriptors.push_back({wakeup.fd(), POLLIN, 0});
  }
  ~SleepingThread() { at.unregister(&node); }
  bool woken() { return ::poll(descriptors.data(), descriptors.size(), 0) > 0; }

  QueueSocket& at;
  WakeupFd wakeup;
  Waiters::Node node;
  std::vector<pollfd> descriptors;
};

TEST(Waiting, AnEventWakesASleepingThread) {
  QueueSocket socket;
  SleepingThread one(socket, POLLIN);
  EXPECT_FALSE(one.woken());
  socket.complete(POLLIN);
  EXPECT_TRUE(one.woken());
}

TEST(Waiting, AThreadThatReadsTheEventWakesTheOthers) {
  QueueSocket socket;
  SleepingThread reader(socket, POLLIN), writer(socket, POLLOUT);
  socket.complete(POLLOUT);
  EXPECT_EQ(socket.poll_woken(POLLIN), 0);  // the reader is faster and reads the event
  EXPECT_TRUE(writer.woken());
}

// The thread leaves because of its timeout or another event.
TEST(Waiting, AThreadThatReadsTheEventAndLeavesArmsTheQueue) {
  QueueSocket socket;
  SleepingThread stays(socket, POLLIN);
  {
    SleepingThread leaves(socket, POLLIN);
    socket.complete(0);
    EXPECT_EQ(socket.poll_woken(POLLIN), 0);
    EXPECT_FALSE(socket.armed());
  }
  EXPECT_FALSE(stays.woken());
  socket.complete(POLLIN);
  EXPECT_TRUE(stays.woken());
}

// A completion while the queue is not armed raises no event.
TEST(Waiting, AThreadThatLeavesChecksForTheOthers) {
  QueueSocket socket;
  SleepingThread stays(socket, POLLIN);
  {
    SleepingThread leaves(socket, POLLPRI);
    socket.complete(0);
    EXPECT_EQ(socket.poll_woken(POLLPRI), 0);
    socket.complete(POLLIN);
  }
  EXPECT_TRUE(stays.woken());
}

TEST(Waiting, TheLastThreadDoesNotArmTheQueue) {
  QueueSocket socket;
  {
    SleepingThread only(socket, POLLIN);
    socket.complete(0);
    EXPECT_EQ(socket.poll_woken(POLLIN), 0);
  }
  EXPECT_FALSE(socket.armed());
}

// Calls with SO_RCVTIMEO and SO_SNDTIMEO use this path.
TEST(Waiting, StopsCheckingAfterTheTimeout) {
  QueueSocket socket;
  const Status waited = socket.wait_without_result(Instant{});
  ASSERT_FALSE(waited.ok());
  EXPECT_EQ(waited.error().code, EAGAIN);
  EXPECT_EQ(socket.checks(), 3);  // before sleeping, with the queue armed, and afterwards
}

// A clock that advances by a microsecond with each call.
struct SlowClock {
  Instant* at;
  Instant operator()() const { return *at = *at + microseconds(1); }
};

TEST(Spinning, LastsAsLongAsTheBudget) {
  Instant time{};
  SpinBudget budget(microseconds(100));
  int checks = 0;
  const auto check = [&](Duration) { return ++checks == 1000; };
  EXPECT_FALSE(spin(budget, kNever, check, SlowClock{&time}));
  EXPECT_EQ(checks, 100);
}

TEST(Spinning, EndsAtAnEarlierDeadline) {
  Instant time{};
  SpinBudget budget(microseconds(100));
  int checks = 0;
  const auto check = [&](Duration) { return ++checks == 1000; };
  EXPECT_FALSE(spin(budget, time + microseconds(21), check, SlowClock{&time}));
  EXPECT_EQ(checks, 20);
}

// Otherwise short timeouts would make a thread stop spinning.
TEST(Spinning, ASpinThatADeadlineEndsKeepsItsBudget) {
  Instant time{};
  SpinBudget budget(microseconds(100));
  const auto check = [](Duration) { return false; };
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(spin(budget, time + microseconds(5), check, SlowClock{&time}));
  }
  EXPECT_EQ(budget.allowance(), microseconds(100));
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(spin(budget, kNever, check, SlowClock{&time}));
  EXPECT_EQ(budget.allowance(), Duration{});
}

}  // namespace
}  // namespace verbena::rsocket

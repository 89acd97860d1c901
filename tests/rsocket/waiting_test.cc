// Who waits at a socket is woken, whichever of the waiting threads takes the event: the part that
// streams and datagrams share, with a completion queue that does what the test says.
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

  // Something happens: an event only where the queue is armed.
  void complete(short readiness) {
    completed_ = static_cast<short>(completed_ | readiness);
    if (!armed_) return;
    ::eventfd_write(channel_, 1);
  }
  bool armed() const { return armed_; }
  // Waits for what never comes.
  Status wait_in_vain(Instant deadline) {
    Lock lock(lock_);
    return wait(lock, deadline, [] { return false; });
  }
  int looks() const { return looks_; }

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
    ++looks_;
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
  int looks_ = 0;
  short completed_ = 0;
  short ready_ = 0;
};

// A thread asleep at the socket, up to the point where it calls ppoll().
struct Asleep {
  Asleep(QueueSocket& socket, short events) : at(socket) {
    EXPECT_TRUE(wakeup.open().ok());
    node.wakeup = &wakeup;
    EXPECT_EQ(at.poll_and_register(events, &node, &descriptors), 0);
    descriptors.push_back({wakeup.fd(), POLLIN, 0});
  }
  ~Asleep() { at.unregister(&node); }
  bool woken() { return ::poll(descriptors.data(), descriptors.size(), 0) > 0; }

  QueueSocket& at;
  WakeupFd wakeup;
  Waiters::Node node;
  std::vector<pollfd> descriptors;
};

TEST(Waiting, AnEventWakesWhoSleeps) {
  QueueSocket socket;
  Asleep one(socket, POLLIN);
  EXPECT_FALSE(one.woken());
  socket.complete(POLLIN);
  EXPECT_TRUE(one.woken());
}

TEST(Waiting, WhatOneTakesWakesTheOthers) {
  QueueSocket socket;
  Asleep reader(socket, POLLIN), writer(socket, POLLOUT);
  socket.complete(POLLOUT);
  EXPECT_EQ(socket.poll_woken(POLLIN), 0);  // the reader was faster, and takes the event
  EXPECT_TRUE(writer.woken());
}

// Its time is over, or something else has come.
TEST(Waiting, OneThatTakesTheEventAndLeavesArmsForTheOthers) {
  QueueSocket socket;
  Asleep stays(socket, POLLIN);
  {
    Asleep leaves(socket, POLLIN);
    socket.complete(0);
    EXPECT_EQ(socket.poll_woken(POLLIN), 0);
    EXPECT_FALSE(socket.armed());
  }
  EXPECT_FALSE(stays.woken());
  socket.complete(POLLIN);
  EXPECT_TRUE(stays.woken());
}

// What completes while the queue is not armed makes no event.
TEST(Waiting, OneThatLeavesLooksForTheOthers) {
  QueueSocket socket;
  Asleep stays(socket, POLLIN);
  {
    Asleep leaves(socket, POLLPRI);
    socket.complete(0);
    EXPECT_EQ(socket.poll_woken(POLLPRI), 0);
    socket.complete(POLLIN);
  }
  EXPECT_TRUE(stays.woken());
}

TEST(Waiting, TheLastToLeaveArmsNothing) {
  QueueSocket socket;
  {
    Asleep only(socket, POLLIN);
    socket.complete(0);
    EXPECT_EQ(socket.poll_woken(POLLIN), 0);
  }
  EXPECT_FALSE(socket.armed());
}

// The calls with SO_RCVTIMEO and SO_SNDTIMEO come here.
TEST(Waiting, OneWhoseTimeIsOverLooksNoFurther) {
  QueueSocket socket;
  const Status waited = socket.wait_in_vain(Instant{});
  ASSERT_FALSE(waited.ok());
  EXPECT_EQ(waited.error().code, EAGAIN);
  EXPECT_EQ(socket.looks(), 3);  // before it sleeps, with the queue armed, and after
}

// Time that goes on by a microsecond whenever somebody asks for it.
struct SlowClock {
  Instant* at;
  Instant operator()() const { return *at = *at + microseconds(1); }
};

TEST(Spinning, GoesOnForAsLongAsTheBudgetSays) {
  Instant time{};
  SpinBudget budget(microseconds(100));
  int looks = 0;
  const auto look = [&](Duration) { return ++looks == 1000; };
  EXPECT_FALSE(spin(budget, kNever, look, SlowClock{&time}));
  EXPECT_EQ(looks, 100);
}

TEST(Spinning, EndsAtADeadlineThatComesFirst) {
  Instant time{};
  SpinBudget budget(microseconds(100));
  int looks = 0;
  const auto look = [&](Duration) { return ++looks == 1000; };
  EXPECT_FALSE(spin(budget, time + microseconds(21), look, SlowClock{&time}));
  EXPECT_EQ(looks, 20);
}

// Else short time limits would teach a thread that looking is of no use.
TEST(Spinning, OneThatADeadlineEndedWasNotInVain) {
  Instant time{};
  SpinBudget budget(microseconds(100));
  const auto look = [](Duration) { return false; };
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(spin(budget, time + microseconds(5), look, SlowClock{&time}));
  }
  EXPECT_EQ(budget.allowance(), microseconds(100));
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(spin(budget, kNever, look, SlowClock{&time}));
  EXPECT_EQ(budget.allowance(), Duration{});
}

}  // namespace
}  // namespace verbena::rsocket

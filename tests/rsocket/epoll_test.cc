// repoll_*: rsockets and ordinary descriptors in one set.
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "tests/rsocket/socket_support.h"
#include "tests/support/fork_watch.h"

namespace verbena::test {
namespace {

template <typename Function>
Function* symbol(const char* name) {
  return reinterpret_cast<Function*>(dlvsym(RTLD_DEFAULT, name, "RDMACM_1.5"));
}

class Epoll : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(symbol<void()>("repoll_wait"), nullptr);
    set_ = symbol<int(int)>("repoll_create")(EPOLL_CLOEXEC);
    ASSERT_GE(set_, 0);
    ASSERT_EQ(::pipe(pipe_), 0);
  }
  void TearDown() override {
    EXPECT_EQ(rclose(set_), 0);
    ::close(pipe_[0]);
    ::close(pipe_[1]);
  }
  int control(int op, int fd, uint32_t events) {
    epoll_event event{.events = events, .data = {.fd = fd}};
    return symbol<int(int, int, int, epoll_event*)>("repoll_ctl")(set_, op, fd, &event);
  }
  int wait(int timeout_ms, int room = 8) {
    std::memset(events_, 0, sizeof events_);
    return symbol<int(int, epoll_event*, int, int)>("repoll_wait")(set_, events_, room, timeout_ms);
  }

  int set_ = -1;
  int pipe_[2] = {-1, -1};
  epoll_event events_[8];
};

TEST_F(Epoll, ReportsRsocketsAndDescriptors) {
  const Pair pair = connected_pair();
  ASSERT_EQ(control(EPOLL_CTL_ADD, pair.client.get(), EPOLLIN), 0);
  ASSERT_EQ(control(EPOLL_CTL_ADD, pipe_[0], EPOLLIN), 0);
  EXPECT_EQ(wait(0), 0);
  ASSERT_EQ(rsend(pair.server.get(), "x", 1, 0), 1);
  ASSERT_EQ(wait(10'000), 1);
  EXPECT_EQ(events_[0].data.fd, pair.client.get());
  EXPECT_EQ(events_[0].events, uint32_t{EPOLLIN});
  ASSERT_EQ(::write(pipe_[1], "x", 1), 1);
  EXPECT_EQ(wait(10'000), 2);
  // With room for one event, the entries are reported in turn.
  ASSERT_EQ(wait(10'000, 1), 1);
  const int first = events_[0].data.fd;
  ASSERT_EQ(wait(10'000, 1), 1);
  EXPECT_NE(events_[0].data.fd, first);
}

TEST_F(Epoll, AChangeWakesAWaitingThread) {
  const Pair pair = connected_pair();
  ASSERT_EQ(rsend(pair.server.get(), "x", 1, 0), 1);
  std::thread other([&] { EXPECT_EQ(control(EPOLL_CTL_ADD, pair.client.get(), EPOLLIN), 0); });
  EXPECT_EQ(wait(10'000), 1);
  other.join();
  EXPECT_EQ(events_[0].data.fd, pair.client.get());
  EXPECT_EQ(control(EPOLL_CTL_MOD, pair.client.get(), 0), 0);
  EXPECT_EQ(wait(0), 0);
  EXPECT_EQ(control(EPOLL_CTL_MOD, pair.client.get(), EPOLLOUT), 0);
  EXPECT_EQ(wait(10'000), 1);
  EXPECT_EQ(events_[0].events, uint32_t{EPOLLOUT});
  EXPECT_EQ(control(EPOLL_CTL_DEL, pair.client.get(), 0), 0);
  EXPECT_EQ(wait(0), 0);
}

TEST_F(Epoll, RemovesClosedSockets) {
  {
    const Pair pair = connected_pair();
    ASSERT_EQ(control(EPOLL_CTL_ADD, pair.client.get(), EPOLLIN), 0);
    EXPECT_EQ(control(EPOLL_CTL_ADD, pair.client.get(), EPOLLIN), -1);
    EXPECT_EQ(errno, EEXIST);
  }
  EXPECT_EQ(wait(0), 0);
}

TEST_F(Epoll, ASetClosedByCloseDoesNotCloseItsSuccessor) {
  const auto create = symbol<int(int)>("repoll_create");
  const int first = create(0);
  ASSERT_GE(first, 0);
  ASSERT_EQ(close(first), 0);
  const int second = create(0);
  EXPECT_EQ(second, first);
  EXPECT_NE(fcntl(second, F_GETFD), -1) << "the first set closed the descriptor of the second";
  EXPECT_EQ(rclose(second), 0);
}

TEST_F(Epoll, AForkedChildCanCloseItsCopyOfASet) {
  const auto closes_its_copy = [&] {
    EXPECT_EQ(wait(0), -1);
    EXPECT_EQ(rclose(set_), 0) << strerror(errno);
    EXPECT_EQ(fcntl(set_, F_GETFD), -1);
    EXPECT_EQ(rclose(set_), -1);
    EXPECT_EQ(errno, EBADF);
  };
  Child child([&] {
    Child grandchild(closes_its_copy);
    EXPECT_EQ(grandchild.wait(), 0);
    closes_its_copy();
  });
  EXPECT_EQ(child.wait(), 0);
  // The parent's set still works.
  ASSERT_EQ(control(EPOLL_CTL_ADD, pipe_[0], EPOLLIN), 0);
  ASSERT_EQ(::write(pipe_[1], "x", 1), 1);
  EXPECT_EQ(wait(10'000), 1);
}

TEST_F(Epoll, ForkHandlersNeitherAllocateNorLock) { expect_safe_fork_handlers(); }

TEST_F(Epoll, RejectsWhatEpollRejects) {
  EXPECT_EQ(control(EPOLL_CTL_ADD, -1, EPOLLIN), -1);
  EXPECT_EQ(errno, EBADF);
  EXPECT_EQ(control(EPOLL_CTL_ADD, set_, EPOLLIN), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(control(EPOLL_CTL_MOD, pipe_[0], EPOLLIN), -1);
  EXPECT_EQ(errno, ENOENT);
  EXPECT_EQ(control(EPOLL_CTL_DEL, pipe_[0], EPOLLIN), -1);
  EXPECT_EQ(errno, ENOENT);
  EXPECT_EQ(control(77, pipe_[0], EPOLLIN), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(wait(0, 0), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(symbol<int(int)>("repoll_create")(1 << 30), -1);
  EXPECT_EQ(errno, EINVAL);
}

}  // namespace
}  // namespace verbena::test

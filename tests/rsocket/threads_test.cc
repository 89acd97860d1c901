// Several threads sleep at one socket and wait for different events. One thread may poll the
// completion that another waits for. Each test repeats a race. A thread that is not woken reaches
// its time limit, which is much longer than the test.
#include <gtest/gtest.h>
#include <rdma/rsocket.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "tests/rsocket/socket_support.h"

namespace verbena::test {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::seconds;

void limit_time(int socket, int option, time_t limit_s) {
  const timeval limit{limit_s, 0};
  ASSERT_EQ(rsetsockopt(socket, SOL_SOCKET, option, &limit, sizeof limit), 0);
}

// Threads that sleep in rrecv() until the peer hangs up.
class Readers {
 public:
  Readers(int socket, int count) {
    for (int i = 0; i < count; ++i) {
      threads_.emplace_back([socket] {
        char byte;
        EXPECT_EQ(rrecv(socket, &byte, 1, 0), 0);
      });
    }
    ::usleep(2000);  // most of them sleep by now; the test does not depend on it
  }
  ~Readers() {
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::vector<std::thread> threads_;
};

class Threads : public ::testing::Test {};

// Shutdown waits until the peer has all data, up to 10 s. A lost wake-up takes the whole 10 s.
TEST_F(Threads, WakesAThreadInShutdownAlthoughOthersReceive) {
  for (int round = 0; round < 100; ++round) {
    Pair pair = connected_pair();
    const Readers readers(pair.client.get(), 2);
    ASSERT_EQ(rsend(pair.client.get(), "abc", 3, 0), 3);
    const auto before = Clock::now();
    EXPECT_EQ(rshutdown(pair.client.get(), SHUT_WR), 0);
    EXPECT_LT(Clock::now() - before, seconds(9)) << "round " << round;
    pair.server.close();
    if (HasFailure()) return;
  }
}

// A credit lets a send continue although poll() does not report the socket as writable, because too
// little of the peer's buffer is left.
TEST_F(Threads, WakesAThreadThatNeedsACreditAlthoughOthersReceive) {
  for (int round = 0; round < 50; ++round) {
    Pair pair = connected_pair("127.0.0.1", [](int socket) {
      set_int(socket, SOL_SOCKET, SO_RCVBUF, 2048);  // two halves of 2048 bytes
      set_int(socket, SOL_RDMA, RDMA_RQSIZE, 16);
    });
    const int client = pair.client.get();
    limit_time(client, SO_SNDTIMEO, 20);
    ASSERT_EQ(poll_one(client, POLLOUT), POLLOUT);
    const std::vector<uint8_t> half(2048);
    ASSERT_EQ(rsend(client, half.data(), half.size(), 0), 2048);
    while (rsend(client, "x", 1, MSG_DONTWAIT) == 1) {
    }
    ASSERT_EQ(errno, EAGAIN);
    std::atomic<bool> sent{false};
    std::thread sender([&] {
      EXPECT_EQ(rsend(client, "y", 1, 0), 1) << strerror(errno) << ", round " << round;
      sent = true;
    });
    ::usleep(1000);
    const Readers readers(client, 3);
    // Grants credits for the received messages and reads nothing.
    for (; !sent; ::usleep(100)) EXPECT_EQ(poll_one(pair.server.get(), POLLIN), POLLIN);
    sender.join();
    pair.server.close();
    if (HasFailure()) return;
  }
}

// The last thread that leaves a closed socket frees it and must still report its own error.
TEST_F(Threads, TheLastThreadOfAClosedSocketKeepsItsErrno) {
  for (int round = 0; round < 400; ++round) {
    Pair pair = connected_pair();
    const linger none{.l_onoff = 1, .l_linger = 0};  // close does not shut the stream down first
    ASSERT_EQ(rsetsockopt(pair.server.get(), SOL_SOCKET, SO_LINGER, &none, sizeof none), 0);
    std::atomic<int> started{0};
    std::vector<std::thread> readers;
    for (int i = 0; i < 4; ++i) {
      readers.emplace_back([&started, socket = pair.server.get()] {
        char byte;
        ++started;
        EXPECT_ERRNO(rrecv(socket, &byte, 1, 0), EBADF);
      });
    }
    while (started < 4) std::this_thread::yield();
    pair.server.close();
    for (std::thread& reader : readers) reader.join();
  }
}

}  // namespace
}  // namespace verbena::test

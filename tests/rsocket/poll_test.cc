// rpoll and rselect: rsockets and ordinary descriptors together, several threads, time limits.
#include <gtest/gtest.h>

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>

#include "tests/rsocket/socket_support.h"

namespace verbena::test {
namespace {

struct Pipe {
  int ends[2];
  Pipe() { EXPECT_EQ(::pipe(ends), 0); }
  ~Pipe() {
    ::close(ends[0]);
    ::close(ends[1]);
  }
};

TEST(Poll, WaitsForTheTimeoutIfNothingIsReady) {
  const Pair pair = connected_pair();
  const Pipe pipe;
  pollfd entries[] = {
      {pair.client.get(), POLLIN, 77}, {pipe.ends[0], POLLIN, 77}, {-1, POLLIN, 77}};
  EXPECT_EQ(rpoll(entries, 3, 0), 0);
  EXPECT_EQ(rpoll(entries, 3, 20), 0);
  for (const pollfd& entry : entries) EXPECT_EQ(entry.revents, 0);
  EXPECT_EQ(rpoll(nullptr, 0, 5), 0);
  EXPECT_ERRNO(rpoll(nullptr, 1, 5), EFAULT);
}

TEST(Poll, WakesForRsocketsAndDescriptors) {
  const Pair pair = connected_pair();
  const Pipe pipe;
  pollfd entries[] = {{pair.client.get(), POLLIN, 0}, {pipe.ends[0], POLLIN, 0}};
  {
    std::thread other([&] { EXPECT_EQ(::write(pipe.ends[1], "x", 1), 1); });
    EXPECT_EQ(rpoll(entries, 2, -1), 1);
    EXPECT_EQ(entries[0].revents, 0);
    EXPECT_EQ(entries[1].revents, POLLIN);
    other.join();
  }
  char byte;
  EXPECT_EQ(::read(pipe.ends[0], &byte, 1), 1);
  {
    std::thread other([&] { EXPECT_EQ(rsend(pair.server.get(), "x", 1, 0), 1); });
    EXPECT_EQ(rpoll(entries, 2, -1), 1);
    EXPECT_EQ(entries[0].revents, POLLIN);
    EXPECT_EQ(entries[1].revents, 0);
    other.join();
  }
}

TEST(Poll, ReportsAllReadyEntries) {
  const Pair pair = connected_pair();
  const Pipe pipe;
  EXPECT_EQ(::write(pipe.ends[1], "x", 1), 1);
  EXPECT_EQ(rsend(pair.server.get(), "x", 1, 0), 1);
  pollfd entries[] = {{pair.client.get(), POLLIN | POLLOUT, 0},
                      {pipe.ends[0], POLLIN, 0},
                      {pipe.ends[1], POLLOUT, 0},
                      {pair.server.get(), POLLOUT, 0},
                      {1 << 19, POLLIN, 0}};
  while (!(poll_one(pair.client.get(), POLLIN) & POLLIN)) {
  }
  EXPECT_EQ(rpoll(entries, 5, -1), 5);
  EXPECT_EQ(entries[0].revents, POLLIN | POLLOUT);
  EXPECT_EQ(entries[1].revents, POLLIN);
  EXPECT_EQ(entries[2].revents, POLLOUT);
  EXPECT_EQ(entries[3].revents, POLLOUT);
  EXPECT_EQ(entries[4].revents, POLLNVAL);
}

TEST(Poll, WorksWithOrdinaryDescriptorsOnly) {
  const Pipe pipe;
  pollfd entry{pipe.ends[0], POLLIN, 0};
  EXPECT_EQ(rpoll(&entry, 1, 10), 0);
  std::thread other([&] { EXPECT_EQ(::write(pipe.ends[1], "x", 1), 1); });
  EXPECT_EQ(rpoll(&entry, 1, -1), 1);
  other.join();
}

TEST(Poll, ReportsWritableAfterThePeerReads) {
  const Pair pair = connected_pair();
  std::vector<uint8_t> large(1'000'000);
  while (rsend(pair.client.get(), large.data(), large.size(), MSG_DONTWAIT) > 0) {
  }
  EXPECT_EQ(poll_one(pair.client.get(), POLLOUT, 0), 0);
  std::thread reading([&] {
    EXPECT_EQ(rrecv(pair.server.get(), large.data(), 128 * 1024, MSG_WAITALL), 128 * 1024);
  });
  EXPECT_EQ(poll_one(pair.client.get(), POLLOUT), POLLOUT);
  reading.join();
}

// All threads are woken, no matter which one the kernel wakes and which one polls the completions.
TEST(Poll, WakesEveryWaitingThread) {
  const Pair pair = connected_pair();
  for (int round = 0; round < 50; ++round) {
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] { EXPECT_EQ(poll_one(pair.server.get(), POLLIN, -1), POLLIN); });
    }
    threads.emplace_back([&] {
      char byte;
      EXPECT_EQ(rrecv(pair.server.get(), &byte, 1, MSG_PEEK), 1);
    });
    EXPECT_EQ(rsend(pair.client.get(), "x", 1, 0), 1);
    for (std::thread& thread : threads) thread.join();
    char byte;
    EXPECT_EQ(rrecv(pair.server.get(), &byte, 1, 0), 1);
  }
}

TEST(Poll, ReadersAndWritersOfOneSocketDoNotBlockEachOther) {
  const Pair pair = connected_pair();
  // Both threads sleep: the client's buffers are full, and it receives nothing.
  std::thread writing([&] { send_stream(pair.client.get(), 9, 1'000'000); });
  std::thread reading([&] { receive_stream(pair.client.get(), 10, 1'000'000); });
  send_stream(pair.server.get(), 10, 1'000'000);
  reading.join();
  receive_stream(pair.server.get(), 9, 1'000'000);
  writing.join();
}

TEST(Poll, CloseWakesAPollingThread) {
  Pair pair = connected_pair();
  std::atomic<bool> begun{false};
  std::thread polling([number = pair.client.get(), &begun] {
    pollfd entry{number, POLLIN, 0};
    // Polls once before, so that no descriptor that this thread needs for sleeping gets the old
    // number.
    EXPECT_EQ(rpoll(&entry, 1, 1), 0);
    begun = true;
    EXPECT_EQ(rpoll(&entry, 1, -1), 1);
    EXPECT_TRUE(entry.revents & (POLLNVAL | POLLHUP | POLLIN)) << entry.revents;
  });
  while (!begun) std::this_thread::yield();
  pair.client.close();
  polling.join();
}

TEST(Poll, WorksWithThousandsOfEntries) {
  const Pair pair = connected_pair();
  Address at;
  std::vector<Rsocket> listeners;
  std::vector<pollfd> entries;
  for (int i = 0; i < 50; ++i) listeners.push_back(listener(&at));
  for (int i = 0; i < 3000; ++i) {
    entries.push_back({listeners[static_cast<size_t>(i) % 50].get(), POLLIN, 0});
  }
  EXPECT_EQ(rpoll(entries.data(), entries.size(), 1), 0);
  Rsocket client = stream_socket();
  connect_to(client, at);
  EXPECT_GE(rpoll(entries.data(), entries.size(), -1),
            1);  // the connection may be established during the check
  EXPECT_EQ(rpoll(entries.data(), entries.size(), -1), 60);
}

TEST(Select, ReportsReadySockets) {
  const Pair pair = connected_pair();
  const Pipe pipe;
  const int top = std::max({pair.client.get(), pair.server.get(), pipe.ends[0]}) + 1;
  ASSERT_LE(top, FD_SETSIZE);
  fd_set reading, writing, except;
  const auto fill = [&] {
    for (fd_set* set : {&reading, &writing, &except}) FD_ZERO(set);
    FD_SET(pair.client.get(), &reading);
    FD_SET(pipe.ends[0], &reading);
    FD_SET(pair.server.get(), &except);
  };
  fill();
  timeval limit{0, 10'000};
  EXPECT_EQ(rselect(top, &reading, &writing, &except, &limit), 0);
  EXPECT_FALSE(FD_ISSET(pair.client.get(), &reading));
  fill();
  FD_SET(pair.client.get(), &writing);
  EXPECT_EQ(rsend(pair.server.get(), "x", 1, 0), 1);
  while (!(poll_one(pair.client.get(), POLLIN) & POLLIN)) {
  }
  EXPECT_EQ(rselect(top, &reading, &writing, &except, nullptr), 2);
  EXPECT_TRUE(FD_ISSET(pair.client.get(), &reading));
  EXPECT_TRUE(FD_ISSET(pair.client.get(), &writing));
  EXPECT_FALSE(FD_ISSET(pipe.ends[0], &reading));
  EXPECT_ERRNO(rselect(-1, nullptr, nullptr, nullptr, nullptr), EINVAL);
  limit = {0, -1};
  EXPECT_ERRNO(rselect(0, nullptr, nullptr, nullptr, &limit), EINVAL);
}

}  // namespace
}  // namespace verbena::test

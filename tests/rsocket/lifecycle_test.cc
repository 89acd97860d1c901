// Opening and closing sockets: thousands of times, many at once, in threads that are cancelled, in
// processes that fork, exit or are killed.
#include <gtest/gtest.h>

#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "tests/rsocket/socket_support.h"
#include "tests/support/fork_watch.h"

namespace verbena::test {
namespace {

// An rsocket number is a descriptor, so it cannot collide with another descriptor.
TEST(Lifecycle, SocketsAreDescriptors) {
  const Rsocket stream = stream_socket();
  const Rsocket datagram(rsocket(AF_INET, SOCK_DGRAM, 0));
  EXPECT_NE(::fcntl(stream.get(), F_GETFD), -1);
  EXPECT_NE(::fcntl(datagram.get(), F_GETFD), -1);
  const int plain = ::dup(0);
  EXPECT_NE(plain, stream.get());
  EXPECT_NE(plain, datagram.get());
  ::close(plain);
}

// Debian's preload library opens a descriptor before it accepts, and expects a higher number for
// the new socket.
TEST(Lifecycle, AcceptAllocatesTheDescriptor) {
  Address at;
  const Rsocket listening = listener(&at);
  const Rsocket client = stream_socket();
  connect_to(client, at);
  poll_one(listening.get(), POLLIN);
  const int plain = ::dup(0);
  const Rsocket server = accepted(listening);
  EXPECT_GT(server.get(), plain);
  ::close(plain);
}

// Descriptors that a thread of the library opened and closed meanwhile do not change this.
TEST(Lifecycle, AnAcceptedSocketHasAHigherNumberAlthoughLowerOnesAreFree) {
  Address at;
  const Rsocket listening = listener(&at);
  const Rsocket client = stream_socket();
  connect_to(client, at);
  poll_one(listening.get(), POLLIN);
  std::vector<int> temporary(20);
  for (int& fd : temporary) fd = ::dup(0);
  const int plain = ::dup(0);
  for (const int fd : temporary) ::close(fd);
  const Rsocket server = accepted(listening);
  EXPECT_GT(server.get(), plain);
  ::close(plain);
}

TEST(Lifecycle, OpeningAndClosingLeaksNoDescriptors) {
  const auto once = [] {
    const Rsocket stream = stream_socket();
    const Rsocket datagram(rsocket(AF_INET, SOCK_DGRAM, 0));
    EXPECT_GE(datagram.get(), 0);
  };
  once();
  const size_t before = open_descriptors();
  for (int i = 0; i < 2000; ++i) once();
  EXPECT_TRUE(descriptors_fall_to(before)) << open_descriptors() << ", not " << before;
}

TEST(Lifecycle, ConnectingAndClosingLeaksNoDescriptors) {
  Address at;
  const Rsocket listening = listener(&at);
  const auto once = [&](int i) {
    Rsocket client = stream_socket();
    connect_to(client, at);
    Rsocket server = accepted(listening);
    if (i % 3 == 0) {
      EXPECT_EQ(rsend(client.get(), "x", 1, 0), 1);
    }
    if (i % 2 == 0) server.close();
  };
  for (int i = 0; i < 6; ++i) once(i);
  const size_t before = open_descriptors();
  for (int i = 0; i < 300; ++i) once(i);
  EXPECT_TRUE(descriptors_fall_to(before)) << open_descriptors() << ", not " << before;
}

TEST(Lifecycle, RefusedAndUnacceptedConnectionsLeakNoDescriptors) {
  Address unused;
  listener(&unused);
  const auto once = [&] {
    Rsocket refused = stream_socket();
    EXPECT_ERRNO(rconnect(refused.get(), unused.get(), unused.length), ECONNREFUSED);
    Address at;
    const Rsocket listening = listener(&at);
    Rsocket unaccepted = stream_socket();
    connect_to(unaccepted, at);
    Rsocket unfinished = stream_socket();
    set_nonblocking(unfinished.get());
    EXPECT_ERRNO(rconnect(unfinished.get(), at.get(), at.length), EINPROGRESS);
  };
  once();
  const size_t before = open_descriptors();
  for (int i = 0; i < 20; ++i) once();
  EXPECT_TRUE(descriptors_fall_to(before)) << open_descriptors() << ", not " << before;
}

TEST(Lifecycle, ManyConnectionsCanBeOpen) {
  rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  constexpr int kCount = 200;
  Address at;
  const Rsocket listening = listener(&at, "127.0.0.1", kCount);
  std::vector<Rsocket> clients, servers;
  for (int i = 0; i < kCount; ++i) {
    clients.push_back(stream_socket());
    connect_to(clients.back(), at);
    servers.push_back(accepted(listening));
  }
  for (int i = 0; i < kCount; ++i) {
    EXPECT_EQ(rsend(clients[static_cast<size_t>(i)].get(), &i, sizeof i, 0),
              static_cast<ssize_t>(sizeof i));
  }
  std::vector<pollfd> entries;
  for (const Rsocket& server : servers) entries.push_back({server.get(), POLLIN, 0});
  for (int i = 0; i < kCount; ++i) {
    int got = -1;
    EXPECT_EQ(rrecv(servers[static_cast<size_t>(i)].get(), &got, sizeof got, MSG_WAITALL),
              static_cast<ssize_t>(sizeof got));
    EXPECT_EQ(got, i);
  }
  EXPECT_EQ(rpoll(entries.data(), entries.size(), 0), 0);
}

TEST(Lifecycle, ManyThreadsCanConnectAtOnce) {
  Address at;
  const Rsocket listening = listener(&at, "127.0.0.1", 64);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 25; ++n) {
        Rsocket client = stream_socket();
        connect_to(client, at);
        char byte = 0;
        EXPECT_EQ(rrecv(client.get(), &byte, 1, 0), 1) << strerror(errno);
        EXPECT_EQ(byte, '!');
      }
    });
  }
  for (int i = 0; i < 200; ++i) {
    const Rsocket server = accepted(listening);
    EXPECT_EQ(rsend(server.get(), "!", 1, 0), 1);
  }
  for (std::thread& thread : threads) thread.join();
}

// Threads open, use, poll and close the same sockets at random. Nothing may crash or hang.
TEST(Lifecycle, SurvivesCloseWhileOtherThreadsUseTheSocket) {
  Address at;
  const Rsocket listening = listener(&at, "127.0.0.1", 64);
  std::atomic<bool> stop{false};
  std::array<std::atomic<int>, 4> numbers{};
  for (auto& number : numbers) number = -1;
  std::thread accepting([&] {
    set_nonblocking(listening.get());
    while (!stop) {
      const int number = raccept(listening.get(), nullptr, nullptr);
      if (number < 0) {
        poll_one(listening.get(), POLLIN, 5);
        continue;
      }
      char bytes[100];
      while (rrecv(number, bytes, sizeof bytes, MSG_DONTWAIT) > 0) {
      }
      rclose(number);
    }
  });
  std::vector<std::thread> users;
  for (int i = 0; i < 3; ++i) {
    users.emplace_back([&, i] {
      char bytes[1000] = "";
      for (unsigned n = 0; !stop; ++n) {
        const int number = numbers[n % numbers.size()];
        if (i == 0) rsend(number, bytes, sizeof bytes, MSG_DONTWAIT);
        if (i == 1) rrecv(number, bytes, sizeof bytes, MSG_DONTWAIT);
        pollfd entry{number, POLLIN, 0};
        if (i == 2 && number >= 0) rpoll(&entry, 1, 1);
      }
    });
  }
  for (int round = 0; round < 100; ++round) {
    const int number = rsocket(AF_INET, SOCK_STREAM, 0);
    ASSERT_GE(number, 0);
    rconnect(number, at.get(), at.length);
    const int old = numbers[static_cast<size_t>(round) % numbers.size()].exchange(number);
    if (old >= 0) {
      EXPECT_EQ(rclose(old), 0);
    }
  }
  stop = true;
  for (std::thread& user : users) user.join();
  accepting.join();
  for (auto& number : numbers) EXPECT_EQ(rclose(number), 0);
}

TEST(Lifecycle, AWaitingThreadCanBeCancelled) {
  const Pair pair = connected_pair();
  for (int i = 0; i < 5; ++i) {
    pthread_t thread;
    int number = pair.server.get();
    ASSERT_EQ(pthread_create(
                  &thread, nullptr,
                  [](void* socket) -> void* {
                    char byte;
                    rrecv(*static_cast<int*>(socket), &byte, 1, 0);
                    return nullptr;
                  },
                  &number),
              0);
    ASSERT_EQ(pthread_cancel(thread), 0);
    void* result = nullptr;
    ASSERT_EQ(pthread_join(thread, &result), 0);
    EXPECT_EQ(result, PTHREAD_CANCELED);
  }
  // No lock is held.
  EXPECT_EQ(rsend(pair.client.get(), "x", 1, 0), 1);
  char byte;
  EXPECT_EQ(rrecv(pair.server.get(), &byte, 1, 0), 1);
}

// --- processes ---------------------------------------------------------------------------------

// The child connects to the parent's listener. The tests check the parent's socket.
class Processes : public ::testing::Test {
 protected:
  // Forks first, so that the child has no rsocket, and sends it the port afterwards.
  void start(const std::function<void(Rsocket&)>& work) {
    ASSERT_EQ(::pipe(pipe_), 0);
    child_ = std::make_unique<Child>([&] {
      uint16_t port = 0;
      if (::read(pipe_[0], &port, sizeof port) != sizeof port) ::_exit(2);
      Rsocket socket = stream_socket();
      const Address to = ip("127.0.0.1", port);
      if (rconnect(socket.get(), to.get(), to.length) != 0) ::_exit(3);
      work(socket);
    });
    Address at;
    listening_ = listener(&at);
    const uint16_t port = at.port();
    ASSERT_EQ(::write(pipe_[1], &port, sizeof port), static_cast<ssize_t>(sizeof port));
    server_ = accepted(listening_);
  }
  // The same with a child that is killed.
  void start_killed() {
    start([](Rsocket& socket) {
      rsend(socket.get(), "x", 1, 0);
      for (;;) ::pause();
    });
    char byte;
    ASSERT_EQ(rrecv(server_.get(), &byte, 1, 0), 1);
    child_->kill();
    child_->wait();
  }
  void TearDown() override {
    child_.reset();
    ::close(pipe_[0]);
    ::close(pipe_[1]);
  }

  int pipe_[2] = {-1, -1};
  std::unique_ptr<Child> child_;
  Rsocket listening_;
  Rsocket server_;
};

void echo(Rsocket& socket) {
  char byte;
  while (rrecv(socket.get(), &byte, 1, 0) == 1) rsend(socket.get(), &byte, 1, 0);
}

void echo_once(const Rsocket& with) {
  char byte = 0;
  ASSERT_EQ(rsend(with.get(), "e", 1, 0), 1) << strerror(errno);
  ASSERT_EQ(rrecv(with.get(), &byte, 1, 0), 1) << strerror(errno);
  EXPECT_EQ(byte, 'e');
}

// How often the thread of that name in this process was woken.
uint64_t wake_ups_of(const std::string& name) {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string line;
    std::getline(std::ifstream(task.path() / "comm"), line);
    if (line != name) continue;
    std::ifstream status(task.path() / "status");
    const std::string wanted = "voluntary_ctxt_switches:";
    while (std::getline(status, line)) {
      if (line.starts_with(wanted)) return std::stoull(line.substr(wanted.size()));
    }
  }
  return 0;
}

TEST_F(Processes, ExchangeStreams) {
  start([](Rsocket& socket) {
    receive_stream(socket.get(), 20, 2'000'000);
    send_stream(socket.get(), 21, 2'000'000);
  });
  send_stream(server_.get(), 20, 2'000'000);
  receive_stream(server_.get(), 21, 2'000'000);
  EXPECT_EQ(child_->wait(), 0);
}

TEST_F(Processes, ExitWithoutCloseSendsAllData) {
  start([](Rsocket& socket) {
    const auto bytes = stream_bytes(22, 0, 100'000);
    rsend(socket.get(), bytes.data(), bytes.size(), 0);
    socket.release();
    ::exit(0);
  });
  receive_stream(server_.get(), 22, 100'000);
  char byte;
  EXPECT_EQ(rrecv(server_.get(), &byte, 1, 0), 0);
}

TEST_F(Processes, ReceiveReturnsZeroAfterThePeerIsKilled) {
  start_killed();
  char byte;
  // As with TCP, where the kernel closes the connection for it.
  EXPECT_EQ(rrecv(server_.get(), &byte, 1, 0), 0);
  EXPECT_ERRNO(rsend(server_.get(), &byte, 1, 0), ECONNRESET);
  EXPECT_ERRNO(rsend(server_.get(), &byte, 1, 0), EPIPE);
}

TEST_F(Processes, SendFailsAfterThePeerIsKilled) {
  start_killed();
  std::vector<uint8_t> bytes(10'000);
  ssize_t sent;
  while ((sent = rsend(server_.get(), bytes.data(), bytes.size(), 0)) > 0) {
  }
  EXPECT_EQ(errno, ECONNRESET);
  EXPECT_TRUE(poll_one(server_.get(), POLLOUT) & POLLHUP);
}

TEST_F(Processes, PollReportsThatThePeerIsKilled) {
  start([](Rsocket& socket) {
    char byte;
    rrecv(socket.get(), &byte, 1, 0);
    ::kill(::getpid(), SIGKILL);
  });
  char byte;
  ASSERT_EQ(rsend(server_.get(), "x", 1, 0), 1);
  // As with TCP, where the kernel closes the connection for it.
  EXPECT_TRUE(poll_one(server_.get(), POLLIN, 60'000) & POLLIN);
  EXPECT_EQ(rrecv(server_.get(), &byte, 1, 0), 0);
}

// A debugger stopped the peer, or its machine sleeps. Without keepalive an idle connection stays
// and costs nothing: the service thread is never woken.
TEST_F(Processes, AnIdleConnectionToAStoppedPeerStays) {
  start(echo);
  echo_once(server_);
  child_->stop();
  EXPECT_EQ(poll_one(server_.get(), POLLIN, 1'000), 0);  // nothing is in flight any more
  const uint64_t before = wake_ups_of("rsocket");
  EXPECT_GT(before, 0u);
  EXPECT_EQ(poll_one(server_.get(), POLLIN, 15'000), 0);  // longer than all retries of a queue pair
  EXPECT_EQ(wake_ups_of("rsocket"), before);
  child_->resume();
  echo_once(server_);
  server_.close();
  EXPECT_EQ(child_->wait(), 0);
}

TEST_F(Processes, KeepaliveEndsTheConnectionToAStoppedPeer) {
  start(echo);
  echo_once(server_);
  set_int(server_.get(), IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set_int(server_.get(), IPPROTO_TCP, TCP_KEEPINTVL, 3);
  set_int(server_.get(), IPPROTO_TCP, TCP_KEEPCNT, 2);
  set_int(server_.get(), SOL_SOCKET, SO_KEEPALIVE, 1);
  ::usleep(2'500'000);  // a few probes with a response
  echo_once(server_);
  child_->stop();
  EXPECT_TRUE(poll_one(server_.get(), POLLIN, 60'000) & POLLERR);
  char byte;
  EXPECT_ERRNO(rrecv(server_.get(), &byte, 1, 0), ETIMEDOUT);
  child_->resume();
}

TEST(Fork, TheChildCannotUseTheParentsSockets) {
  Pair pair = connected_pair();
  Child child([&] {
    char byte = 0;
    EXPECT_ERRNO(rsend(pair.client.get(), &byte, 1, 0), EBADF);
    EXPECT_EQ(rclose(pair.client.get()), 0);  // its copy
    EXPECT_ERRNO(rclose(pair.client.get()), EBADF);
    pair.client.release();
    // The child can create its own sockets.
    const Pair own = connected_pair();
    EXPECT_EQ(rsend(own.client.get(), "y", 1, 0), 1);
    EXPECT_EQ(rrecv(own.server.get(), &byte, 1, 0), 1);
    EXPECT_EQ(byte, 'y');
    pair.server.release();
  });
  EXPECT_EQ(child.wait(), 0);
  // The parent's sockets still work.
  char byte;
  EXPECT_EQ(rsend(pair.client.get(), "x", 1, 0), 1);
  EXPECT_EQ(rrecv(pair.server.get(), &byte, 1, 0), 1);
}

TEST(Fork, HandlersInTheChildNeitherAllocateNorLock) {
  const Pair pair = connected_pair();
  expect_safe_fork_handlers();
}

// A daemon forks twice.
TEST(Fork, AGrandchildCanCloseSocketsThatTheChildDidNotClose) {
  Pair pair = connected_pair();
  Child child([&] {
    EXPECT_EQ(rclose(pair.server.release()), 0);
    Child grandchild([&] {
      const int number = pair.client.release();
      EXPECT_EQ(rclose(number), 0) << strerror(errno);
      EXPECT_EQ(::fcntl(number, F_GETFD), -1);
    });
    EXPECT_EQ(grandchild.wait(), 0);
    pair.client.release();
  });
  EXPECT_EQ(child.wait(), 0);
  char byte;
  EXPECT_EQ(rsend(pair.client.get(), "x", 1, 0), 1);
  EXPECT_EQ(rrecv(pair.server.get(), &byte, 1, 0), 1);
}

}  // namespace
}  // namespace verbena::test

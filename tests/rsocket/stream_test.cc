// Streams: data, the forms of the calls, connecting, closing one or both directions, addresses.
#include <gtest/gtest.h>

#include <fcntl.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <thread>

#include "tests/rsocket/socket_support.h"

namespace verbena::test {
namespace {

class StreamOn : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (std::string(GetParam()).find(':') != std::string::npos && !has_ipv6()) {
      GTEST_SKIP() << "no IPv6 on this host";
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Loopback, StreamOn, ::testing::Values("127.0.0.1", "::1"),
                         [](const auto& address) { return address.index ? "v6" : "v4"; });

TEST_P(StreamOn, DeliversEveryByteInBothDirections) {
  const Pair pair = connected_pair(GetParam());
  constexpr uint64_t kTotal = 6'000'000;
  std::thread to_server([&] { send_stream(pair.client.get(), 1, kTotal); });
  std::thread at_server([&] { receive_stream(pair.server.get(), 1, kTotal); });
  std::thread to_client([&] { send_stream(pair.server.get(), 2, kTotal); });
  receive_stream(pair.client.get(), 2, kTotal);
  to_server.join();
  at_server.join();
  to_client.join();
}

TEST_P(StreamOn, BothEndsReportTheirAddresses) {
  const Pair pair = connected_pair(GetParam());
  EXPECT_EQ(name_of(pair.client.get()).text(), GetParam());
  EXPECT_EQ(name_of(pair.client.get()).port(), peer_of(pair.server.get()).port());
  EXPECT_EQ(peer_of(pair.client.get()).text(), GetParam());
  EXPECT_EQ(peer_of(pair.client.get()).port(), name_of(pair.server.get()).port());
}

// Buffers are so small and queues so short, also without inline data, that every limit is always
// hit.
TEST(Stream, DeliversEveryByteThroughTheSmallestBuffers) {
  for (const int inline_bytes : {0, 64}) {
    const Pair pair = connected_pair("127.0.0.1", [&](int socket) {
      set_int(socket, SOL_SOCKET, SO_SNDBUF, 1);
      set_int(socket, SOL_SOCKET, SO_RCVBUF, 1);
      set_int(socket, SOL_RDMA, RDMA_SQSIZE, 1);
      set_int(socket, SOL_RDMA, RDMA_RQSIZE, 1);
      set_int(socket, SOL_RDMA, RDMA_INLINE, inline_bytes);
    });
    std::thread sending([&] { send_stream(pair.client.get(), 3, 300'000); });
    receive_stream(pair.server.get(), 3, 300'000);
    sending.join();
  }
}

TEST(Stream, BothEndsCanSendBeforeTheOtherReads) {
  const Pair pair = connected_pair();
  const std::vector<uint8_t> bytes = stream_bytes(4, 0, 50'000);
  EXPECT_EQ(rsend(pair.client.get(), bytes.data(), bytes.size(), 0), 50'000);
  EXPECT_EQ(rsend(pair.server.get(), bytes.data(), bytes.size(), 0), 50'000);
  std::vector<uint8_t> got(bytes.size());
  EXPECT_EQ(rrecv(pair.client.get(), got.data(), got.size(), MSG_WAITALL), 50'000);
  EXPECT_EQ(got, bytes);
  EXPECT_EQ(rrecv(pair.server.get(), got.data(), got.size(), MSG_WAITALL), 50'000);
  EXPECT_EQ(got, bytes);
}

TEST(Stream, NonblockingCallsTransferWhatFits) {
  const Pair pair = connected_pair();
  set_nonblocking(pair.client.get());
  set_nonblocking(pair.server.get());
  char byte;
  EXPECT_ERRNO(rrecv(pair.server.get(), &byte, 1, 0), EAGAIN);
  EXPECT_ERRNO(rrecv(pair.server.get(), &byte, 1, MSG_WAITALL), EAGAIN);
  constexpr uint64_t kTotal = 3'000'000;
  uint64_t sent = 0, received = 0;
  while (received < kTotal) {
    if (sent < kTotal) {
      const auto bytes = stream_bytes(5, sent, std::min<uint64_t>(100'000, kTotal - sent));
      const ssize_t done = rsend(pair.client.get(), bytes.data(), bytes.size(), 0);
      if (done < 0) {
        ASSERT_EQ(errno, EAGAIN);
      } else {
        sent += static_cast<uint64_t>(done);
      }
    }
    std::vector<uint8_t> bytes(70'000);
    const ssize_t got = rrecv(pair.server.get(), bytes.data(), bytes.size(), 0);
    if (got < 0) {
      ASSERT_EQ(errno, EAGAIN);
      continue;
    }
    bytes.resize(static_cast<size_t>(got));
    ASSERT_EQ(bytes, stream_bytes(5, received, bytes.size()));
    received += bytes.size();
  }
}

TEST(Stream, DontwaitAppliesToOneCall) {
  const Pair pair = connected_pair();
  char byte;
  EXPECT_ERRNO(rrecv(pair.client.get(), &byte, 1, MSG_DONTWAIT), EAGAIN);
  // The window becomes full; a partial send returns the number of bytes.
  std::vector<uint8_t> large(4'000'000);
  const ssize_t sent = rsend(pair.client.get(), large.data(), large.size(), MSG_DONTWAIT);
  EXPECT_GT(sent, 0);
  EXPECT_LT(sent, 4'000'000);
  // More sends fill the rest and then fail.
  while (rsend(pair.client.get(), large.data(), large.size(), MSG_DONTWAIT) > 0) {
  }
  EXPECT_EQ(errno, EAGAIN);
}

TEST(Stream, PeekDoesNotConsumeData) {
  const Pair pair = connected_pair();
  const auto bytes = stream_bytes(6, 0, 100'000);
  std::thread sending([&] { rsend(pair.client.get(), bytes.data(), bytes.size(), 0); });
  std::vector<uint8_t> seen(1000);
  EXPECT_EQ(rrecv(pair.server.get(), seen.data(), seen.size(), MSG_PEEK | MSG_WAITALL) > 0, true);
  uint64_t done = 0;
  while (done < bytes.size()) {
    std::vector<uint8_t> peeked(30'000), read(30'000);
    const ssize_t peeked_bytes = rrecv(pair.server.get(), peeked.data(), peeked.size(), MSG_PEEK);
    ASSERT_GT(peeked_bytes, 0);
    const ssize_t got = rrecv(pair.server.get(), read.data(), static_cast<size_t>(peeked_bytes), 0);
    ASSERT_EQ(got, peeked_bytes);
    peeked.resize(static_cast<size_t>(peeked_bytes));
    read.resize(static_cast<size_t>(peeked_bytes));
    ASSERT_EQ(peeked, read);
    ASSERT_EQ(read, stream_bytes(6, done, read.size()));
    done += read.size();
  }
  sending.join();
}

// A program may peek until a whole header has been received. This test sleeps between the calls,
// because a poll would read new data itself.
TEST(Stream, PeekReturnsDataReceivedSinceTheLastPeek) {
  const Pair pair = connected_pair();
  char seen[8];
  EXPECT_EQ(rsend(pair.client.get(), "abcd", 4, 0), 4);
  EXPECT_EQ(rrecv(pair.server.get(), seen, sizeof seen, MSG_PEEK), 4);
  EXPECT_EQ(rsend(pair.client.get(), "efgh", 4, 0), 4);
  ssize_t peeked_bytes = 0;
  for (int i = 0; i < 5000 && peeked_bytes != 8; ++i) {
    peeked_bytes = rrecv(pair.server.get(), seen, sizeof seen, MSG_PEEK);
    usleep(1000);
  }
  ASSERT_EQ(peeked_bytes, 8);
  EXPECT_EQ(std::string(seen, 8), "abcdefgh");
}

TEST(Stream, CallsWithLengthZeroReturnZero) {
  const Pair pair = connected_pair();
  EXPECT_EQ(rsend(pair.client.get(), nullptr, 0, 0), 0);
  EXPECT_EQ(rrecv(pair.client.get(), nullptr, 0, 0), 0);
  EXPECT_EQ(rwritev(pair.client.get(), nullptr, 0), 0);
}

TEST(Stream, ManyThreadsCanShareASocket) {
  const Pair pair = connected_pair();
  constexpr int kThreads = 4, kEach = 20'000;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (int n = 0; n < kEach; ++n) {
        const auto byte = static_cast<uint8_t>(i);
        ASSERT_EQ(rsend(pair.client.get(), &byte, 1, 0), 1);
      }
    });
  }
  std::array<std::atomic<int>, kThreads> seen{};
  std::atomic<int> total{0};
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      uint8_t bytes[100];
      ssize_t got;
      while ((got = rrecv(pair.server.get(), bytes, sizeof bytes, 0)) > 0) {
        for (ssize_t b = 0; b < got; ++b) ++seen.at(bytes[b]);
        total += static_cast<int>(got);
      }
      EXPECT_EQ(got, 0) << strerror(errno);
    });
  }
  for (int i = 0; i < kThreads; ++i) threads[static_cast<size_t>(i)].join();
  rshutdown(pair.client.get(), SHUT_WR);
  threads[kThreads].join();
  threads[kThreads + 1].join();
  EXPECT_EQ(total, kThreads * kEach);
  for (const auto& count : seen) EXPECT_EQ(count, kEach);
}

// --- connecting --------------------------------------------------------------------------------

TEST(Connecting, IsRefusedWithoutAListener) {
  Address at;
  listener(&at);  // and closes it
  Rsocket socket = stream_socket();
  EXPECT_ERRNO(rconnect(socket.get(), at.get(), at.length), ECONNREFUSED);
  // As with TCP, the same socket can connect again, to a listener.
  const Rsocket listening = listener(&at);
  connect_to(socket, at);
  const Rsocket server = accepted(listening);
  EXPECT_EQ(rsend(socket.get(), "x", 1, 0), 1);
}

// A nonblocking socket with a connection in progress.
Rsocket connecting_to(const Address& at) {
  Rsocket socket = stream_socket();
  set_nonblocking(socket.get());
  EXPECT_ERRNO(rconnect(socket.get(), at.get(), at.length), EINPROGRESS);
  return socket;
}

TEST(Connecting, NonblockingConnectReportsSuccessLater) {
  Address at;
  const Rsocket listening = listener(&at);
  const Rsocket socket = connecting_to(at);
  EXPECT_EQ(poll_one(socket.get(), POLLOUT), POLLOUT);
  EXPECT_EQ(get_int(socket.get(), SOL_SOCKET, SO_ERROR), 0);
}

TEST(Connecting, NonblockingConnectReportsTheRefusalLater) {
  Address at;
  listener(&at);
  const Rsocket socket = connecting_to(at);
  EXPECT_EQ(poll_one(socket.get(), POLLOUT) & (POLLERR | POLLOUT), POLLERR | POLLOUT);
  EXPECT_EQ(get_int(socket.get(), SOL_SOCKET, SO_ERROR), ECONNREFUSED);
  EXPECT_EQ(get_int(socket.get(), SOL_SOCKET, SO_ERROR), 0);
  EXPECT_ERRNO(rsend(socket.get(), "x", 1, 0), ENOTCONN);
}

// Some programs call connect again to get the result. As with TCP each attempt has one result.
TEST(Connecting, ASecondCallReportsSuccess) {
  Address at;
  const Rsocket listening = listener(&at);
  const Rsocket socket = connecting_to(at);
  EXPECT_EQ(poll_one(socket.get(), POLLOUT), POLLOUT);
  EXPECT_EQ(rconnect(socket.get(), at.get(), at.length), 0) << strerror(errno);
  EXPECT_ERRNO(rconnect(socket.get(), at.get(), at.length), EISCONN);
}

TEST(Connecting, ASecondCallReportsTheRefusal) {
  Address at;
  listener(&at);
  Rsocket socket = stream_socket();
  set_nonblocking(socket.get());
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_ERRNO(rconnect(socket.get(), at.get(), at.length), EINPROGRESS);
    EXPECT_TRUE(poll_one(socket.get(), POLLOUT) & POLLERR);
    EXPECT_ERRNO(rconnect(socket.get(), at.get(), at.length), ECONNREFUSED);
  }
  EXPECT_ERRNO(rconnect(socket.get(), at.get(), at.length), EINPROGRESS);
  EXPECT_TRUE(poll_one(socket.get(), POLLOUT) & POLLERR);
  EXPECT_EQ(get_int(socket.get(), SOL_SOCKET, SO_ERROR), ECONNREFUSED);
  EXPECT_ERRNO(rconnect(socket.get(), at.get(), at.length), ECONNABORTED);
}

TEST(Connecting, ASecondBlockingCallWaitsForTheResult) {
  Address at;
  const Rsocket listening = listener(&at);
  const Rsocket socket = connecting_to(at);
  set_nonblocking(socket.get(), false);
  EXPECT_EQ(rconnect(socket.get(), at.get(), at.length), 0) << strerror(errno);
  EXPECT_EQ(rsend(socket.get(), "x", 1, 0), 1);
}

// A refused socket can still bind and listen.
TEST(Connecting, ARefusedSocketCanListen) {
  Address unused;
  listener(&unused);
  Rsocket listening = stream_socket();
  EXPECT_ERRNO(rconnect(listening.get(), unused.get(), unused.length), ECONNREFUSED);
  const Address local = ip("127.0.0.1");
  EXPECT_EQ(rbind(listening.get(), local.get(), local.length), 0) << strerror(errno);
  EXPECT_EQ(rlisten(listening.get(), 1), 0) << strerror(errno);
  Rsocket client = stream_socket();
  connect_to(client, name_of(listening.get()));
  const Rsocket server = accepted(listening);
}

TEST(Connecting, SendWaitsForTheConnection) {
  Address at;
  const Rsocket listening = listener(&at);
  const Rsocket socket = connecting_to(at);
  set_nonblocking(socket.get(), false);
  EXPECT_EQ(rsend(socket.get(), "hello", 5, 0), 5);
  const Rsocket server = accepted(listening);
  char text[6] = {};
  EXPECT_EQ(rrecv(server.get(), text, 5, MSG_WAITALL), 5);
  EXPECT_STREQ(text, "hello");
}

TEST(Connecting, NeedsNoAccept) {
  Address at;
  const Rsocket listening = listener(&at, "127.0.0.1", 1);
  std::vector<Rsocket> clients;
  for (int i = 0; i < 5; ++i) {
    clients.push_back(stream_socket());
    connect_to(clients.back(), at);
    EXPECT_EQ(rsend(clients.back().get(), &i, sizeof i, 0), static_cast<ssize_t>(sizeof i));
  }
  // They are accepted in order.
  for (int i = 0; i < 5; ++i) {
    const Rsocket server = accepted(listening);
    int got = -1;
    EXPECT_EQ(rrecv(server.get(), &got, sizeof got, MSG_WAITALL), static_cast<ssize_t>(sizeof i));
    EXPECT_EQ(got, i);
  }
}

TEST(Connecting, NonblockingAcceptReturnsEagain) {
  Address at;
  const Rsocket listening = listener(&at);
  set_nonblocking(listening.get());
  EXPECT_ERRNO(raccept(listening.get(), nullptr, nullptr), EAGAIN);
  EXPECT_EQ(poll_one(listening.get(), POLLIN, 0), 0);
  Rsocket client = stream_socket();
  connect_to(client, at);
  EXPECT_EQ(poll_one(listening.get(), POLLIN), POLLIN);
  Address peer;
  Rsocket server(raccept(listening.get(), peer.get(), &peer.length));
  ASSERT_GE(server.get(), 0) << strerror(errno);
  EXPECT_EQ(peer.port(), name_of(client.get()).port());
  // As in Linux, the new socket does not inherit O_NONBLOCK.
  EXPECT_EQ(rfcntl(server.get(), F_GETFL) & O_NONBLOCK, 0);
}

TEST(Connecting, ShutdownEndsAWaitingAccept) {
  Address at;
  Rsocket listening = listener(&at);
  std::thread waiting(
      [number = listening.get()] { EXPECT_ERRNO(raccept(number, nullptr, nullptr), EINVAL); });
  while (rshutdown(listening.get(), SHUT_RDWR) != 0) {
  }
  waiting.join();
}

TEST(Connecting, AListenerRefusesAfterShutdownUntilItListensAgain) {
  Address at;
  listener(&at);  // a free port
  Rsocket listening = stream_socket();
  ASSERT_EQ(rbind(listening.get(), at.get(), at.length), 0) << strerror(errno);
  ASSERT_EQ(rlisten(listening.get(), 8), 0) << strerror(errno);
  Rsocket unaccepted = stream_socket();
  connect_to(unaccepted, at);
  EXPECT_EQ(rshutdown(listening.get(), SHUT_WR), 0);  // no effect
  EXPECT_EQ(poll_one(listening.get(), POLLIN), POLLIN);
  EXPECT_EQ(rshutdown(listening.get(), SHUT_RD), 0);
  char byte;
  EXPECT_EQ(rrecv(unaccepted.get(), &byte, 1, 0), 0);
  EXPECT_TRUE(poll_one(listening.get(), POLLIN) & POLLHUP);
  EXPECT_ERRNO(raccept(listening.get(), nullptr, nullptr), EINVAL);
  Rsocket refused = stream_socket();
  EXPECT_ERRNO(rconnect(refused.get(), at.get(), at.length), ECONNREFUSED);

  EXPECT_EQ(name_of(listening.get()).port(), at.port());
  EXPECT_EQ(rlisten(listening.get(), 8), 0) << strerror(errno);
  Rsocket client = stream_socket();
  connect_to(client, at);
  const Rsocket server = accepted(listening);
  EXPECT_EQ(rsend(client.get(), "x", 1, 0), 1);
  EXPECT_EQ(rrecv(server.get(), &byte, 1, 0), 1);
}

// A client that connects at that moment is refused or disconnected. None waits indefinitely.
TEST(Connecting, ShutdownOfAListenerEndsPendingConnects) {
  for (int round = 0; round < 10; ++round) {
    Address at;
    const Rsocket listening = listener(&at);
    std::vector<std::thread> clients;
    std::atomic<int> begun{0};
    for (int i = 0; i < 4; ++i) {
      clients.emplace_back([&] {
        Rsocket client = stream_socket();
        char byte;
        ++begun;
        if (rconnect(client.get(), at.get(), at.length) == 0) {
          EXPECT_EQ(rrecv(client.get(), &byte, 1, 0), 0);
        } else {
          EXPECT_EQ(errno, ECONNREFUSED) << strerror(errno);
        }
      });
    }
    while (begun < 1 + round % 4) std::this_thread::yield();
    EXPECT_EQ(rshutdown(listening.get(), SHUT_RDWR), 0);
    for (std::thread& client : clients) client.join();
  }
}

TEST(Connecting, ClosingAListenerDisconnectsUnacceptedClients) {
  Address at;
  Rsocket listening = listener(&at);
  Rsocket client = stream_socket();
  connect_to(client, at);
  listening.close();
  char byte;
  EXPECT_EQ(rrecv(client.get(), &byte, 1, 0), 0);
}

TEST(Connecting, WildcardListenersAcceptBothFamilies) {
  if (!has_ipv6()) GTEST_SKIP() << "no IPv6 on this host";
  Address at;
  const Rsocket listening = listener(&at, "::");
  for (const char* address : {"127.0.0.1", "::1"}) {
    const Address to = ip(address, at.port());
    Rsocket client = stream_socket(to.storage.ss_family);
    connect_to(client, to);
    const Rsocket server = accepted(listening);
    // An IPv6 socket sees IPv4 in its mapped form.
    EXPECT_EQ(peer_of(server.get()).storage.ss_family, AF_INET6);
    EXPECT_EQ(peer_of(server.get()).text(),
              std::string(address) == "::1" ? "::1" : "::ffff:127.0.0.1");
  }
}

TEST(Connecting, MappedAddressesReachIpv4) {
  if (!has_ipv6()) GTEST_SKIP() << "no IPv6 on this host";
  Address at;
  const Rsocket listening = listener(&at);
  Rsocket client = stream_socket(AF_INET6);
  connect_to(client, ip("::ffff:127.0.0.1", at.port()));
  EXPECT_EQ(peer_of(client.get()).text(), "::ffff:127.0.0.1");
}

TEST(Connecting, TheWildcardAddressMeansThisHost) {
  Address at;
  const Rsocket listening = listener(&at, "0.0.0.0");
  Rsocket client = stream_socket();
  connect_to(client, ip("0.0.0.0", at.port()));
  EXPECT_EQ(peer_of(client.get()).text(), "127.0.0.1");
}

TEST(Connecting, RejectsAUsedPort) {
  Address at;
  const Rsocket listening = listener(&at);
  Rsocket second = stream_socket();
  EXPECT_ERRNO(rbind(second.get(), at.get(), at.length), EADDRINUSE);
}

TEST(Connecting, APortCanBeReusedAtOnce) {
  Address at;
  {
    const Rsocket listening = listener(&at);
    Rsocket client = stream_socket();
    connect_to(client, at);
    const Rsocket server = accepted(listening);
  }
  Rsocket again = stream_socket();
  set_int(again.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  EXPECT_EQ(rbind(again.get(), at.get(), at.length), 0) << strerror(errno);
  EXPECT_EQ(rlisten(again.get(), 1), 0) << strerror(errno);
}

// --- closing -----------------------------------------------------------------------------------

TEST(Closing, ReceiveReturnsTheRestAndThenZero) {
  Pair pair = connected_pair();
  const auto bytes = stream_bytes(7, 0, 60'000);
  EXPECT_EQ(rsend(pair.client.get(), bytes.data(), bytes.size(), 0), 60'000);
  pair.client.close();
  receive_stream(pair.server.get(), 7, 60'000);
  char byte;
  EXPECT_EQ(rrecv(pair.server.get(), &byte, 1, 0), 0);
  EXPECT_EQ(rrecv(pair.server.get(), &byte, 1, 0), 0);
  EXPECT_ERRNO(rsend(pair.server.get(), &byte, 1, 0), ECONNRESET);
}

TEST(Closing, PollReportsHangupAfterTheLastByte) {
  Pair pair = connected_pair();
  EXPECT_EQ(rsend(pair.client.get(), "x", 1, 0), 1);
  pair.client.close();
  while (!(poll_one(pair.server.get(), POLLIN | POLLRDHUP) & POLLRDHUP)) {
  }
  EXPECT_EQ(poll_one(pair.server.get(), POLLIN), POLLIN);
  char byte;
  EXPECT_EQ(rrecv(pair.server.get(), &byte, 1, 0), 1);
  EXPECT_EQ(poll_one(pair.server.get(), POLLIN), POLLIN | POLLHUP);
}

TEST(Closing, ShutdownOfOneDirectionKeepsTheOther) {
  const Pair pair = connected_pair();
  EXPECT_EQ(rsend(pair.client.get(), "requests", 8, 0), 8);
  EXPECT_EQ(rshutdown(pair.client.get(), SHUT_WR), 0);
  EXPECT_ERRNO(rsend(pair.client.get(), "x", 1, 0), EPIPE);
  char text[100];
  EXPECT_EQ(rrecv(pair.server.get(), text, sizeof text, MSG_WAITALL), 8);
  EXPECT_EQ(rrecv(pair.server.get(), text, sizeof text, 0), 0);
  EXPECT_EQ(poll_one(pair.server.get(), POLLIN | POLLOUT), POLLIN | POLLOUT);
  // The other direction wraps its buffers many times.
  std::thread replying([&] {
    send_stream(pair.server.get(), 8, 2'000'000);
    EXPECT_EQ(rshutdown(pair.server.get(), SHUT_WR), 0);
  });
  receive_stream(pair.client.get(), 8, 2'000'000);
  EXPECT_EQ(rrecv(pair.client.get(), text, sizeof text, 0), 0);
  replying.join();
  EXPECT_TRUE(poll_one(pair.client.get(), POLLIN) & POLLHUP);
  EXPECT_TRUE(poll_one(pair.server.get(), POLLIN) & POLLHUP);
}

TEST(Closing, BothEndsCanShutDownAtOnce) {
  const Pair pair = connected_pair();
  std::thread other([&] { EXPECT_EQ(rshutdown(pair.server.get(), SHUT_WR), 0); });
  EXPECT_EQ(rshutdown(pair.client.get(), SHUT_WR), 0);
  other.join();
  char byte;
  EXPECT_EQ(rrecv(pair.client.get(), &byte, 1, 0), 0);
  EXPECT_EQ(rrecv(pair.server.get(), &byte, 1, 0), 0);
}

TEST(Closing, ShutdownOfBothDirectionsClosesTheConnection) {
  const Pair pair = connected_pair();
  EXPECT_EQ(rshutdown(pair.client.get(), SHUT_RDWR), 0);
  EXPECT_EQ(rshutdown(pair.client.get(), SHUT_RDWR), 0);
  char byte;
  EXPECT_EQ(rrecv(pair.client.get(), &byte, 1, 0), 0);
  EXPECT_ERRNO(rsend(pair.client.get(), &byte, 1, 0), EPIPE);
  EXPECT_EQ(rrecv(pair.server.get(), &byte, 1, 0), 0);
  EXPECT_ERRNO(rsend(pair.server.get(), &byte, 1, 0), ECONNRESET);
}

TEST(Closing, WakesAReadingThread) {
  Pair pair = connected_pair();
  std::thread reading([number = pair.server.get()] {
    char byte;
    const ssize_t got = rrecv(number, &byte, 1, 0);
    EXPECT_TRUE(got == 0 || (got == -1 && errno == EBADF)) << got << strerror(errno);
  });
  pair.server.close();
  reading.join();
}

TEST(Closing, WakesAWritingThread) {
  Pair pair = connected_pair();
  std::atomic<bool> full{false};
  std::thread writing([&, number = pair.client.get()] {
    std::vector<uint8_t> large(1'000'000);
    while (rsend(number, large.data(), large.size(), MSG_DONTWAIT) > 0) {
    }
    full = true;
    EXPECT_EQ(rsend(number, large.data(), large.size(), 0), -1);
  });
  while (!full) std::this_thread::yield();
  pair.client.close();
  writing.join();
}

TEST(Closing, DoesNotWaitWithoutLinger) {
  Pair pair = connected_pair();
  const linger none{.l_onoff = 1, .l_linger = 0};
  EXPECT_EQ(rsetsockopt(pair.client.get(), SOL_SOCKET, SO_LINGER, &none, sizeof none), 0);
  pair.client.close();
  char byte;
  EXPECT_LE(rrecv(pair.server.get(), &byte, 1, 0), 0);
}

TEST(Closing, DoesNotWaitForAPeerThatDoesNotRead) {
  Pair pair = connected_pair();
  std::vector<uint8_t> large(1'000'000);
  while (rsend(pair.client.get(), large.data(), large.size(), MSG_DONTWAIT) > 0) {
  }
  pair.client.close();
  // All sent data can be received.
  ssize_t got;
  uint64_t total = 0;
  while ((got = rrecv(pair.server.get(), large.data(), large.size(), 0)) > 0) {
    total += static_cast<uint64_t>(got);
  }
  EXPECT_EQ(got, 0) << strerror(errno);
  EXPECT_GE(total, 128u * 1024);
}

TEST(Closing, ASignalInterruptsReceive) {
  struct sigaction action {};
  action.sa_handler = [](int) {};
  struct sigaction before;
  sigaction(SIGUSR1, &action, &before);
  const Pair pair = connected_pair();
  std::atomic<bool> done{false};
  std::thread reading([&] {
    char byte;
    EXPECT_ERRNO(rrecv(pair.server.get(), &byte, 1, 0), EINTR);
    done = true;
  });
  while (!done) {
    pthread_kill(reading.native_handle(), SIGUSR1);
    std::this_thread::yield();
  }
  reading.join();
  sigaction(SIGUSR1, &before, nullptr);
}

}  // namespace
}  // namespace verbena::test

// Datagrams: first through UDP, then between queue pairs, to several peers, and packets of other
// programs at the UDP port.
#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "tests/rsocket/socket_support.h"

namespace verbena::test {
namespace {

Rsocket datagram_socket(const std::string& address = "") {
  const Address at = ip(address.empty() ? "127.0.0.1" : address);
  Rsocket socket(rsocket(at.storage.ss_family, SOCK_DGRAM, 0));
  EXPECT_GE(socket.get(), 0) << strerror(errno);
  if (!address.empty()) {
    EXPECT_EQ(rbind(socket.get(), at.get(), at.length), 0) << strerror(errno);
  }
  return socket;
}

std::string receive_text(int socket, Address* from = nullptr) {
  char text[3000] = "";
  Address source;
  const ssize_t got = rrecvfrom(socket, text, sizeof text, 0, source.get(), &source.length);
  EXPECT_GE(got, 0) << strerror(errno);
  if (from) *from = source;
  return std::string(text, got > 0 ? static_cast<size_t>(got) : 0);
}

void send_text(int socket, const std::string& text, const Address& to) {
  EXPECT_EQ(rsendto(socket, text.data(), text.size(), 0, to.get(), to.length),
            static_cast<ssize_t>(text.size()))
      << strerror(errno);
}

class DatagramOn : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (std::string(GetParam()).find(':') != std::string::npos && !has_ipv6()) {
      GTEST_SKIP() << "no IPv6 on this host";
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Loopback, DatagramOn, ::testing::Values("127.0.0.1", "::1"),
                         [](const auto& address) { return address.index ? "v6" : "v4"; });

TEST_P(DatagramOn, TravelInBothDirections) {
  const Rsocket server = datagram_socket(GetParam());
  const Rsocket client = datagram_socket(GetParam());
  const Address to = name_of(server.get());
  // The first goes through UDP, later ones between queue pairs. Each gets a reply.
  for (int i = 0; i < 200; ++i) {
    const std::string request = "request " + std::to_string(i);
    send_text(client.get(), request, to);
    Address from;
    EXPECT_EQ(receive_text(server.get(), &from), request);
    EXPECT_EQ(from.text(), GetParam());
    EXPECT_EQ(from.port(), name_of(client.get()).port());
    send_text(server.get(), "reply " + std::to_string(i), from);
    EXPECT_EQ(receive_text(client.get()), "reply " + std::to_string(i));
  }
}

TEST(Datagram, TravelBetweenQueuePairsOnceTheyAreKnown) {
  const Rsocket server = datagram_socket("127.0.0.1");
  const Rsocket client = datagram_socket("127.0.0.1");
  const Address to = name_of(server.get());
  const auto ping_pong = [&] {
    send_text(client.get(), "x", to);
    Address from;
    EXPECT_EQ(receive_text(server.get(), &from), "x");
    send_text(server.get(), "y", from);
    EXPECT_EQ(receive_text(client.get()), "y");
  };
  for (int i = 0; i < 100; ++i) ping_pong();
  // The descriptor is the UDP socket. Connected to an unused port, it receives nothing, so later
  // datagrams travel between queue pairs.
  const Address elsewhere = ip("127.0.0.1", 9);
  ASSERT_EQ(::connect(server.get(), elsewhere.get(), elsewhere.length), 0);
  int received = 0;
  for (int i = 0; i < 1000 && received < 20; ++i) {
    send_text(client.get(), "z", to);
    if (poll_one(server.get(), POLLIN, 10) != POLLIN) continue;
    EXPECT_EQ(receive_text(server.get()), "z");
    ++received;
  }
  EXPECT_EQ(received, 20);
}

TEST(Datagram, ConnectedSocketsReceiveOnlyFromTheirPeer) {
  const Rsocket server = datagram_socket("127.0.0.1");
  const Rsocket other = datagram_socket("127.0.0.1");
  const Rsocket client = datagram_socket();
  const Address to = name_of(server.get());
  EXPECT_ERRNO(rsend(client.get(), "x", 1, 0), EDESTADDRREQ);
  ASSERT_EQ(rconnect(client.get(), to.get(), to.length), 0) << strerror(errno);
  EXPECT_EQ(peer_of(client.get()).port(), to.port());
  EXPECT_EQ(rsend(client.get(), "hello", 5, 0), 5);
  Address from;
  EXPECT_EQ(receive_text(server.get(), &from), "hello");
  send_text(other.get(), "from another", from);
  send_text(server.get(), "from the peer", from);
  EXPECT_EQ(receive_text(client.get()), "from the peer");
}

TEST(Datagram, OneSocketServesManyPeers) {
  const Rsocket server = datagram_socket("127.0.0.1");
  std::vector<Rsocket> clients;
  for (int i = 0; i < 20; ++i) clients.push_back(datagram_socket("127.0.0.1"));
  const Address to = name_of(server.get());
  for (int round = 0; round < 10; ++round) {
    for (const Rsocket& client : clients) {
      send_text(client.get(), std::to_string(client.get()), to);
      Address from;
      const std::string text = receive_text(server.get(), &from);
      EXPECT_EQ(text, std::to_string(client.get()));
      EXPECT_EQ(from.port(), name_of(client.get()).port());
      send_text(server.get(), text + " too", from);
      EXPECT_EQ(receive_text(client.get()), text + " too");
    }
  }
}

TEST(Datagram, KeepTheirBoundaries) {
  const Rsocket server = datagram_socket("127.0.0.1");
  const Rsocket client = datagram_socket("127.0.0.1");
  const Address to = name_of(server.get());
  // Empty, one byte, up to the limit of the queue pair, and beyond.
  for (int round = 0; round < 3; ++round) {
    for (const size_t size : {0u, 1u, 1000u, 1016u, 1024u, 2030u, 2040u, 2041u, 5000u, 60000u}) {
      const auto bytes = stream_bytes(14, 0, size);
      ASSERT_EQ(rsendto(client.get(), bytes.data(), size, 0, to.get(), to.length),
                static_cast<ssize_t>(size))
          << strerror(errno);
      std::vector<uint8_t> got(65536);
      ASSERT_EQ(rrecv(server.get(), got.data(), got.size(), 0), static_cast<ssize_t>(size));
      got.resize(size);
      EXPECT_EQ(got, bytes);
    }
  }
  std::vector<uint8_t> huge(70'000);
  EXPECT_ERRNO(rsendto(client.get(), huge.data(), huge.size(), 0, to.get(), to.length), EMSGSIZE);
}

TEST(Datagram, AreTruncatedToTheBuffer) {
  const Rsocket server = datagram_socket("127.0.0.1");
  const Rsocket client = datagram_socket("127.0.0.1");
  const Address to = name_of(server.get());
  for (int round = 0; round < 3; ++round) {
    send_text(client.get(), "0123456789", to);
    char text[5];
    EXPECT_EQ(rrecv(server.get(), text, 4, MSG_PEEK), 4);
    EXPECT_EQ(rrecv(server.get(), text, 4, MSG_PEEK | MSG_TRUNC), 10);
    iovec vectors[2] = {{text, 2}, {text + 2, 2}};
    msghdr message{};
    message.msg_iov = vectors;
    message.msg_iovlen = 2;
    EXPECT_EQ(rrecvmsg(server.get(), &message, 0), 4);
    EXPECT_TRUE(message.msg_flags & MSG_TRUNC);
    EXPECT_EQ(std::memcmp(text, "0123", 4), 0);
    EXPECT_ERRNO(rrecv(server.get(), text, 4, MSG_DONTWAIT), EAGAIN);
  }
}

TEST(Datagram, AreGatheredFromSeveralBuffers) {
  const Rsocket server = datagram_socket("127.0.0.1");
  const Rsocket client = datagram_socket("127.0.0.1");
  Address to = name_of(server.get());
  char a[] = "gath", b[] = "ered";
  iovec vectors[2] = {{a, 4}, {b, 4}};
  msghdr message{};
  message.msg_name = to.get();
  message.msg_namelen = to.length;
  message.msg_iov = vectors;
  message.msg_iovlen = 2;
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(rsendmsg(client.get(), &message, 0), 8);
    EXPECT_EQ(receive_text(server.get()), "gathered");
  }
}

TEST(Datagram, PollReportsThem) {
  const Rsocket server = datagram_socket("127.0.0.1");
  const Rsocket client = datagram_socket("127.0.0.1");
  const Address to = name_of(server.get());
  EXPECT_EQ(poll_one(server.get(), POLLIN, 0), 0);
  EXPECT_EQ(poll_one(server.get(), POLLOUT), POLLOUT);
  for (int round = 0; round < 30; ++round) {
    std::thread sending([&] { send_text(client.get(), "x", to); });
    EXPECT_EQ(poll_one(server.get(), POLLIN), POLLIN);
    EXPECT_EQ(receive_text(server.get()), "x");
    sending.join();
  }
}

TEST(Datagram, SendingBindsAnUnboundSocket) {
  const Rsocket server = datagram_socket("127.0.0.1");
  const Rsocket client = datagram_socket();
  send_text(client.get(), "x", name_of(server.get()));
  Address from;
  EXPECT_EQ(receive_text(server.get(), &from), "x");
  EXPECT_NE(from.port(), 0);
  send_text(server.get(), "y", from);
  EXPECT_EQ(receive_text(client.get()), "y");
}

TEST(Datagram, WildcardSocketsReplyFromTheAddressTheyReceivedAt) {
  const Rsocket server = datagram_socket("0.0.0.0");
  const Rsocket client = datagram_socket();
  const Address to = ip("127.0.0.1", name_of(server.get()).port());
  ASSERT_EQ(rconnect(client.get(), to.get(), to.length), 0);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(rsend(client.get(), "x", 1, 0), 1);
    Address from;
    EXPECT_EQ(receive_text(server.get(), &from), "x");
    send_text(server.get(), "y", from);
    EXPECT_EQ(receive_text(client.get()), "y");
  }
}

// A peer that restarts on its old port has another queue pair.
TEST(Datagram, ReachAPeerThatRestarts) {
  const Rsocket server = datagram_socket("127.0.0.1");
  const Address to = name_of(server.get());
  Address client_address = ip("127.0.0.1");
  for (int round = 0; round < 3; ++round) {
    Rsocket client(rsocket(AF_INET, SOCK_DGRAM, 0));
    ASSERT_EQ(rbind(client.get(), client_address.get(), client_address.length), 0);
    client_address = name_of(client.get());
    for (int i = 0; i < 10; ++i) {
      send_text(client.get(), "x", to);
      Address from;
      EXPECT_EQ(receive_text(server.get(), &from), "x");
      send_text(server.get(), "y", from);
      EXPECT_EQ(receive_text(client.get()), "y");
    }
  }
}

// A queue pair does not report that its peer has ended. A sender that receives nothing queries
// again through UDP.
TEST(Datagram, ReachAPeerThatRestartsAndNeverSends) {
  Rsocket server = datagram_socket("127.0.0.1");
  const Address to = name_of(server.get());
  const Rsocket client = datagram_socket("127.0.0.1");
  for (int i = 0; i < 100; ++i) {
    send_text(client.get(), "x", to);
    EXPECT_EQ(receive_text(server.get()), "x");
  }
  server.close();
  server = Rsocket(rsocket(AF_INET, SOCK_DGRAM, 0));
  ASSERT_EQ(rbind(server.get(), to.get(), to.length), 0) << strerror(errno);
  int received = 0;
  for (int i = 0; i < 600 && received < 3; ++i) {
    send_text(client.get(), "y", to);
    received += poll_one(server.get(), POLLIN, 100) == POLLIN;
    while (rrecv(server.get(), &received, 0, MSG_DONTWAIT) >= 0) {
    }
  }
  EXPECT_EQ(received, 3);
}

// Every program can send to the UDP port. This must not use up the resources of the process.
TEST(Datagram, ThousandsOfPeersDoNotExhaustDescriptors) {
  const Rsocket server = datagram_socket("127.0.0.1");
  const Address to = name_of(server.get());
  const Rsocket client = datagram_socket("127.0.0.1");
  send_text(client.get(), "first", to);  // opens the device
  EXPECT_EQ(receive_text(server.get()), "first");
  const size_t before = open_descriptors();
  constexpr uint8_t kData = 0, kReply = 7;
  for (const uint8_t op : {kData, kReply}) {
    const std::vector<uint8_t> bytes = {0x55, 0x55, 0x55, 0x55, 4,   op, 16, 0,
                                        0,    0,    0,    1,    127, 0,  0,  1};
    for (int i = 0; i < 5000; ++i) {
      const int plain = ::socket(AF_INET, SOCK_DGRAM, 0);
      ::sendto(plain, bytes.data(), bytes.size(), 0, to.get(), to.length);
      ::close(plain);
      while (rrecv(server.get(), nullptr, 0, MSG_DONTWAIT) >= 0) {
      }
    }
    EXPECT_LE(open_descriptors(), before + 20) << int{op};
  }
  std::string text;
  for (int i = 0; i < 200 && text != "x"; ++i) {
    send_text(client.get(), "x", to);
    if (poll_one(server.get(), POLLIN, 100) == POLLIN) text = receive_text(server.get());
  }
  EXPECT_EQ(text, "x");
}

// No byte of the buffer is read.
TEST(Datagram, RejectsATooLongDatagramWithoutReadingIt) {
  constexpr size_t kSize = size_t{1} << 40;
  void* nothing =
      ::mmap(nullptr, kSize, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(nothing, MAP_FAILED);
  const Rsocket socket = datagram_socket("127.0.0.1");
  const Address to = ip("127.0.0.1", 9);
  for (const size_t size : {size_t{65492}, size_t{1} << 30, kSize}) {
    EXPECT_ERRNO(rsendto(socket.get(), nothing, size, 0, to.get(), to.length), EMSGSIZE);
  }
  ::munmap(nothing, kSize);
}

TEST(Datagram, ReportConnectionRefusedToAConnectedSocket) {
  Rsocket closed = datagram_socket("127.0.0.1");
  const Address to = name_of(closed.get());
  closed.close();
  const Rsocket client = datagram_socket();
  ASSERT_EQ(rconnect(client.get(), to.get(), to.length), 0) << strerror(errno);
  ASSERT_EQ(rsend(client.get(), "x", 1, 0), 1);
  char byte;
  EXPECT_ERRNO(rrecv(client.get(), &byte, 1, 0), ECONNREFUSED);
  EXPECT_ERRNO(rrecv(client.get(), &byte, 1, MSG_DONTWAIT), EAGAIN);
  ASSERT_EQ(rsend(client.get(), "x", 1, 0), 1);
  EXPECT_TRUE(poll_one(client.get(), POLLIN) & POLLERR);
  EXPECT_EQ(get_int(client.get(), SOL_SOCKET, SO_ERROR), ECONNREFUSED);
}

TEST(Datagram, ASocketCanBeDisconnected) {
  const Rsocket server = datagram_socket("127.0.0.1");
  const Rsocket other = datagram_socket("127.0.0.1");
  const Rsocket client = datagram_socket();
  const Address to = name_of(server.get());
  ASSERT_EQ(rconnect(client.get(), to.get(), to.length), 0) << strerror(errno);
  ASSERT_EQ(rsend(client.get(), "x", 1, 0), 1);
  Address from;
  EXPECT_EQ(receive_text(server.get(), &from), "x");
  sockaddr unspecified{};
  unspecified.sa_family = AF_UNSPEC;
  ASSERT_EQ(rconnect(client.get(), &unspecified, sizeof unspecified), 0) << strerror(errno);
  EXPECT_ERRNO(rsend(client.get(), "x", 1, 0), EDESTADDRREQ);
  EXPECT_EQ(name_of(client.get()).port(), from.port());
  send_text(other.get(), "from another", from);
  EXPECT_EQ(receive_text(client.get()), "from another");
}

TEST(Datagram, IgnoreInvalidPacketsAtTheUdpPort) {
  const Rsocket server = datagram_socket("127.0.0.1");
  const Address to = name_of(server.get());
  const int plain = ::socket(AF_INET, SOCK_DGRAM, 0);
  const auto send_plain = [&](const std::vector<uint8_t>& bytes) {
    EXPECT_EQ(::sendto(plain, bytes.data(), bytes.size(), 0, to.get(), to.length),
              static_cast<ssize_t>(bytes.size()));
  };
  send_plain({});
  send_plain({'h', 'e', 'l', 'l', 'o'});
  std::vector<uint8_t> header = {0x55, 0x55, 0x55, 0x55, 4, 0, 16, 0, 0, 0, 0, 1, 127, 0, 0, 1};
  for (size_t size = 1; size < header.size(); ++size) {
    send_plain({header.begin(), header.begin() + static_cast<long>(size)});
  }
  for (const size_t at : {4u, 5u, 6u}) {
    for (const int value : {0, 1, 6, 15, 17, 28, 255}) {
      auto bad = header;
      if (bad[at] == value) continue;
      bad[at] = static_cast<uint8_t>(value);
      if (at == 5 && (value == 0 || value == 7)) continue;
      send_plain(bad);
    }
  }
  EXPECT_EQ(poll_one(server.get(), POLLIN, 50), 0);
  // A valid packet is a datagram, from any program.
  auto good = header;
  good.push_back('!');
  send_plain(good);
  EXPECT_EQ(receive_text(server.get()), "!");
  ::close(plain);
}

TEST(Datagram, RejectInvalidCalls) {
  const Rsocket socket = datagram_socket();
  const Address to = ip("127.0.0.1", 9);
  EXPECT_ERRNO(rlisten(socket.get(), 1), EOPNOTSUPP);
  EXPECT_ERRNO(raccept(socket.get(), nullptr, nullptr), EOPNOTSUPP);
  EXPECT_ERRNO(rshutdown(socket.get(), SHUT_WR), ENOTCONN);
  EXPECT_ERRNO(rsendto(socket.get(), "x", 1, 0, to.get(), 3), EINVAL);
  EXPECT_ERRNO(riomap(socket.get(), nullptr, 1, 0, 0, 0), EINVAL);
  char byte;
  EXPECT_ERRNO(rrecv(socket.get(), &byte, 1, MSG_DONTWAIT), EAGAIN);
  Address name;
  EXPECT_ERRNO(rgetpeername(socket.get(), name.get(), &name.length), ENOTCONN);
  set_int(socket.get(), SOL_SOCKET, SO_RCVBUF, 65536);
  EXPECT_EQ(get_int(socket.get(), SOL_SOCKET, SO_RCVBUF), 131072);
  EXPECT_EQ(get_int(socket.get(), SOL_SOCKET, SO_TYPE), SOCK_DGRAM);
}

TEST(Datagram, CloseWakesAReceivingThread) {
  Rsocket socket = datagram_socket("127.0.0.1");
  std::thread receiving([number = socket.get()] {
    char byte;
    EXPECT_ERRNO(rrecv(number, &byte, 1, 0), EBADF);
  });
  socket.close();
  receiving.join();
}

TEST(Datagram, AStreamAndADatagramSocketCanShareAPort) {
  int shared = 0;
  for (int i = 0; i < 10; ++i) {
    Address at;
    const Rsocket listening = listener(&at);
    const Rsocket socket(rsocket(AF_INET, SOCK_DGRAM, 0));
    shared += rbind(socket.get(), at.get(), at.length) == 0;
  }
  EXPECT_GE(shared, 5);  // another UDP socket may use one of the ports
}

}  // namespace
}  // namespace verbena::test

// Invalid calls, options and flags: the errno of each, and that options are read back as set.
#include <gtest/gtest.h>

#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "tests/rsocket/socket_support.h"

namespace verbena::test {
namespace {

TEST(Calls, CreatesOnlyInternetStreamsAndDatagrams) {
  for (const auto& [domain, type, protocol] :
       std::vector<std::array<int, 3>>{{AF_UNIX, SOCK_STREAM, 0},
                                       {AF_INET, SOCK_RAW, 0},
                                       {AF_INET, SOCK_STREAM, IPPROTO_UDP},
                                       {AF_INET, SOCK_DGRAM, IPPROTO_TCP},
                                       {AF_NETLINK, SOCK_RAW, 0}}) {
    EXPECT_ERRNO(rsocket(domain, type, protocol), ENOTSUP);
  }
  for (const auto& [type, protocol] : std::vector<std::array<int, 2>>{
           {SOCK_STREAM, IPPROTO_TCP}, {SOCK_DGRAM, IPPROTO_UDP}, {SOCK_STREAM, 0}}) {
    EXPECT_GE(Rsocket(rsocket(AF_INET, type, protocol)).get(), 0) << strerror(errno);
  }
}

TEST(Calls, AcceptsFlagsInTheType) {
  const Rsocket socket(rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  ASSERT_GE(socket.get(), 0);
  EXPECT_TRUE(rfcntl(socket.get(), F_GETFL) & O_NONBLOCK);
  EXPECT_EQ(rfcntl(socket.get(), F_GETFD), FD_CLOEXEC);
  EXPECT_EQ(rfcntl(socket.get(), F_SETFD, 0), 0);
  EXPECT_EQ(rfcntl(socket.get(), F_GETFD), 0);
  EXPECT_ERRNO(rfcntl(socket.get(), F_GETLK, nullptr), ENOTSUP);
}

// Negative numbers, ordinary descriptors, closed descriptors and impossible numbers.
TEST(Calls, ReturnsEbadfForOtherDescriptors) {
  Rsocket closed = stream_socket();
  const int was = closed.get();
  closed.close();
  const Address to = ip("127.0.0.1", 9);
  char byte = 0;
  iovec vector{&byte, 1};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  int value = 0;
  socklen_t size = sizeof value;
  Address name;
  for (const int number : {-1, 0, 1, was, 1 << 20, 1 << 30, INT_MAX, INT_MIN}) {
    EXPECT_ERRNO(rbind(number, to.get(), to.length), EBADF);
    EXPECT_ERRNO(rlisten(number, 1), EBADF);
    EXPECT_ERRNO(raccept(number, nullptr, nullptr), EBADF);
    EXPECT_ERRNO(rconnect(number, to.get(), to.length), EBADF);
    EXPECT_ERRNO(rshutdown(number, SHUT_WR), EBADF);
    EXPECT_ERRNO(rclose(number), EBADF);
    EXPECT_ERRNO(rrecv(number, &byte, 1, 0), EBADF);
    EXPECT_ERRNO(rrecvfrom(number, &byte, 1, 0, nullptr, nullptr), EBADF);
    EXPECT_ERRNO(rrecvmsg(number, &message, 0), EBADF);
    EXPECT_ERRNO(rread(number, &byte, 1), EBADF);
    EXPECT_ERRNO(rreadv(number, &vector, 1), EBADF);
    EXPECT_ERRNO(rsend(number, &byte, 1, 0), EBADF);
    EXPECT_ERRNO(rsendto(number, &byte, 1, 0, nullptr, 0), EBADF);
    EXPECT_ERRNO(rsendmsg(number, &message, 0), EBADF);
    EXPECT_ERRNO(rwrite(number, &byte, 1), EBADF);
    EXPECT_ERRNO(rwritev(number, &vector, 1), EBADF);
    EXPECT_ERRNO(rgetsockname(number, name.get(), &name.length), EBADF);
    EXPECT_ERRNO(rgetpeername(number, name.get(), &name.length), EBADF);
    EXPECT_ERRNO(rsetsockopt(number, SOL_SOCKET, SO_REUSEADDR, &value, size), EBADF);
    EXPECT_ERRNO(rgetsockopt(number, SOL_SOCKET, SO_REUSEADDR, &value, &size), EBADF);
    EXPECT_ERRNO(rfcntl(number, F_GETFL), EBADF);
    EXPECT_ERRNO(riomap(number, &byte, 1, PROT_WRITE, 0, -1), EBADF);
    EXPECT_ERRNO(riounmap(number, &byte, 1), EBADF);
    EXPECT_ERRNO(static_cast<ssize_t>(riowrite(number, &byte, 1, 0, 0)), EBADF);
  }
}

TEST(Calls, ReturnsEnotconnWithoutAConnection) {
  const Rsocket socket = stream_socket();
  char byte = 0;
  Address name;
  EXPECT_ERRNO(rsend(socket.get(), &byte, 1, 0), ENOTCONN);
  EXPECT_ERRNO(rrecv(socket.get(), &byte, 1, 0), ENOTCONN);
  EXPECT_ERRNO(rshutdown(socket.get(), SHUT_RDWR), ENOTCONN);
  EXPECT_ERRNO(rgetpeername(socket.get(), name.get(), &name.length), ENOTCONN);
  EXPECT_ERRNO(raccept(socket.get(), nullptr, nullptr), EINVAL);
  EXPECT_ERRNO(riomap(socket.get(), &byte, 1, PROT_WRITE, 0, -1), EINVAL);
  EXPECT_ERRNO(riounmap(socket.get(), &byte, 1), EINVAL);
  EXPECT_ERRNO(static_cast<ssize_t>(riowrite(socket.get(), &byte, 1, 0, 0)), ENOTCONN);
  EXPECT_EQ(poll_one(socket.get(), POLLIN | POLLOUT), POLLOUT | POLLHUP);
}

TEST(Calls, ANewSocketReportsTheLengthOfItsFamily) {
  const Rsocket socket = stream_socket();
  socklen_t length = 0;
  EXPECT_EQ(rgetsockname(socket.get(), nullptr, &length), 0);  // as the preload library calls it
  EXPECT_EQ(length, sizeof(sockaddr_in));
  EXPECT_ERRNO(rgetsockname(socket.get(), nullptr, nullptr), EFAULT);
  if (!has_ipv6()) return;
  const Rsocket six = stream_socket(AF_INET6);
  length = 0;
  EXPECT_EQ(rgetsockname(six.get(), nullptr, &length), 0);
  EXPECT_EQ(length, sizeof(sockaddr_in6));
}

TEST(Calls, RejectsInvalidAddresses) {
  const Rsocket socket = stream_socket();
  const Address to = ip("127.0.0.1", 9);
  EXPECT_ERRNO(rbind(socket.get(), nullptr, sizeof(sockaddr_in)), EFAULT);
  EXPECT_ERRNO(rbind(socket.get(), to.get(), 3), EINVAL);
  const Address six = ip("::1", 9);
  EXPECT_ERRNO(rbind(socket.get(), six.get(), six.length), EAFNOSUPPORT);
  EXPECT_ERRNO(rconnect(socket.get(), six.get(), six.length), EAFNOSUPPORT);
  EXPECT_ERRNO(rconnect(socket.get(), to.get(), 8), EINVAL);
  const Pair pair = connected_pair();
  EXPECT_ERRNO(rsendto(pair.client.get(), "x", 1, 0, to.get(), to.length), EISCONN);
  EXPECT_ERRNO(rconnect(pair.client.get(), to.get(), to.length), EISCONN);
  EXPECT_ERRNO(rlisten(pair.client.get(), 1), EINVAL);
  EXPECT_ERRNO(rbind(pair.client.get(), to.get(), to.length), EINVAL);
  EXPECT_ERRNO(rshutdown(pair.client.get(), 3), EINVAL);
}

TEST(Calls, RejectsInvalidVectorsAndFlags) {
  const Pair pair = connected_pair();
  char byte;
  const iovec vector{&byte, 1};
  EXPECT_ERRNO(rwritev(pair.client.get(), &vector, -1), EINVAL);
  EXPECT_ERRNO(rreadv(pair.client.get(), &vector, IOV_MAX + 1), EINVAL);
  EXPECT_ERRNO(rreadv(pair.client.get(), nullptr, 1), EFAULT);
  EXPECT_ERRNO(rsendmsg(pair.client.get(), nullptr, 0), EFAULT);
  EXPECT_ERRNO(rrecvmsg(pair.client.get(), nullptr, 0), EFAULT);
  msghdr message{};
  message.msg_control = &byte;
  message.msg_controllen = 1;
  EXPECT_ERRNO(rsendmsg(pair.client.get(), &message, 0), ENOTSUP);
  EXPECT_ERRNO(rrecvmsg(pair.client.get(), &message, 0), ENOTSUP);
  // Urgent data is not supported and must not be sent as ordinary data.
  EXPECT_ERRNO(rsend(pair.client.get(), &byte, 1, MSG_OOB), EOPNOTSUPP);
  EXPECT_ERRNO(rrecv(pair.client.get(), &byte, 1, MSG_OOB), EINVAL);
}

TEST(Options, AreReadBackAsSet) {
  const Rsocket socket = stream_socket(has_ipv6() ? AF_INET6 : AF_INET);
  struct Case {
    int level, option, set, expected;
  };
  std::vector<Case> cases{{SOL_SOCKET, SO_REUSEADDR, 1, 1},
                          {SOL_SOCKET, SO_KEEPALIVE, 1, 1},
                          {SOL_SOCKET, SO_KEEPALIVE, 0, 0},
                          {SOL_SOCKET, SO_OOBINLINE, 1, 1},
                          {SOL_SOCKET, SO_RCVBUF, 100000, 200000},
                          {SOL_SOCKET, SO_SNDBUF, 50000, 100000},
                          {SOL_SOCKET, SO_SNDBUF, 0, 4096},
                          {SOL_SOCKET, SO_RCVBUF, -1, 4096},
                          {IPPROTO_TCP, TCP_NODELAY, 1, 1},
                          {IPPROTO_TCP, TCP_NODELAY, 0, 0},
                          {IPPROTO_TCP, TCP_KEEPIDLE, 17, 17},
                          {IPPROTO_TCP, TCP_KEEPINTVL, 18, 18},
                          {IPPROTO_TCP, TCP_KEEPCNT, 19, 19},
                          {SOL_RDMA, RDMA_SQSIZE, 100, 100},
                          {SOL_RDMA, RDMA_RQSIZE, 1000000, 0xfffe},
                          {SOL_RDMA, RDMA_INLINE, 32, 32},
                          {SOL_RDMA, RDMA_IOMAPSIZE, 300, 256},
                          {IPPROTO_IP, IP_TOS, 0x20, 0x20},
                          {IPPROTO_TCP, TCP_CORK, 1, 1},
                          {IPPROTO_TCP, TCP_QUICKACK, 0, 0},
                          {IPPROTO_TCP, TCP_USER_TIMEOUT, 9, 9},
                          {IPPROTO_TCP, TCP_DEFER_ACCEPT, 3, 3},
                          {SOL_SOCKET, SO_RCVLOWAT, 7, 7},
                          {SOL_SOCKET, SO_PRIORITY, 5, 5},
                          {SOL_SOCKET, SO_BROADCAST, 1, 1},
                          {IPPROTO_IP, IP_TTL, 9, 9}};
  if (has_ipv6()) cases.push_back({IPPROTO_IPV6, IPV6_V6ONLY, 1, 1});
  for (const Case& c : cases) {
    set_int(socket.get(), c.level, c.option, c.set);
    EXPECT_EQ(get_int(socket.get(), c.level, c.option), c.expected) << c.level << " " << c.option;
  }
}

TEST(Options, HaveTheDefaultsOfTheSystem) {
  const Rsocket socket = stream_socket();
  EXPECT_EQ(get_int(socket.get(), IPPROTO_TCP, TCP_CORK), 0);
  EXPECT_EQ(get_int(socket.get(), IPPROTO_TCP, TCP_QUICKACK), 1);
  EXPECT_EQ(get_int(socket.get(), SOL_SOCKET, SO_RCVLOWAT), 1);
  EXPECT_EQ(get_int(socket.get(), IPPROTO_IP, IP_TTL), 64);
}

TEST(Options, DescribeTheSocket) {
  Address at;
  const Rsocket socket = listener(&at);
  EXPECT_EQ(get_int(socket.get(), SOL_SOCKET, SO_TYPE), SOCK_STREAM);
  EXPECT_EQ(get_int(socket.get(), SOL_SOCKET, SO_DOMAIN), AF_INET);
  EXPECT_EQ(get_int(socket.get(), SOL_SOCKET, SO_PROTOCOL), IPPROTO_TCP);
  EXPECT_EQ(get_int(socket.get(), SOL_SOCKET, SO_ACCEPTCONN), 1);
  EXPECT_GE(get_int(socket.get(), IPPROTO_TCP, TCP_MAXSEG), 256);
  tcp_info info;
  socklen_t size = sizeof info;
  EXPECT_EQ(rgetsockopt(socket.get(), IPPROTO_TCP, TCP_INFO, &info, &size), 0);
  EXPECT_EQ(info.tcpi_state, TCP_LISTEN);
  char name[16] = "";
  size = sizeof name;
  EXPECT_EQ(rgetsockopt(socket.get(), IPPROTO_TCP, TCP_CONGESTION, name, &size), 0);
  EXPECT_STREQ(name, "rdma");
}

TEST(Options, RejectInvalidOptions) {
  const Rsocket socket = stream_socket();
  int value = 1;
  socklen_t size = sizeof value;
  EXPECT_ERRNO(rsetsockopt(socket.get(), SOL_SOCKET, 9999, &value, size), ENOTSUP);
  EXPECT_ERRNO(rsetsockopt(socket.get(), 9999, SO_REUSEADDR, &value, size), ENOTSUP);
  EXPECT_ERRNO(rsetsockopt(socket.get(), SOL_RDMA, 99, &value, size), ENOTSUP);
  EXPECT_ERRNO(rsetsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, nullptr, size), EFAULT);
  EXPECT_ERRNO(rsetsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &value, 1), EINVAL);
  EXPECT_ERRNO(rsetsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &value, 4), EINVAL);
  value = 0;
  EXPECT_ERRNO(rsetsockopt(socket.get(), IPPROTO_TCP, TCP_KEEPIDLE, &value, size), EINVAL);
  EXPECT_ERRNO(rgetsockopt(socket.get(), SOL_SOCKET, 9999, &value, &size), ENOTSUP);
  EXPECT_ERRNO(rgetsockopt(socket.get(), SOL_SOCKET, SO_ERROR, nullptr, &size), EFAULT);
  EXPECT_ERRNO(rgetsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &value, nullptr), EFAULT);
  timeval limit{0, 2'000'000};
  EXPECT_ERRNO(rsetsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), EDOM);
}

TEST(Options, QueueSizesCannotChangeAfterConnecting) {
  const Pair pair = connected_pair();
  int value = 100;
  EXPECT_ERRNO(rsetsockopt(pair.client.get(), SOL_RDMA, RDMA_SQSIZE, &value, sizeof value), EINVAL);
  // As with TCP there is no error, and the buffers stay.
  const int before = get_int(pair.client.get(), SOL_SOCKET, SO_RCVBUF);
  set_int(pair.client.get(), SOL_SOCKET, SO_RCVBUF, 4096);
  EXPECT_EQ(get_int(pair.client.get(), SOL_SOCKET, SO_RCVBUF), before);
}

TEST(Options, AcceptedSocketsInheritFromTheListener) {
  const Pair pair = connected_pair("127.0.0.1", [](int socket) {
    set_int(socket, SOL_SOCKET, SO_RCVBUF, 30000);
    set_int(socket, SOL_RDMA, RDMA_IOMAPSIZE, 5);
    set_int(socket, IPPROTO_TCP, TCP_CORK, 1);
    const timeval limit{5, 0};
    EXPECT_EQ(rsetsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  });
  EXPECT_EQ(get_int(pair.server.get(), IPPROTO_TCP, TCP_CORK), 1);
  timeval limit{};
  socklen_t size = sizeof limit;
  EXPECT_EQ(rgetsockopt(pair.server.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, &size), 0);
  EXPECT_EQ(limit.tv_sec, 5);
  EXPECT_EQ(get_int(pair.server.get(), SOL_SOCKET, SO_RCVBUF), 60000);
  EXPECT_EQ(get_int(pair.server.get(), SOL_RDMA, RDMA_IOMAPSIZE), 5);
}

TEST(Options, TimeoutsEndWaiting) {
  const Pair pair = connected_pair();
  const timeval limit{0, 30'000};
  ASSERT_EQ(rsetsockopt(pair.client.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  ASSERT_EQ(rsetsockopt(pair.client.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit), 0);
  char byte;
  EXPECT_ERRNO(rrecv(pair.client.get(), &byte, 1, 0), EAGAIN);
  std::vector<uint8_t> large(1'000'000);
  ssize_t sent;
  while ((sent = rsend(pair.client.get(), large.data(), large.size(), 0)) > 0) {
  }
  EXPECT_EQ(sent, -1);
  EXPECT_EQ(errno, EAGAIN);
  timeval read_back{};
  socklen_t size = sizeof read_back;
  ASSERT_EQ(rgetsockopt(pair.client.get(), SOL_SOCKET, SO_RCVTIMEO, &read_back, &size), 0);
  EXPECT_EQ(read_back.tv_usec, 30'000);
}

}  // namespace
}  // namespace verbena::test

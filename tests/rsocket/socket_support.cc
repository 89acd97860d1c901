// See socket_support.h.
#include "tests/rsocket/socket_support.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/prng.h"

namespace verbena::test {

uint16_t Address::port() const {
  return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
}

std::string Address::text() const {
  char buffer[INET6_ADDRSTRLEN] = "";
  if (storage.ss_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr, buffer,
              sizeof buffer);
  } else {
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr, buffer,
              sizeof buffer);
  }
  return buffer;
}

Address ip(const std::string& text, uint16_t port) {
  Address address;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
  if (inet_pton(AF_INET, text.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    address.length = sizeof *v4;
  } else {
    EXPECT_EQ(inet_pton(AF_INET6, text.c_str(), &v6->sin6_addr), 1) << text;
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    address.length = sizeof *v6;
  }
  return address;
}

Address name_of(int socket) {
  Address address;
  EXPECT_EQ(rgetsockname(socket, address.get(), &address.length), 0) << strerror(errno);
  return address;
}

Address peer_of(int socket) {
  Address address;
  EXPECT_EQ(rgetpeername(socket, address.get(), &address.length), 0) << strerror(errno);
  return address;
}

bool has_ipv6() {
  const int fd = ::socket(AF_INET6, SOCK_DGRAM, 0);
  if (fd < 0) return false;
  const Address loopback = ip("::1");
  const bool has = ::bind(fd, loopback.get(), loopback.length) == 0;
  ::close(fd);
  return has;
}

Rsocket stream_socket(int family) {
  const int number = rsocket(family, SOCK_STREAM, 0);
  EXPECT_GE(number, 0) << strerror(errno);
  return Rsocket(number);
}

Rsocket listener(Address* at, const std::string& address, int backlog) {
  const Address local = ip(address);
  Rsocket socket = stream_socket(local.storage.ss_family);
  EXPECT_EQ(rbind(socket.get(), local.get(), local.length), 0) << strerror(errno);
  EXPECT_EQ(rlisten(socket.get(), backlog), 0) << strerror(errno);
  *at = name_of(socket.get());
  EXPECT_NE(at->port(), 0);
  return socket;
}

void connect_to(const Rsocket& socket, const Address& to) {
  EXPECT_EQ(rconnect(socket.get(), to.get(), to.length), 0) << strerror(errno);
}

Rsocket accepted(const Rsocket& from) {
  const int number = raccept(from.get(), nullptr, nullptr);
  EXPECT_GE(number, 0) << strerror(errno);
  return Rsocket(number);
}

Pair connected_pair(const std::string& address, const std::function<void(int)>& prepare) {
  const Address local = ip(address);
  Rsocket listening = stream_socket(local.storage.ss_family);
  if (prepare) prepare(listening.get());
  EXPECT_EQ(rbind(listening.get(), local.get(), local.length), 0) << strerror(errno);
  EXPECT_EQ(rlisten(listening.get(), 1), 0) << strerror(errno);
  Pair pair;
  pair.client = stream_socket(local.storage.ss_family);
  if (prepare) prepare(pair.client.get());
  connect_to(pair.client, name_of(listening.get()));
  pair.server = accepted(listening);
  return pair;
}

void set_int(int socket, int level, int option, int value) {
  EXPECT_EQ(rsetsockopt(socket, level, option, &value, sizeof value), 0) << strerror(errno);
}

int get_int(int socket, int level, int option) {
  int value = -1;
  socklen_t size = sizeof value;
  EXPECT_EQ(rgetsockopt(socket, level, option, &value, &size), 0) << strerror(errno);
  EXPECT_EQ(size, sizeof value);
  return value;
}

void set_nonblocking(int socket, bool on) {
  EXPECT_EQ(rfcntl(socket, F_SETFL, on ? O_NONBLOCK : 0), 0) << strerror(errno);
}

uint8_t stream_byte(uint64_t seed, uint64_t position) {
  const uint64_t mixed = (position + seed) * 0x9E3779B97F4A7C15u;
  return static_cast<uint8_t>(mixed >> 56 ^ mixed >> 31);
}

std::vector<uint8_t> stream_bytes(uint64_t seed, uint64_t from, size_t count) {
  std::vector<uint8_t> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = stream_byte(seed, from + i);
  return bytes;
}

namespace {

size_t random_size(Prng& prng, uint64_t left) {
  // From one byte to more than the buffers hold.
  const size_t largest = size_t{1} << prng.below(19);
  return std::min<uint64_t>(1 + prng.below(largest), left);
}

// Sends with a randomly chosen call. Returns its result.
ssize_t send_with_random_call(Prng& prng, int socket, std::vector<uint8_t>& bytes) {
  switch (prng.below(5)) {
    case 0:
      return rwrite(socket, bytes.data(), bytes.size());
    case 1:
      return rsendto(socket, bytes.data(), bytes.size(), 0, nullptr, 0);
    case 2: {
      const size_t split = prng.below(bytes.size() + 1);
      iovec vectors[3] = {
          {bytes.data(), split}, {nullptr, 0}, {bytes.data() + split, bytes.size() - split}};
      return rwritev(socket, vectors, 3);
    }
    case 3: {
      iovec vector{bytes.data(), bytes.size()};
      msghdr message{};
      message.msg_iov = &vector;
      message.msg_iovlen = 1;
      return rsendmsg(socket, &message, 0);
    }
    default:
      return rsend(socket, bytes.data(), bytes.size(), 0);
  }
}

ssize_t receive_with_random_call(Prng& prng, int socket, std::vector<uint8_t>& bytes) {
  switch (prng.below(6)) {
    case 0:
      return rread(socket, bytes.data(), bytes.size());
    case 1:
      return rrecvfrom(socket, bytes.data(), bytes.size(), 0, nullptr, nullptr);
    case 2: {
      const size_t split = prng.below(bytes.size() + 1);
      iovec vectors[2] = {{bytes.data(), split}, {bytes.data() + split, bytes.size() - split}};
      return rreadv(socket, vectors, 2);
    }
    case 3: {
      iovec vector{bytes.data(), bytes.size()};
      msghdr message{};
      message.msg_iov = &vector;
      message.msg_iovlen = 1;
      return rrecvmsg(socket, &message, 0);
    }
    case 4: {
      const ssize_t got = rrecv(socket, bytes.data(), bytes.size(), MSG_WAITALL);
      EXPECT_EQ(got, static_cast<ssize_t>(bytes.size()));
      return got;
    }
    default:
      return rrecv(socket, bytes.data(), bytes.size(), 0);
  }
}

}  // namespace

void send_stream(int socket, uint64_t seed, uint64_t total) {
  Prng prng(seed);
  for (uint64_t done = 0; done < total;) {
    std::vector<uint8_t> bytes = stream_bytes(seed, done, random_size(prng, total - done));
    const ssize_t sent = send_with_random_call(prng, socket, bytes);
    ASSERT_GT(sent, 0) << strerror(errno) << " after " << done;
    ASSERT_LE(static_cast<size_t>(sent), bytes.size());
    done += static_cast<uint64_t>(sent);
  }
}

void receive_stream(int socket, uint64_t seed, uint64_t total) {
  Prng prng(~seed);
  for (uint64_t done = 0; done < total;) {
    std::vector<uint8_t> bytes(random_size(prng, total - done));
    const ssize_t got = receive_with_random_call(prng, socket, bytes);
    ASSERT_GT(got, 0) << strerror(errno) << " after " << done;
    bytes.resize(static_cast<size_t>(got));
    ASSERT_EQ(bytes, stream_bytes(seed, done, bytes.size())) << "after " << done;
    done += static_cast<uint64_t>(got);
  }
}

short poll_one(int socket, short events, int timeout_ms) {
  pollfd entry{socket, events, 0};
  const int ready = rpoll(&entry, 1, timeout_ms);
  EXPECT_GE(ready, 0) << strerror(errno);
  EXPECT_EQ(ready, entry.revents != 0);
  return entry.revents;
}

Child::Child(const std::function<void()>& work) {
  pid_ = ::fork();
  if (pid_ != 0) return;
  work();
  ::_exit(::testing::Test::HasFailure() ? 1 : 0);
}

Child::~Child() {
  if (pid_ > 0) {
    kill();
    wait();
  }
}

void Child::kill() { ::kill(pid_, SIGKILL); }
void Child::stop() { ::kill(pid_, SIGSTOP); }
void Child::resume() { ::kill(pid_, SIGCONT); }

int Child::wait() {
  int status = 0;
  EXPECT_EQ(::waitpid(pid_, &status, 0), pid_);
  pid_ = -1;
  return status;
}

size_t open_descriptors() {
  size_t count = 0;
  DIR* directory = ::opendir("/proc/self/fd");
  while (::readdir(directory)) ++count;
  ::closedir(directory);
  return count;
}

bool descriptors_fall_to(size_t count) {
  for (int i = 0; i < 2000; ++i) {
    if (open_descriptors() <= count) return true;
    ::usleep(10'000);
  }
  return false;
}

}  // namespace verbena::test

// Helpers for the tests of rsockets: owners of sockets, addresses, listeners and pairs connected
// over the loopback device, bytes that can be checked, and child processes.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <rdma/rsocket.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace verbena::test {

class Rsocket {
 public:
  Rsocket() = default;
  explicit Rsocket(int number) : number_(number) {}
  Rsocket(Rsocket&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Rsocket& operator=(Rsocket&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Rsocket() { close(); }
  int get() const { return number_; }
  void close() {
    if (number_ < 0) return;
    EXPECT_EQ(rclose(std::exchange(number_, -1)), 0);
  }
  int release() { return std::exchange(number_, -1); }

 private:
  int number_ = -1;
};

struct Address {
  sockaddr_storage storage{};
  socklen_t length = sizeof(sockaddr_storage);
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  uint16_t port() const;
  std::string text() const;  // without the port
};
Address ip(const std::string& text, uint16_t port = 0);
Address name_of(int socket);
Address peer_of(int socket);
bool has_ipv6();

Rsocket stream_socket(int family = AF_INET);
// Listens on a free port; `at` gets the address.
Rsocket listener(Address* at, const std::string& address = "127.0.0.1", int backlog = 8);
void connect_to(const Rsocket& socket, const Address& to);
Rsocket accepted(const Rsocket& from);

struct Pair {
  Rsocket client;
  Rsocket server;
};
// `prepare` is called for the listener and for the client before they connect.
Pair connected_pair(const std::string& address = "127.0.0.1",
                    const std::function<void(int)>& prepare = {});

void set_int(int socket, int level, int option, int value);
int get_int(int socket, int level, int option);
void set_nonblocking(int socket, bool on = true);
// Expects -1 and this errno.
#define EXPECT_ERRNO(call, expected)                                \
  do {                                                              \
    errno = 0;                                                      \
    EXPECT_EQ(static_cast<long long>(call), -1) << #call;           \
    EXPECT_EQ(errno, expected) << #call << ": " << strerror(errno); \
  } while (false)

// Bytes that depend on their position, so that a test detects lost, duplicated and moved bytes.
uint8_t stream_byte(uint64_t seed, uint64_t position);
std::vector<uint8_t> stream_bytes(uint64_t seed, uint64_t from, size_t count);
// Sends bytes [0, total) in parts of random size, or receives and checks them, with random calls.
void send_stream(int socket, uint64_t seed, uint64_t total);
void receive_stream(int socket, uint64_t seed, uint64_t total);

// The events that rpoll() reports for one socket; 0 after the timeout.
short poll_one(int socket, short events, int timeout_ms = 10000);

// A child process that runs `work`. It has no rsockets if the parent has none.
class Child {
 public:
  explicit Child(const std::function<void()>& work);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  void kill();
  void stop();
  void resume();
  // Its exit status.
  int wait();

 private:
  pid_t pid_ = -1;
};

size_t open_descriptors();
// The last thread that uses a closed socket frees it, which may be a thread of the library. Waits
// until this process has at most `count` descriptors; false after 20 seconds.
bool descriptors_fall_to(size_t count);

}  // namespace verbena::test

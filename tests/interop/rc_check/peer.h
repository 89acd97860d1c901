// The other side, over TCP: synchronizes the two sides and exchanges their results.
#pragma once

#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "errors.h"
#include "limits.h"

namespace rc_check {

class Peer {
 public:
  static Peer wait_for_client(uint16_t port) {
    int listener = open_listener(AF_INET6, port);
    if (listener < 0) listener = open_listener(AF_INET, port);  // a machine without IPv6
    if (listener < 0) throw broken_errno(words("cannot listen on TCP port %u", port));
    const int fd = accept(listener, nullptr, nullptr);
    const int error = errno;
    close(listener);
    if (fd < 0) throw broken_errno("cannot accept a connection", error);
    return Peer(fd);
  }

  // Retries for ten seconds, so that the two sides may be started in any order.
  static Peer connect_to(const std::string& server, uint16_t port) {
    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    const int error = getaddrinfo(server.c_str(), std::to_string(port).c_str(), &hints, &found);
    if (error != 0) throw Broken("cannot look up " + server + ": " + gai_strerror(error));
    const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, freeaddrinfo);
    const auto give_up = Clock::now() + 10s;
    for (;;) {
      int last_error = 0;
      for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
        const int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        if (fd < 0) {
          last_error = errno;
          continue;
        }
        if (connect(fd, a->ai_addr, a->ai_addrlen) == 0) return Peer(fd);
        last_error = errno;
        close(fd);
      }
      if (Clock::now() > give_up) {
        throw broken_errno(words("cannot connect to %s, TCP port %u", server.c_str(), port),
                           last_error);
      }
      std::this_thread::sleep_for(100ms);
    }
  }

  Peer(Peer&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Peer& operator=(Peer&&) = delete;
  ~Peer() {
    if (fd_ >= 0) close(fd_);
  }

  // Each side sends one message and receives one; returns when both have done so.
  template <typename Message>
  Message exchange(const Message& mine) {
    const char* out = reinterpret_cast<const char*>(&mine);
    for (size_t done = 0; done < sizeof mine;) {
      const ssize_t n = send(fd_, out + done, sizeof mine - done, MSG_NOSIGNAL);
      if (n <= 0) throw broken_errno("cannot send to the other side");
      done += static_cast<size_t>(n);
    }
    Message theirs{};
    char* in = reinterpret_cast<char*>(&theirs);
    for (size_t done = 0; done < sizeof theirs;) {
      const ssize_t n = recv(fd_, in + done, sizeof theirs - done, 0);
      if (n == 0) throw Broken("the other side has closed the connection");
      if (n < 0) throw broken_errno("cannot receive from the other side");
      done += static_cast<size_t>(n);
    }
    return theirs;
  }

  // Whether the next message of the other side can be read.
  bool has_message() const {
    pollfd p{fd_, POLLIN, 0};
    return poll(&p, 1, 0) > 0;
  }

 private:
  explicit Peer(int fd) : fd_(fd) {
    const int on = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }

  static int open_listener(int family, uint16_t port) {
    const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    const int on = 1, off = 0;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_storage address{};
    socklen_t length = sizeof(sockaddr_in);
    if (family == AF_INET6) {
      setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
      auto& in6 = reinterpret_cast<sockaddr_in6&>(address);
      in6.sin6_family = AF_INET6;
      in6.sin6_port = htons(port);
      length = sizeof in6;
    } else {
      auto& in = reinterpret_cast<sockaddr_in&>(address);
      in.sin_family = AF_INET;
      in.sin_port = htons(port);
    }
    if (bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0 && listen(fd, 1) == 0)
      return fd;
    const int error = errno;
    close(fd);
    errno = error;
    return -1;
  }

  int fd_;
};

}  // namespace rc_check

// The upper bounds to compare with: plain UDP over loopback, without a protocol. Prints one number.
//   udp_reference pingpong [bytes]        median half round trip in microseconds, both ends poll
//   udp_reference stream [bytes [batch [address far]]]
//                                         Gb/s of GSO sends of datagrams of that size, with GRO on
//                                         the other side. `batch` is the bytes of one send; the
//                                         default, also for 0, is as many datagrams as fit. The
//                                         last one may be shorter. The receiver has this IPv4
//                                         address, the sender is in another network namespace
//                                         (`far`: /proc/PID/ns/net).
// One process per end, each pinned to its own core. Ends after about a second.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/udp.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

#ifndef UDP_SEGMENT
constexpr int UDP_SEGMENT = 103;
constexpr int UDP_GRO = 104;
#endif

double now_us() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) * 1e-3;
}

void pin(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  sched_setaffinity(0, sizeof set, &set);
}

[[noreturn]] void die(const char* what) {
  std::perror(what);
  std::exit(1);
}

int bound_socket(sockaddr_in* address, in_addr_t ip = htonl(INADDR_LOOPBACK)) {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const int buffer = 4 << 20;
  setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
  setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
  *address = {};
  address->sin_family = AF_INET;
  address->sin_addr.s_addr = ip;
  socklen_t size = sizeof *address;
  if (bind(fd, reinterpret_cast<sockaddr*>(address), size) != 0) die("bind");
  getsockname(fd, reinterpret_cast<sockaddr*>(address), &size);
  return fd;
}

int pingpong(size_t bytes) {
  constexpr int kRounds = 50'000;
  sockaddr_in a, b;
  const int fa = bound_socket(&a), fb = bound_socket(&b);
  std::vector<char> buffer(bytes);
  const pid_t child = fork();
  if (child == 0) {
    pin(1);
    for (int i = 0; i < kRounds; ++i) {
      while (recv(fb, buffer.data(), buffer.size(), MSG_DONTWAIT) < 0) {
      }
      sendto(fb, buffer.data(), buffer.size(), 0, reinterpret_cast<sockaddr*>(&a), sizeof a);
    }
    _exit(0);
  }
  pin(0);
  std::vector<double> rounds(kRounds);
  for (int i = 0; i < kRounds; ++i) {
    const double start = now_us();
    sendto(fa, buffer.data(), buffer.size(), 0, reinterpret_cast<sockaddr*>(&b), sizeof b);
    while (recv(fa, buffer.data(), buffer.size(), MSG_DONTWAIT) < 0) {
    }
    rounds[static_cast<size_t>(i)] = now_us() - start;
  }
  std::nth_element(rounds.begin(), rounds.begin() + kRounds / 2, rounds.end());
  std::printf("%.3f\n", rounds[kRounds / 2] / 2);
  waitpid(child, nullptr, 0);
  return 0;
}

// Where a stream goes: over loopback, or from another network namespace.
struct Ends {
  in_addr_t receiver = htonl(INADDR_LOOPBACK);
  in_addr_t sender = htonl(INADDR_LOOPBACK);
  const char* far = nullptr;
};

void enter_namespace(const char* file) {
  const int fd = open(file, O_RDONLY | O_CLOEXEC);
  if (fd < 0 || setns(fd, CLONE_NEWNET) != 0) die(file);
}

int stream(size_t bytes, size_t batch_bytes, const Ends& ends) {
  constexpr double kMicroseconds = 1e6;
  sockaddr_in to, from;
  const int receiver = bound_socket(&to, ends.receiver);
  const int on = 1;
  setsockopt(receiver, IPPROTO_UDP, UDP_GRO, &on, sizeof on);
  const pid_t child = fork();
  if (child == 0) {
    pin(1);
    if (ends.far) enter_namespace(ends.far);
    const int sender = bound_socket(&from, ends.sender);
    std::vector<char> batch(batch_bytes);
    const int segment = static_cast<int>(bytes);
    setsockopt(sender, IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof segment);
    const double end = now_us() + kMicroseconds + 3e5;
    while (now_us() < end) {
      sendto(sender, batch.data(), batch.size(), 0, reinterpret_cast<sockaddr*>(&to), sizeof to);
    }
    _exit(0);
  }
  pin(0);
  const timeval timeout{2, 0};
  setsockopt(receiver, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  std::vector<char> buffer(1 << 16);
  recv(receiver, buffer.data(), buffer.size(), 0);
  const double start = now_us();
  double total = 0;
  while (now_us() < start + kMicroseconds) {
    const ssize_t n = recv(receiver, buffer.data(), buffer.size(), 0);
    if (n < 0) die("recv");
    total += static_cast<double>(n);
  }
  std::printf("%.2f\n", total * 8 / (now_us() - start) / 1000);
  waitpid(child, nullptr, 0);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const auto number = [&](int i, size_t fallback) {
    return argc > i ? std::strtoul(argv[i], nullptr, 10) : fallback;
  };
  if (argc > 1 && std::strcmp(argv[1], "pingpong") == 0) return pingpong(number(2, 64));
  if (argc > 1 && std::strcmp(argv[1], "stream") == 0) {
    const size_t bytes = std::max<size_t>(number(2, 4136), 1);
    const size_t most = bytes * std::clamp<size_t>(65000 / bytes, 1, 64);
    Ends ends;
    if (argc > 5) ends = {inet_addr(argv[4]), INADDR_ANY, argv[5]};
    const size_t batch = number(3, most);
    return stream(bytes, batch > 0 ? batch : most, ends);
  }
  std::fprintf(stderr, "usage: udp_reference pingpong|stream [bytes [batch [address far]]]\n");
  return 2;
}

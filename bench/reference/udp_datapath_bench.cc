// Throughput of the UDP datapath between two processes on one host, compared with the same GSO
// batches through bare sockets. The difference is the cost of copy, CRC and bookkeeping. Prints one
// line per packet shape.
#include <net/if.h>
#include <netinet/udp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "datapath/udp/udp_datapath.h"
#include "datapath/udp/udp_socket.h"
#include "wire/headers.h"
#include "wire/icrc.h"

namespace {

using namespace verbena;
using namespace verbena::datapath;

const wire::Gid kLoopback = wire::Gid::from_ipv4("\x7F\x00\x00\x01");
constexpr double kSeconds = 2;

// One process per core: unpinned processes would move between caches.
void pin(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  ::sched_setaffinity(0, sizeof set, &set);
}

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Packets of `payload` bytes. Every `first_every`th packet also has a RETH, 16 bytes; 0: none has.
struct Shape {
  const char* what;
  size_t payload;
  uint32_t first_every;
};

// The receiver reports its progress through shared memory, so that the sender keeps a window as a
// requester does. Without a window, the program would measure how fast the kernel drops packets.
struct Progress {
  std::atomic<uint64_t> slot{0};
  std::atomic<uint64_t> packets{0};
  std::atomic<uint64_t> bytes{0};
  std::atomic<bool> stop{false};
};

void run_sender(Progress& progress, const Shape& shape, uint64_t window) {
  auto directory = host::SlotDirectory::claim();
  UdpDatapath udp(::if_nametoindex("lo"), *directory.value());
  wire::Route route;
  route.source = route.destination = kLoopback;
  auto path = udp.open_path(route);
  const auto slot = static_cast<uint8_t>(progress.slot.load());
  std::vector<std::byte> memory(1 << 20, std::byte{0x42});
  wire::TxPacket p;
  p.path = path.value();
  wire::Bth bth;
  bth.opcode = static_cast<uint8_t>(wire::Opcode::RcWriteMiddle);
  bth.destination = wire::Qpn::of_slot(slot, 1);
  uint64_t sent = 0;
  size_t at = 0;
  double last_progress = now_seconds();
  uint64_t last_seen = 0;
  uint64_t lost = 0;  // considered lost, as after a timeout
  while (!progress.stop) {
    const uint64_t seen = progress.packets.load(std::memory_order_acquire);
    const double now = now_seconds();
    if (seen != last_seen) {
      last_seen = seen;
      last_progress = now;
    } else if (sent - seen - lost >= window && now - last_progress > 0.01) {
      lost = sent - seen;
      last_progress = now;
    }
    uint64_t in_flight = sent - seen - lost;
    if (in_flight > window / 2) {
      udp.receive();
      continue;
    }
    for (; in_flight < window && udp.sink().room() > 0; ++in_flight, ++sent) {
      bth.psn = wire::Psn(static_cast<uint32_t>(sent));
      bth.store(p.header.data());
      const bool first = shape.first_every != 0 && sent % shape.first_every == 0;
      p.header_bytes = static_cast<uint8_t>(wire::kBthBytes + (first ? wire::kRethBytes : 0));
      const std::span<const std::byte> part(memory.data() + at, shape.payload);
      at = (at + shape.payload) % (memory.size() - shape.payload);
      p.payload = {&part, 1};
      udp.sink().push(p);
    }
    udp.flush();
  }
  if (std::getenv("VERBENA_BENCH_COUNTERS") != nullptr) {
    std::vector<Counter> counters;
    udp.append_counters(counters);
    for (const Counter& c : counters) {
      if (c.value != 0) std::printf("    sender   %s %lu\n", c.name, c.value);
    }
    std::fflush(stdout);
  }
}

void run_receiver(Progress& progress) {
  auto directory = host::SlotDirectory::claim();
  UdpDatapath udp(::if_nametoindex("lo"), *directory.value());
  (void)udp.listen(kLoopback);
  for (int i = 0; i < 200; ++i) udp.receive();
  progress.slot = directory.value()->slot();
  std::vector<std::byte> memory(1 << 20);
  size_t at = 0;
  while (!progress.stop) {
    const auto packets = udp.receive();
    if (packets.empty()) continue;
    uint64_t bytes = 0;
    for (const wire::RxPacket& p : packets) {
      const auto payload = p.bytes.subspan(wire::kBthBytes);
      std::memcpy(memory.data() + at, payload.data(), payload.size());
      at = (at + payload.size()) % (memory.size() - 8192);
      bytes += payload.size();
    }
    progress.bytes.fetch_add(bytes, std::memory_order_relaxed);
    progress.packets.fetch_add(packets.size(), std::memory_order_release);
  }
  if (std::getenv("VERBENA_BENCH_COUNTERS") != nullptr) {
    std::vector<Counter> counters;
    udp.append_counters(counters);
    for (const Counter& c : counters) {
      if (c.value != 0) std::printf("    receiver %s %lu\n", c.name, c.value);
    }
    std::fflush(stdout);
  }
}

// The same GSO batches without the datapath: one batch per send call and per receive call.
void run_bare_sender(Progress& progress, const Shape& shape, uint64_t window) {
  UdpOptions options;
  auto send = open_send_socket({kLoopback, 0}, options, 1);
  const int stride = static_cast<int>(shape.payload + 16);
  const uint64_t segments = std::min<uint64_t>(64, 65000 / static_cast<uint64_t>(stride));
  ::setsockopt(send.value().fd.get(), IPPROTO_UDP, UDP_SEGMENT, &stride, sizeof stride);
  const auto to = host::SocketAddress::of({kLoopback, 0}, wire::kRoceUdpPort);
  std::vector<std::byte> batch(segments * static_cast<uint64_t>(stride));
  uint64_t sent = 0;
  while (!progress.stop) {
    if (sent - progress.packets.load(std::memory_order_acquire) + segments > window) continue;
    if (::sendto(send.value().fd.get(), batch.data(), batch.size(), 0, to.get(), to.bytes) > 0) {
      sent += segments;
    }
  }
}

void run_bare_receiver(Progress& progress, const Shape& shape) {
  UdpOptions options;
  auto fd = open_receive_socket({kLoopback, 0}, options);
  progress.slot = 1;
  std::vector<std::byte> buffer(65536);
  while (!progress.stop) {
    const ssize_t n = ::recv(fd.value().get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (n <= 0) continue;
    const uint64_t packets = static_cast<uint64_t>(n) / (shape.payload + 16);
    progress.bytes.fetch_add(packets * shape.payload, std::memory_order_relaxed);
    progress.packets.fetch_add(packets, std::memory_order_release);
  }
}

template <typename Sender, typename Receiver>
double measure(Progress& progress, Sender sender, Receiver receiver) {
  new (&progress) Progress;
  const pid_t rx = ::fork();
  if (rx == 0) {
    pin(0);
    receiver();
    ::_exit(0);
  }
  while (progress.slot == 0) ::usleep(1000);
  const pid_t tx = ::fork();
  if (tx == 0) {
    pin(1);
    sender();
    ::_exit(0);
  }
  ::usleep(300'000);
  const double start = now_seconds();
  const uint64_t before = progress.bytes;
  ::usleep(static_cast<useconds_t>(kSeconds * 1e6));
  const uint64_t bytes = progress.bytes - before;
  const double elapsed = now_seconds() - start;
  progress.stop = true;
  ::waitpid(tx, nullptr, 0);
  ::waitpid(rx, nullptr, 0);
  return static_cast<double>(bytes) * 8 / elapsed / 1e9;
}

}  // namespace

int main() {
  void* const shared =
      ::mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return 1;
  Progress& progress = *new (shared) Progress;
  constexpr Shape kShapes[] = {{"4096 B, equal packets", 4096, 0},
                               {"4096 B, 64 KiB writes (one RETH in 16)", 4096, 16},
                               {"1024 B, equal packets", 1024, 0},
                               {"64 B, equal packets", 64, 0}};
  for (const Shape& shape : kShapes) {
    const uint64_t window = std::min<uint64_t>(240, 400'000 / shape.payload);
    const double bare = measure(
        progress, [&] { run_bare_sender(progress, shape, window); },
        [&] { run_bare_receiver(progress, shape); });
    const double ours = measure(
        progress, [&] { run_sender(progress, shape, window); }, [&] { run_receiver(progress); });
    std::printf("%-42s %6.1f Gb/s   bare sockets %6.1f Gb/s   ratio %.2f\n", shape.what, ours, bare,
                ours / bare);
    std::fflush(stdout);
  }
  return 0;
}

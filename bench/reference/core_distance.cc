// Prints the round-trip time of a cache line between two cores in nanoseconds, the median of many
// short rounds. A hypervisor may move virtual cores at any time, and most benchmarks depend on
// whether the two cores share a cache.
//   core_distance [core [other]]
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

constexpr uint32_t kRounds = 40;
constexpr uint32_t kTripsPerRound = 1000;

// Odd: the other core must respond. Even: the other core has responded.
alignas(64) std::atomic<uint32_t> line{0};

void pin(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) {
    std::perror("core_distance: sched_setaffinity");
    std::exit(1);
  }
}

void await(uint32_t value) {
  while (line.load(std::memory_order_acquire) != value) {
  }
}

void respond(int core) {
  pin(core);
  for (uint32_t trip = 0; trip < kRounds * kTripsPerRound; ++trip) {
    await(2 * trip + 1);
    line.store(2 * trip + 2, std::memory_order_release);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int core = argc > 1 ? std::atoi(argv[1]) : 0;
  const int other = argc > 2 ? std::atoi(argv[2]) : 1;
  if (core == other) {
    std::printf("0\n");
    return 0;
  }
  std::thread responder(respond, other);
  pin(core);
  std::vector<double> nanoseconds;
  uint32_t trip = 0;
  for (uint32_t round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (const uint32_t end = trip + kTripsPerRound; trip < end; ++trip) {
      line.store(2 * trip + 1, std::memory_order_release);
      await(2 * trip + 2);
    }
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    nanoseconds.push_back(took.count() / kTripsPerRound);
  }
  responder.join();
  std::nth_element(nanoseconds.begin(), nanoseconds.begin() + kRounds / 2, nanoseconds.end());
  std::printf("%.0f\n", nanoseconds[kRounds / 2]);
}

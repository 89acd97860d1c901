// How far apart two cores are: prints how many nanoseconds a cache line takes from one to the other
// and back, the median of many short spells. A virtual machine's cores may move while it runs, and
// most of what is measured here depends on where they are.
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

constexpr uint32_t kSpells = 40;
constexpr uint32_t kTripsInSpell = 1000;

// Odd: it is the other core's turn. Even: it is back.
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

void answer(int core) {
  pin(core);
  for (uint32_t trip = 0; trip < kSpells * kTripsInSpell; ++trip) {
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
  std::thread answering(answer, other);
  pin(core);
  std::vector<double> nanoseconds;
  uint32_t trip = 0;
  for (uint32_t spell = 0; spell < kSpells; ++spell) {
    const auto start = std::chrono::steady_clock::now();
    for (const uint32_t end = trip + kTripsInSpell; trip < end; ++trip) {
      line.store(2 * trip + 1, std::memory_order_release);
      await(2 * trip + 2);
    }
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    nanoseconds.push_back(took.count() / kTripsInSpell);
  }
  answering.join();
  std::nth_element(nanoseconds.begin(), nanoseconds.begin() + kSpells / 2, nanoseconds.end());
  std::printf("%.0f\n", nanoseconds[kSpells / 2]);
}

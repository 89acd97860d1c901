// verbena_sim: runs seeds of the simulator.
//   verbena_sim --seeds FROM-TO     all of them, inclusive; exit 1 if one fails
//   verbena_sim --seed N --verbose  one, with a description
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "sim/seed_run.h"

namespace {

int usage() {
  std::fprintf(stderr, "usage: verbena_sim --seeds FROM-TO | --seed N [--verbose]\n");
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace verbena::sim;
  unsigned long long from = 0, to = 0;
  bool given = false, verbose = false;
  for (int i = 1; i < argc; ++i) {
    const bool has_value = i + 1 < argc;
    if (std::strcmp(argv[i], "--verbose") == 0) {
      verbose = true;
    } else if (std::strcmp(argv[i], "--seed") == 0 && has_value) {
      char* end = nullptr;
      from = to = std::strtoull(argv[++i], &end, 10);
      given = *end == '\0';
    } else if (std::strcmp(argv[i], "--seeds") == 0 && has_value) {
      char* end = nullptr;
      from = std::strtoull(argv[++i], &end, 10);
      if (*end != '-') return usage();
      to = std::strtoull(end + 1, &end, 10);
      given = *end == '\0';
    } else {
      return usage();
    }
  }
  if (!given || from > to) return usage();

  unsigned long long failed = 0;
  for (unsigned long long seed = from;; ++seed) {
    const RunResult r = run_seed(seed);
    if (!r.ok()) {
      ++failed;
      std::printf("%s", explain(seed, r).c_str());
      std::fflush(stdout);
    }
    if (verbose) {
      static constexpr const char* kKinds[] = {"correct", "broken", "hostile", "withdrawn"};
      std::printf(
          "seed %llu: %s, %s\n  %llu events, %llu packets, %llu lost, %.3f ms, trace %016llx\n",
          seed, kKinds[static_cast<int>(r.kind)], r.shape.c_str(),
          static_cast<unsigned long long>(r.events), static_cast<unsigned long long>(r.packets),
          static_cast<unsigned long long>(r.lost), r.virtual_ms,
          static_cast<unsigned long long>(r.trace_hash));
      if (has_lanes(seed)) {
        std::printf(
            "  lanes: %zu at most, %llu turns in waits, %llu keys withdrawn, %llu of them during a "
            "turn, %llu requests refused\n",
            r.lanes.most, static_cast<unsigned long long>(r.lanes.turns_in_waits),
            static_cast<unsigned long long>(r.lanes.withdrawals),
            static_cast<unsigned long long>(r.lanes.in_turns),
            static_cast<unsigned long long>(r.lanes.refused));
      }
      if (shares_memory(seed)) {
        std::printf("  memory: %llu packets, %llu lost, %llu accesses, %llu packets retracted\n",
                    static_cast<unsigned long long>(r.memory.packets),
                    static_cast<unsigned long long>(r.memory.lost),
                    static_cast<unsigned long long>(r.memory.accesses),
                    static_cast<unsigned long long>(r.memory.retracted));
      }
    }
    if (seed == to) break;
  }
  std::printf("%llu of %llu seeds failed\n", failed, to - from + 1);
  return failed == 0 ? 0 : 1;
}

// A grid of simulated goodput over loss, MTU and direction: a deterministic performance test. When
// a change affects a number on purpose, run with VERBENA_UPDATE_SNAPSHOTS=1 and check the
// difference.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "tests/sim/pair_support.h"

namespace verbena::sim {
namespace {

// Mb/s of one queue pair over a 10 Gb/s link with a delay of 10 us.
double goodput(core::SendOp op, wire::Mtu mtu, double loss, uint64_t queue_bytes) {
  constexpr uint32_t kMessage = 1 << 20;
  constexpr uint64_t kMessages = 32;
  Pair p({.mtu = mtu, .read_depth_a = 16, .timeout = 14}, {.depth = 32}, kMessage);
  for (const auto& [from, to] : {std::pair{0u, 1u}, std::pair{1u, 0u}}) {
    LinkFaults& f = p.world.network().link(from, to);
    f.bits_per_second = 10000000000;
    f.delay = microseconds(10);
    f.queue_bytes = queue_bytes;
    f.packet.loss = loss;
  }
  for (uint64_t i = 0; i < kMessages; ++i) {
    if (op == core::SendOp::Read) {
      p.read(i, 0, kMessage);
    } else {
      p.write(i, 0, kMessage);
    }
  }
  const Instant start = p.world.now();
  while (p.cq_a.size() < kMessages && p.world.step()) {
  }
  const double ns = static_cast<double>((p.world.now() - start).ns);
  const auto done = p.poll_a();
  for (const auto& c : done) EXPECT_EQ(c.status, core::WcStatus::Success);
  EXPECT_EQ(done.size(), kMessages);
  return static_cast<double>(kMessage * kMessages) * 8 * 1000 / ns;
}

std::string grid() {
  std::string out =
      "# Mb/s over 10 Gb/s, 10 us; rows: operation, queue in front of the link, loss; columns: "
      "MTU\n";
  out += "#                          256    1024    4096\n";
  for (const core::SendOp op : {core::SendOp::Write, core::SendOp::Read}) {
    for (const uint64_t queue : {64u << 10, 1u << 20}) {
      for (const double loss : {0.0, 0.001, 0.01, 0.1}) {
        char line[100];
        std::snprintf(line, sizeof line, "%-5s %4llu KiB %6.4f ",
                      op == core::SendOp::Read ? "READ" : "WRITE",
                      static_cast<unsigned long long>(queue >> 10), loss);
        out += line;
        for (const wire::Mtu mtu : {wire::Mtu::k256, wire::Mtu::k1024, wire::Mtu::k4096}) {
          std::snprintf(line, sizeof line, "%8.0f", goodput(op, mtu, loss, queue));
          out += line;
        }
        out += "\n";
      }
    }
  }
  return out;
}

TEST(Goodput, MatchesTheSnapshot) {
  const std::string path = std::string(VERBENA_TESTS_DIR) + "/sim/goodput.txt";
  const std::string now = grid();
  if (std::getenv("VERBENA_UPDATE_SNAPSHOTS") != nullptr) {
    std::ofstream(path) << now;
    return;
  }
  std::stringstream before;
  before << std::ifstream(path).rdbuf();
  EXPECT_EQ(before.str(), now) << "run again with VERBENA_UPDATE_SNAPSHOTS=1 if this is meant";
}

}  // namespace
}  // namespace verbena::sim

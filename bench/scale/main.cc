// verbena-scale: one scenario on ns-3; the result goes to standard output as JSON.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "bench/scale/run.h"

int main(int argc, char** argv) {
  verbena::scale::RunShape shape;
  CLI::App app{"Runs Verbena's engine, or ns-3's TCP, on a simulated network of ns-3."};
  app.add_option("scenario", shape.scenario, "incast or fat-tree")
      ->check(CLI::IsMember({"incast", "fat-tree"}))
      ->required();
  app.add_option("--transport", shape.transport, "Verbena with this congestion control, or TCP")
      ->check(CLI::IsMember({"delay", "dcqcn", "aimd", "off", "dctcp", "cubic"}));
  app.add_option("--seed", shape.seed, "of flows and keys");
  app.add_option("--mtu", shape.mtu, "payload bytes of a packet")
      ->check(CLI::IsMember({1024, 4096}));
  app.add_option("--senders", shape.senders, "incast: how many");
  app.add_option("--bytes", shape.bytes, "incast: of each sender");
  app.add_option("--gbps", shape.gbps, "incast: rate of each link");
  app.add_option("--load", shape.load, "fat tree: share of the hosts' links");
  app.add_option("--flows", shape.flows, "fat tree: how many");
  app.add_option("--pods", shape.tree.pods, "fat tree: 64 hosts each");
  app.add_option("--mark", shape.queues.mark_bytes_per_gbps,
                 "queue length at which marks begin, in bytes for each Gb/s");
  app.add_option("--queue", shape.queues.bytes_per_gbps, "queue capacity, in bytes for each Gb/s");
  CLI11_PARSE(app, argc, argv);

  const verbena::scale::RunResult result = verbena::scale::run(shape);
  std::fputs(verbena::scale::as_json(shape, result).c_str(), stdout);
  return result.failed == 0 ? 0 : 1;
}

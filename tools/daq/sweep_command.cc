// The command line of verbena daq-sweep.
#include "tools/daq/options.h"
#include "tools/daq/sweep.h"
#include "tools/daq/udp.h"

namespace verbena::daqtool {

int sweep_command(int argc, char** argv) {
  CLI::App app(
      "Throughput over message size and over the number of receives, from an emulated board.",
      "verbena daq-sweep");
  app.footer(
      "\nThe command starts the board itself, on an address of this host.\n"
      "\nExamples:\n"
      "  verbena daq-sweep --output /tmp/curve     /tmp/curve.json and /tmp/curve.svg\n"
      "  verbena daq-sweep --sizes 64,5120,65536 --depths 16,256 --seconds 0.2");
  SweepOptions options;
  Addresses addresses;
  addresses.own = "127.0.0.2";
  add(app, "--listen", addresses.own, "ADDRESS", "The board's address (default 127.0.0.2)");
  add(app, "--sizes", options.sizes, "BYTES,...", "Message sizes (default 64 to 4194304)")
      ->delimiter(',')
      ->check(CLI::Range(4u, 4u << 20));
  add(app, "--depths", options.depths, "N,...", "Numbers of receives (default 1 to 32768)")
      ->delimiter(',')
      ->check(CLI::Range(1u, 32768u));
  add(app, "--depth-size", options.depth_bytes, "BYTES", "Message size for --depths (default 5120)")
      ->check(CLI::Range(4u, 65536u));
  add_op(app, options.op);
  add(app, "--seconds", options.seconds, "TIME", "Time for each measurement (default 0.5)")
      ->check(finite_range(0.05, 60.0));
  add(app, "--output", options.output, "FILE", "Write FILE.json and FILE.svg");
  parse(app, argc, argv);
  options.board = parse_ip(addresses.own);
  catch_signals();
  return run_sweep(options) ? kDone : kNotGood;
}

}  // namespace verbena::daqtool

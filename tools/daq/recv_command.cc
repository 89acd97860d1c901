// The command line of verbena recv.
#include <fmt/core.h>
#include <unistd.h>

#include <map>

#include "tools/daq/options.h"
#include "tools/daq/recv.h"
#include "tools/daq/udp.h"

namespace verbena::daqtool {

namespace {

const std::map<std::string, Poll> kPolls{
    {"busy", Poll::Busy}, {"event", Poll::Event}, {"hybrid", Poll::Hybrid}};

}  // namespace

int recv_command(int argc, char** argv) {
  CLI::App app("Receive data that FPGA boards stream by RoCEv2.", "verbena recv");
  app.footer(
      "\nWith --board it connects to boards and starts their generators; without, it waits for "
      "boards to connect.\n"
      "\nExamples:\n"
      "  verbena recv --board 127.0.0.2\n"
      "  verbena recv --board 127.0.0.2 --board 127.0.0.3 --streams 2 --op send --msg-size 4096 "
      "--json\n"
      "  verbena recv --streams 2 --dump /data/run7\n"
      "\nExit status: 0 if all requested data arrived and were correct, 1 if not, 2 if the command "
      "line was wrong.");
  ReceiveOptions options;
  Addresses addresses;
  bool active = false, no_check = false, json = false, plain = false;
  double gap_us = 0;
  auto* const asked =
      add(app, "--board", addresses.boards, "ADDRESS", "Board to connect to; repeat for more")
          ->expected(1)
          ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_flag("--active", active, "Connect to boards (implied by --board)")->needs(asked);
  add(app, "--ip", addresses.own, "ADDRESS",
      "Own address (default: the one that reaches the board, or 127.0.0.1)");
  add(app, "--port", options.cm_port, "PORT", "UDP port for connection messages (default 17186)")
      ->check(kPort);
  add(app, "--streams", options.streams, "N",
      "Queue pairs per board, or in total without --board (default 1)")
      ->check(CLI::Range(1, 256));
  add_op(app, options.op);
  add_message_size(app, options.message_bytes);
  add_wrap(app, options.wrap_bytes);
  add_mtu(app, options.mtu);
  add(app, "--num-wrs", options.receives, "N",
      "Receives posted per stream (default 1024, fewer for messages over 64 KiB)")
      ->check(CLI::Range(1, 32768));
  add(app, "--messages", options.messages, "N",
      "Messages to request per stream (default 10000; 0: the board sends on its own)")
      ->check(CLI::Range(uint64_t{0}, uint64_t{UINT32_MAX}));
  add(app, "--gap-us", gap_us, "TIME", "Gap between two messages to request")->check(kGap);
  app.add_option_function<std::string>(
         "--poll", [&](const std::string& name) { options.poll = kPolls.at(name); },
         "Polling mode: busy, event or hybrid (default)")
      ->type_name("MODE")
      ->check(CLI::IsMember({"busy", "event", "hybrid"}));
  add(app, "--spin-us", options.spin_us, "TIME",
      "hybrid: time to poll without a message before sleeping (default 10)");
  add(app, "--numa", options.numa_node, "NODE", "NUMA node to run and receive on")
      ->check(CLI::Range(0, 1023));
  app.add_flag("--no-check", no_check, "Do not check the data");
  add(app, "--consumer-us", options.consumer_us, "TIME",
      "Emulate a consumer that needs this time per message");
  add(app, "--dump", options.dump, "FILE",
      "Write all data to this file; with several streams FILE.000, ...");
  add(app, "--seconds", options.seconds, "TIME", "Exit after this time")->check(kTime);
  add(app, "--silence", options.silence_seconds, "SECONDS",
      "Give up a board that is silent for this time (default 3, or 60 for a board that "
      "sends on its own; 0: never)")
      ->check(kTime);
  app.add_flag("--reconnect", options.reconnect, "Reconnect to a board that was silent or failed");
  app.add_flag("--json", json, "Print the summary as JSON; events go to standard error");
  app.add_flag("--plain", plain, "Print lines instead of the live screen");
  parse(app, argc, argv);

  for (const std::string& board : addresses.boards) options.boards.push_back(parse_ip(board));
  if (!addresses.own.empty()) options.ip = parse_ip(addresses.own);
  options.gap_cycles = cycles_of(gap_us);
  options.check = !no_check;
  options.screen = !json && !plain && ::isatty(STDOUT_FILENO) != 0;
  catch_signals();
  std::FILE* const out = json ? stderr : stdout;
  const ReceiveSummary summary =
      receive(options, [&](const std::string& text) { print_line(out, text); });
  fmt::print("{}", json ? to_json(summary) : to_text(summary));
  return summary.good() ? kDone : kNotGood;
}

}  // namespace verbena::daqtool

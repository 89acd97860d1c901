// The command line of verbena send.
#include <fmt/core.h>

#include "tools/daq/options.h"
#include "tools/daq/send.h"
#include "tools/daq/udp.h"

namespace verbena::daqtool {

int send_command(int argc, char** argv) {
  CLI::App app("Send to `verbena recv` as a board does, by verbs.", "verbena send");
  app.footer(
      "\nWith HOST it connects to a waiting receiver. With --listen it waits for receivers, as a "
      "board does,\nand sends what they request.\n"
      "\nExamples:\n"
      "  verbena recv --streams 2        (on 192.0.2.1)\n"
      "  verbena send 192.0.2.1 --streams 2 --messages 100000\n"
      "\n"
      "  verbena send --listen 192.0.2.2                        (on 192.0.2.2)\n"
      "  verbena recv --board 192.0.2.2 --messages 100000");
  SendOptions options;
  Addresses addresses;
  std::string listen;
  bool json = false;
  double gap_us = 0;
  auto* const host = add(app, "HOST", addresses.peer, "", "Where `verbena recv` waits");
  auto* const listening =
      add(app, "--listen", listen, "ADDRESS",
          "Wait for receivers on this address, one of this host; exit when --streams "
          "queue pairs were served")
          ->excludes(host);
  add(app, "--port", options.receiver_port, "PORT", "HOST's UDP port (default 17186)")
      ->check(kPort)
      ->needs(host);
  add(app, "--ip", addresses.own, "ADDRESS", "Own address (default: the one that reaches HOST)")
      ->excludes(listening);
  add(app, "--own-port", options.cm_port, "PORT", "Own UDP port (default 17185)")->check(kPort);
  add(app, "--streams", options.streams, "N", "Queue pairs (default 1)")->check(CLI::Range(1, 256));
  add_op(app, options.op);
  add_message_size(app, options.message_bytes);
  add_wrap(app, options.wrap_bytes);
  add_mtu(app, options.mtu);
  add(app, "--messages", options.messages, "N", "Messages per stream (default 10000)")
      ->check(kCount);
  add(app, "--gap-us", gap_us, "TIME", "Minimum time between two messages of a stream")
      ->check(kGap);
  add(app, "--inflight", options.inflight, "N", "Requests in flight per queue pair (default 32)")
      ->check(CLI::Range(1, 8192));
  add(app, "--seconds", options.seconds, "TIME", "Exit after this time")->check(kTime);
  app.add_flag("--json", json, "Print the summary as JSON");
  parse(app, argc, argv);
  if (addresses.peer.empty() == listen.empty())
    throw CLI::ValidationError("give either HOST or --listen");
  if (!addresses.peer.empty()) options.receiver = parse_ip(addresses.peer);
  if (!listen.empty()) options.ip = parse_ip(listen);
  if (!addresses.own.empty()) options.ip = parse_ip(addresses.own);
  options.gap_cycles = cycles_of(gap_us);
  catch_signals();
  const SendSummary summary =
      send(options, [](const std::string& text) { print_line(stderr, text); });
  const double gbps =
      summary.seconds > 0 ? static_cast<double>(summary.bytes) * 8 / summary.seconds / 1e9 : 0;
  fmt::print(fmt::runtime(json ? "{{\"device\": \"{}\", \"messages\": {}, \"bytes\": {}, "
                                 "\"seconds\": {:.6f}, \"gbps\": {:.4f}}}\n"
                               : "{}: {} messages, {} bytes in {:.3f} s: {:.3f} Gb/s\n"),
             summary.device, summary.messages, summary.bytes, summary.seconds, gbps);
  return summary.messages == summary.wanted ? kDone : kNotGood;
}

}  // namespace verbena::daqtool

// The command line of verbena fpga.
#include <fmt/core.h>

#include "tools/daq/fpga.h"
#include "tools/daq/options.h"
#include "tools/daq/udp.h"

namespace verbena::daqtool {

int fpga_command(int argc, char** argv) {
  CLI::App app("An emulated FPGA board that streams data by RoCEv2.", "verbena fpga");
  app.footer(
      "\nA board waits for a host to connect. With --connect it connects itself and sends at "
      "once.\n"
      "\nExamples:\n"
      "  verbena fpga --listen 127.0.0.2\n"
      "  verbena fpga --listen 127.0.0.3 --gbps 1 --loss 0.01 --json\n"
      "  verbena fpga --listen 127.0.0.2 --quirk opens-twice --quirk stale-answers\n"
      "  verbena fpga --listen 127.0.0.2 --connect 127.0.0.1 --streams 2 --msg-size 5120 "
      "--messages 1000");
  FpgaOptions options;
  daq::BoardQpConfig& qp = options.board.queue_pair;
  daq::Board::MasterTask master_task;
  master_task.transmit = {true, true, true, daq::TransferKind::Write, 5120, 10000, 0};
  Addresses addresses;
  std::vector<std::string> quirks;
  std::vector<std::string> quirk_list{"all"};
  uint32_t mtu = 4096;
  double timeout_us = 20000;
  double gap_us = 0;
  bool drop = false;
  uint64_t messages = 10000;
  for (const daq::QuirkName& q : daq::quirk_names()) quirk_list.emplace_back(q.name);
  std::string meanings = "\nQuirks of the real firmware (--quirk NAME, or --quirk all):\n";
  for (const daq::QuirkName& q : daq::quirk_names())
    meanings += fmt::format("  {:<15}{}\n", q.name, q.meaning);
  app.footer(app.get_footer() + "\n" + meanings);

  add(app, "--listen", addresses.own, "ADDRESS",
      "The board's address, one of this host, such as 127.0.0.2")
      ->required();
  add(app, "--qps", options.board.manager.queue_pairs, "N", "Queue pairs (default 8)")
      ->check(CLI::Range(1, 16));
  add_mtu(app, mtu);
  add(app, "--inflight", qp.max_requests, "N", "Requests in flight on a queue pair (default 32)")
      ->check(CLI::Range(1, 1024));
  add(app, "--inflight-bytes", qp.inflight_bytes, "BYTES",
      "Bytes in flight on a queue pair: the board's buffer (default 131072)");
  add(app, "--gbps", options.board.link_gbps, "RATE", "Link speed")
      ->check(finite_range(0.0001, 1000.0));
  add(app, "--gap-us", gap_us, "TIME", "Minimum time between two messages of the generator")
      ->check(kGap);
  app.add_flag("--drop", drop,
               "Drop a message that is due while the buffer is full, instead of delaying it");
  add(app, "--timeout-us", timeout_us, "TIME",
      "Time until unacknowledged packets are retransmitted (default 20000; firmware: 46)")
      ->check(finite_range(10.0, 1e7));
  add(app, "--retries", qp.retries, "N", "Timeouts in a row before a queue pair fails (default 7)");
  add(app, "--rnr-retries", qp.rnr_retries, "N",
      "RNR NAKs in a row before a queue pair fails (default 7: never)");
  add_wrap(app, qp.wrap_bytes);
  add(app, "--quirk", quirks, "NAME", "A quirk of the real firmware, see below; repeat for more")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->check(CLI::IsMember(quirk_list));
  add(app, "--loss", options.loss, "SHARE", "Drop this share of the packets, in each direction")
      ->check(finite_range(0.0, 1.0));
  add(app, "--seed", options.seed, "N", "Seed for --loss");
  add(app, "--seconds", options.seconds, "TIME", "Exit after this time")->check(kTime);
  add(app, "--pcap", options.pcap, "FILE", "Capture packets and connection messages to this file");
  app.add_flag("--json", options.json, "Print the summary as JSON; events go to standard error");
  auto* const connect =
      add(app, "--connect", addresses.peer, "HOST", "Be the master: connect to this host");
  add(app, "--port", master_task.host_port, "PORT",
      "With --connect: the host's UDP port (default 17186)")
      ->needs(connect)
      ->check(kPort);
  add(app, "--streams", master_task.streams, "N", "With --connect: queue pairs to open")
      ->needs(connect)
      ->check(CLI::Range(1, 16));
  add_message_size(app, master_task.transmit.length)->needs(connect);
  add(app, "--messages", messages, "N", "With --connect: messages per queue pair")
      ->needs(connect)
      ->check(kCount);
  add_op(app, master_task.transmit.kind);
  parse(app, argc, argv);

  options.ip = options.board.manager.ip = parse_ip(addresses.own);
  if (options.ip == 0) throw CLI::ValidationError("--listen: a board needs one specific address");
  qp.mtu = static_cast<wire::Mtu>(mtu);
  qp.timeout = {static_cast<int64_t>(timeout_us * 1000)};
  qp.min_gap_cycles = cycles_of(gap_us);
  qp.overrun = drop ? daq::Overrun::Drop : daq::Overrun::Wait;
  for (const daq::QuirkName& q : daq::quirk_names()) {
    for (const std::string& name : quirks) {
      if (name == q.name || name == "all") options.board.manager.quirks.*q.member = true;
    }
  }
  if (!addresses.peer.empty()) {
    master_task.host_ip = parse_ip(addresses.peer);
    master_task.transmit.count = static_cast<uint32_t>(messages);
    master_task.transmit.immediate = master_task.transmit.kind == daq::TransferKind::Write;
    options.master_task = master_task;
  }
  return run_fpga(options);
}

}  // namespace verbena::daqtool

// The program behind `verbena fpga`, `recv`, `send` and `daq-sweep`: their command lines. An
// ordinary RDMA program on whatever libraries it finds; the verbena command puts Verbena's in
// front.
#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <system_error>
#include <vector>

#include "tools/daq/fpga.h"
#include "tools/daq/recv.h"
#include "tools/daq/send.h"
#include "tools/daq/sweep.h"
#include "tools/daq/udp.h"

namespace verbena::daqtool {
namespace {

constexpr int kDone = 0;
constexpr int kNotGood = 1;
constexpr int kUsage = 2;

const std::map<std::string, daq::TransferKind> kOps{{"send", daq::TransferKind::Send},
                                                    {"write", daq::TransferKind::Write}};
const std::map<std::string, Poll> kPolls{
    {"busy", Poll::Busy}, {"event", Poll::Event}, {"hybrid", Poll::Hybrid}};

const CLI::Range kTime(0.0, 1e9);  // seconds
const CLI::Range kGap(0.0, 1e7);   // microseconds: a board counts cycles, in 32 bits

// Options that several commands have in common.
void add_op(CLI::App& app, daq::TransferKind& op) {
  app.add_option_function<std::string>(
         "--op", [&op](const std::string& name) { op = kOps.at(name); },
         "What carries the data: write (with immediate) or send")
      ->type_name("OP")
      ->check(CLI::IsMember({"write", "send"}));
}
void add_sizes(CLI::App& app, uint32_t& bytes, uint64_t& wrap) {
  app.add_option("--msg-size", bytes, "Bytes of a message, a multiple of 4 (default 5120)")
      ->type_name("BYTES")
      ->check(CLI::Range(4u, 1u << 30));
  app.add_option("--wrap", wrap,
                 "Where offsets of WRITEs begin again, on both ends; the firmware's: 65536")
      ->type_name("BYTES")
      ->check(CLI::Range(uint64_t{4096}, uint64_t{1} << 34));
}
void add_mtu(CLI::App& app, uint32_t& mtu) {
  app.add_option("--mtu", mtu, "Path MTU, the same on both ends")
      ->type_name("BYTES")
      ->check(CLI::IsMember({256, 512, 1024, 2048, 4096}));
}
// The command line was all there was to do: --help, or something wrong with it.
struct Ended {
  int status;
};
void parse(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) throw Ended{app.exit(error)};
    throw;
  }
}

struct Addresses {  // as text, until all options are read
  std::string own, peer;
  std::vector<std::string> boards;
};

// ---------------------------------------------------------------------------------------- fpga

int fpga(int argc, char** argv) {
  CLI::App app("An emulated FPGA board that streams data by RoCEv2.", "verbena fpga");
  app.footer(
      "\nA board waits for a host's orders, or with --connect asks the host itself and sends at "
      "once.\n"
      "\nExamples:\n"
      "  verbena fpga --listen 127.0.0.2\n"
      "  verbena fpga --listen 127.0.0.3 --gbps 1 --loss 0.01 --json\n"
      "  verbena fpga --listen 127.0.0.2 --quirk opens-twice --quirk stale-answers\n"
      "  verbena fpga --listen 127.0.0.2 --connect 127.0.0.1 --streams 2 --msg-size 5120 "
      "--messages 1000");
  FpgaOptions options;
  daq::BoardQpConfig& qp = options.board.queue_pair;
  daq::Board::Mission mission;
  mission.transmit = {true, true, true, daq::TransferKind::Write, 5120, 10000, 0};
  Addresses addresses;
  std::vector<std::string> quirks;
  std::vector<std::string> quirk_list{"all"};
  uint32_t mtu = 4096;
  double timeout_us = 20000;
  double gap_us = 0;
  bool drop = false;
  uint64_t messages = 10000;
  for (const daq::QuirkName& q : daq::quirk_names()) quirk_list.emplace_back(q.name);
  std::string meanings = "\nQuirks of the real firmware (--quirk; all for all of them):\n";
  for (const daq::QuirkName& q : daq::quirk_names())
    meanings += fmt::format("  {:<15}{}\n", q.name, q.meaning);
  app.footer(app.get_footer() + "\n" + meanings);

  app.add_option("--listen", addresses.own,
                 "The board's address, one of this host's: 127.0.0.2 and so on")
      ->type_name("ADDRESS")
      ->required();
  app.add_option("--qps", options.board.manager.queue_pairs, "Queue pairs (default 8)")
      ->type_name("N")
      ->check(CLI::Range(1, 16));
  add_mtu(app, mtu);
  app.add_option("--inflight", qp.max_requests, "Requests under way on a queue pair (default 32)")
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
  app.add_option("--inflight-bytes", qp.inflight_bytes,
                 "Bytes under way on a queue pair: the board's buffer (default 131072)")
      ->type_name("BYTES");
  app.add_option("--gbps", options.board.link_gbps, "Speed of the link")
      ->type_name("RATE")
      ->check(CLI::Range(0.0001, 1000.0));
  app.add_option("--gap-us", gap_us, "At least so long between two messages of the generator")
      ->type_name("TIME")
      ->check(kGap);
  app.add_flag("--drop", drop,
               "A message that is due while the buffer is full is lost, instead of late");
  app.add_option("--timeout-us", timeout_us,
                 "Until unacknowledged packets are sent again (default 20000; the firmware's: 46)")
      ->type_name("TIME")
      ->check(CLI::Range(10.0, 1e7));
  app.add_option("--retries", qp.retries,
                 "Time-outs in a row before a queue pair fails (default 7)")
      ->type_name("N");
  app.add_option("--rnr-retries", qp.rnr_retries,
                 "RNR NAKs in a row before it fails (default 7: never)")
      ->type_name("N");
  app.add_option("--wrap", qp.wrap_bytes,
                 "Where offsets of WRITEs begin again (default 16777216; the firmware's: 65536)")
      ->type_name("BYTES")
      ->check(CLI::Range(uint64_t{4096}, uint64_t{1} << 34));
  app.add_option("--quirk", quirks, "A habit of the real firmware, see below; repeat for more")
      ->type_name("NAME")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->check(CLI::IsMember(quirk_list));
  app.add_option("--loss", options.loss, "Lose so much of the packets, each way")
      ->type_name("SHARE")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--seed", options.seed, "Of what is lost")->type_name("N");
  app.add_option("--seconds", options.seconds, "End after so long")
      ->type_name("TIME")
      ->check(kTime);
  app.add_option("--pcap", options.pcap, "Capture packets and connection messages to this file")
      ->type_name("FILE");
  app.add_flag("--json", options.json,
               "Print the summary as JSON; what happens goes to standard error");
  auto* const connect = app.add_option("--connect", addresses.peer, "Be the master: ask this host")
                            ->type_name("HOST");
  app.add_option("--port", mission.host_port, "With --connect: the host's UDP port (default 17186)")
      ->type_name("PORT")
      ->needs(connect);
  app.add_option("--streams", mission.streams, "With --connect: queue pairs to open")
      ->type_name("N")
      ->needs(connect)
      ->check(CLI::Range(1, 16));
  app.add_option("--msg-size", mission.transmit.length, "With --connect: bytes of a message")
      ->type_name("BYTES")
      ->needs(connect);
  app.add_option("--messages", messages, "With --connect: messages of each queue pair")
      ->type_name("N")
      ->needs(connect)
      ->check(CLI::Range(uint64_t{1}, uint64_t{UINT32_MAX}));
  add_op(app, mission.transmit.kind);
  parse(app, argc, argv);

  options.ip = options.board.manager.ip = parse_ip(addresses.own);
  qp.mtu = static_cast<wire::Mtu>(mtu);
  qp.timeout = {static_cast<int64_t>(timeout_us * 1000)};
  qp.min_gap_cycles = static_cast<uint32_t>(gap_us * qp.clock_hz / 1e6);
  qp.overrun = drop ? daq::Overrun::Drop : daq::Overrun::Wait;
  for (const daq::QuirkName& q : daq::quirk_names()) {
    for (const std::string& name : quirks) {
      if (name == q.name || name == "all") options.board.manager.quirks.*q.member = true;
    }
  }
  if (!addresses.peer.empty()) {
    mission.host_ip = parse_ip(addresses.peer);
    mission.transmit.count = static_cast<uint32_t>(messages);
    mission.transmit.immediate = mission.transmit.kind == daq::TransferKind::Write;
    options.mission = mission;
  }
  return run_fpga(options);
}

// ---------------------------------------------------------------------------------------- recv

int recv(int argc, char** argv) {
  CLI::App app("Receive what FPGA boards stream by RoCEv2.", "verbena recv");
  app.footer(
      "\nWith --board it asks boards for connections and has their generators send; without, "
      "boards ask it.\n"
      "\nExamples:\n"
      "  verbena recv --board 127.0.0.2\n"
      "  verbena recv --board 127.0.0.2 --board 127.0.0.3 --streams 2 --op send --msg-size 4096 "
      "--json\n"
      "  verbena recv --streams 2 --dump /data/run7\n"
      "\nExit status: 0 if all that was asked for came and was right, 1 if not, 2 if the command "
      "line was wrong.");
  ReceiveOptions options;
  Addresses addresses;
  bool active = false, no_check = false, json = false, plain = false;
  double gap_us = 0;
  auto* const asked = app.add_option("--board", addresses.boards, "Board to ask; repeat for more")
                          ->type_name("ADDRESS")
                          ->expected(1)
                          ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_flag("--active", active, "Ask boards, as --board alone says; without it they ask us")
      ->needs(asked);
  app.add_option("--ip", addresses.own,
                 "Our own address (default: the one that reaches the board; 127.0.0.1)")
      ->type_name("ADDRESS");
  app.add_option("--port", options.cm_port, "UDP port for connection messages (default 17186)")
      ->type_name("PORT")
      ->check(CLI::Range(1, 65535));
  app.add_option("--streams", options.streams,
                 "Queue pairs for each board; where boards ask, in all (default 1)")
      ->type_name("N")
      ->check(CLI::Range(1, 256));
  add_op(app, options.op);
  add_sizes(app, options.message_bytes, options.wrap_bytes);
  add_mtu(app, options.mtu);
  app.add_option("--num-wrs", options.receives,
                 "Receives posted for each stream (default 1024, fewer for messages over 64 KiB)")
      ->type_name("N")
      ->check(CLI::Range(1, 32768));
  app.add_option("--messages", options.messages,
                 "To ask of each stream (default 10000; 0: the board sends by itself)")
      ->type_name("N")
      ->check(CLI::Range(uint64_t{0}, uint64_t{UINT32_MAX}));
  app.add_option("--gap-us", gap_us, "To ask for between two messages")
      ->type_name("TIME")
      ->check(kGap);
  app.add_option_function<std::string>(
         "--poll", [&](const std::string& name) { options.poll = kPolls.at(name); },
         "How to wait: busy, event or hybrid (default)")
      ->type_name("MODE")
      ->check(CLI::IsMember({"busy", "event", "hybrid"}));
  app.add_option("--spin-us", options.spin_us,
                 "hybrid: awake for so long without a message (default 10)")
      ->type_name("TIME");
  app.add_option("--numa", options.numa_node, "NUMA node to run and receive on")
      ->type_name("NODE")
      ->check(CLI::Range(0, 1023));
  app.add_flag("--no-check", no_check, "Do not look at the data");
  app.add_option("--consumer-us", options.consumer_us, "Pretend to need so long for each message")
      ->type_name("TIME");
  app.add_option("--dump", options.dump,
                 "Write all data to this file; with several streams FILE.000, ...")
      ->type_name("FILE");
  app.add_option("--seconds", options.seconds, "End after so long")
      ->type_name("TIME")
      ->check(kTime);
  app.add_option("--silence", options.silence_seconds,
                 "Give up a board that is silent for so long (default 3; one that was not told to "
                 "send: 60; 0: never)")
      ->type_name("SECONDS")
      ->check(kTime);
  app.add_flag("--reconnect", options.reconnect,
               "Connect again to a board that was silent or failed");
  app.add_flag("--json", json, "Print the summary as JSON; what happens goes to standard error");
  app.add_flag("--plain", plain, "No live screen on a terminal");
  parse(app, argc, argv);

  for (const std::string& board : addresses.boards) options.boards.push_back(parse_ip(board));
  if (!addresses.own.empty()) options.ip = parse_ip(addresses.own);
  if (options.message_bytes % 4 != 0)
    throw CLI::ValidationError("--msg-size must be a multiple of 4");
  options.gap_cycles = static_cast<uint32_t>(gap_us * daq::BoardQpConfig{}.clock_hz / 1e6);
  options.check = !no_check;
  options.screen = !json && !plain && ::isatty(STDOUT_FILENO) != 0;
  catch_signals();
  std::FILE* const out = json ? stderr : stdout;
  const ReceiveSummary summary =
      receive(options, [&](const std::string& text) { print_line(out, text); });
  fmt::print("{}", json ? to_json(summary) : to_text(summary));
  return summary.good() ? kDone : kNotGood;
}

// ---------------------------------------------------------------------------------------- send

int send(int argc, char** argv) {
  CLI::App app("Send to `verbena recv` as a board does, by verbs.", "verbena send");
  app.footer(
      "\nWith HOST it asks a receiver that waits for boards; with --listen it waits like a board "
      "for receivers that ask,\nand sends what they say.\n"
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
  auto* const host =
      app.add_option("HOST", addresses.peer, "Where `verbena recv` waits")->type_name("");
  auto* const listening =
      app.add_option("--listen", listen, "Wait for receivers on this address, one of this host's")
          ->type_name("ADDRESS")
          ->excludes(host);
  app.add_option("--port", options.receiver_port, "HOST's UDP port (default 17186)")
      ->type_name("PORT")
      ->check(CLI::Range(1, 65535))
      ->needs(host);
  app.add_option("--ip", addresses.own, "Our own address (default: the one that reaches HOST)")
      ->type_name("ADDRESS")
      ->excludes(listening);
  app.add_option("--own-port", options.cm_port, "Our UDP port (default 17185)")
      ->type_name("PORT")
      ->check(CLI::Range(1, 65535));
  app.add_option("--streams", options.streams, "Queue pairs (default 1)")
      ->type_name("N")
      ->check(CLI::Range(1, 256));
  add_op(app, options.op);
  add_sizes(app, options.message_bytes, options.wrap_bytes);
  add_mtu(app, options.mtu);
  app.add_option("--messages", options.messages, "Of each stream (default 10000)")
      ->type_name("N")
      ->check(CLI::Range(uint64_t{1}, uint64_t{UINT32_MAX}));
  app.add_option("--gap-us", gap_us, "At least so long between two messages of a stream")
      ->type_name("TIME")
      ->check(kGap);
  app.add_option("--inflight", options.inflight, "Requests under way on each (default 32)")
      ->type_name("N")
      ->check(CLI::Range(1, 8192));
  app.add_option("--seconds", options.seconds, "End after so long")
      ->type_name("TIME")
      ->check(kTime);
  app.add_flag("--json", json, "Print the summary as JSON");
  parse(app, argc, argv);
  if (addresses.peer.empty() == listen.empty())
    throw CLI::ValidationError("either HOST or --listen says who asks whom");
  if (!addresses.peer.empty()) options.receiver = parse_ip(addresses.peer);
  if (!listen.empty()) options.ip = parse_ip(listen);
  if (!addresses.own.empty()) options.ip = parse_ip(addresses.own);
  if (options.message_bytes % 4 != 0)
    throw CLI::ValidationError("--msg-size must be a multiple of 4");
  options.gap_cycles = static_cast<uint32_t>(gap_us * daq::BoardQpConfig{}.clock_hz / 1e6);
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

// --------------------------------------------------------------------------------------- sweep

int sweep(int argc, char** argv) {
  CLI::App app(
      "Throughput over message size and over the number of receives, from an emulated board.",
      "verbena daq-sweep");
  app.footer(
      "\nThe board is started on an address of its own, here.\n"
      "\nExamples:\n"
      "  verbena daq-sweep --output /tmp/curve     /tmp/curve.json and /tmp/curve.svg\n"
      "  verbena daq-sweep --sizes 64,5120,65536 --depths 16,256 --seconds 0.2");
  SweepOptions options;
  Addresses addresses;
  addresses.own = "127.0.0.2";
  app.add_option("--listen", addresses.own, "The board's address (default 127.0.0.2)")
      ->type_name("ADDRESS");
  app.add_option("--sizes", options.sizes, "Bytes of messages (default 64 to 4194304)")
      ->type_name("BYTES,...")
      ->delimiter(',')
      ->check(CLI::Range(4u, 4u << 20));
  app.add_option("--depths", options.depths, "Numbers of receives (default 1 to 32768)")
      ->type_name("N,...")
      ->delimiter(',')
      ->check(CLI::Range(1u, 32768u));
  app.add_option("--depth-size", options.depth_bytes, "Bytes of messages for these (default 5120)")
      ->type_name("BYTES")
      ->check(CLI::Range(4u, 65536u));
  add_op(app, options.op);
  app.add_option("--seconds", options.seconds, "Time for each measurement (default 0.5)")
      ->type_name("TIME")
      ->check(CLI::Range(0.05, 60.0));
  app.add_option("--output", options.output, "Beginning of the names of the .json and .svg files")
      ->type_name("FILE");
  parse(app, argc, argv);
  options.board = parse_ip(addresses.own);
  catch_signals();
  return run_sweep(options) ? kDone : kNotGood;
}

int main(int argc, char** argv) {
  // No file or socket takes the place of a standard stream that somebody has closed.
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) < 0) (void)!::open("/dev/null", O_RDWR);
  }
  const std::map<std::string, int (*)(int, char**)> commands{
      {"fpga", fpga}, {"recv", recv}, {"send", send}, {"daq-sweep", sweep}};
  const auto command = commands.find(argc > 1 ? argv[1] : "");
  if (command == commands.end()) {
    print_line(stderr, "Usage: verbena-daq fpga|recv|send|daq-sweep [OPTIONS]");
    return kUsage;
  }
  const std::string name = "verbena " + command->first;
  try {
    return command->second(argc - 1, argv + 1);
  } catch (const CLI::ParseError& error) {
    print_line(stderr, fmt::format("{}: {}\nTry: {} --help", name, error.what(), name));
    return kUsage;
  } catch (const Ended& ended) {
    return ended.status;
  } catch (const Trouble& trouble) {
    print_line(stderr, name + ": " + trouble.what());
    return kNotGood;
  } catch (const std::system_error& error) {
    print_line(stderr, name + ": " + error.what());  // the summary goes nowhere
    return kNotGood;
  }
}

}  // namespace
}  // namespace verbena::daqtool

int main(int argc, char** argv) { return verbena::daqtool::main(argc, argv); }

// The sockets and the main loop of an emulated board. The board uses port 4791 of its address
// exclusively: boards have no slots, and their QPNs start at 256.
#include "tools/daq/fpga.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "datapath/udp/udp_sender.h"
#include "tools/daq/capture.h"
#include "tools/daq/udp.h"
#include "wire/icrc.h"

namespace verbena::daqtool {
namespace {

constexpr int kMaxReceiveBatch = 64;  // datagrams to read before the board sends again
// At full speed the board busy-polls for ACKs: they arrive sooner than the thread could sleep and
// wake.
constexpr Duration kBusyPollTime = microseconds(50);
constexpr size_t kMinPacketBytes = wire::kBthBytes + wire::kIcrcBytes;

wire::Gid gid_of(uint32_t ip) {
  const uint32_t network = htonl(ip);
  return wire::Gid::from_ipv4(&network);
}

// A decorator between the board and its sockets: drops packets on purpose and captures them.
class Wire final : public wire::PacketSink {
 public:
  Wire(wire::PacketSink& inner, Capture* capture, double loss, uint64_t seed)
      : inner_(inner), capture_(capture), loss_(loss), prng_(seed) {}

  bool should_drop() { return loss_ > 0 && prng_.chance(loss_) && ++dropped_ != 0; }
  uint64_t dropped() const { return dropped_; }
  void set_flow(size_t path, const wire::IcrcFlow& flow) {
    if (path >= flows_.size()) flows_.resize(path + 1);
    flows_[path] = flow;
  }

  size_t room() const override { return inner_.room(); }
  void push(const wire::TxPacket& packet) override {
    if (capture_ != nullptr) record(packet);
    if (!should_drop()) inner_.push(packet);
  }

 private:
  void record(const wire::TxPacket& p) {
    bytes_.assign(p.header.begin(), p.header.begin() + p.header_bytes);
    for (const auto& part : p.payload) bytes_.insert(bytes_.end(), part.begin(), part.end());
    const wire::IcrcFlow& flow = flows_[static_cast<size_t>(p.path)];
    const uint32_t prefix = wire::icrc_prefix(flow, bytes_.size() + wire::kIcrcBytes);
    const uint32_t icrc = wire::icrc_over_bth(prefix, bytes_);
    bytes_.resize(bytes_.size() + wire::kIcrcBytes);
    wire::store_icrc(bytes_.data() + bytes_.size() - wire::kIcrcBytes, icrc);
    capture_->write(flow, bytes_);
  }

  wire::PacketSink& inner_;
  Capture* capture_;
  double loss_;
  Prng prng_;
  uint64_t dropped_ = 0;
  std::vector<wire::IcrcFlow> flows_;  // by path
  std::vector<std::byte> bytes_;
};

class Fpga {
 public:
  explicit Fpga(const FpgaOptions& options)
      : options_(options),
        board_(options.board),
        capture_(options.pcap.empty() ? nullptr : std::make_unique<Capture>(options.pcap)),
        request_socket_(options.ip, daq::kBoardPort),
        response_socket_(options.ip, daq::kBoardSourcePort),
        roce_socket_(options.ip, wire::kRoceUdpPort),
        paths_(options.board.manager.queue_pairs),
        path_ips_(paths_.size()),
        sender_(paths_, counters_, {}),
        wire_(sender_, capture_.get(), options.loss, options.seed) {
    endpoint_.address = host::local_address(gid_of(options.ip), 0);
    auto socket = datapath::open_send_socket(endpoint_.address, {}, 0);
    if (!socket.ok()) throw ToolError(socket.error().why);
    endpoint_.send = std::move(socket.value());
    endpoint_.hop_limit = datapath::kDefaultHopLimit;
  }

  void run() {
    ::prctl(PR_SET_TIMERSLACK, 1);
    const Instant start = now();
    const Instant end = options_.seconds > 0
                            ? start + Duration{static_cast<int64_t>(options_.seconds * 1e9)}
                            : kNever;
    if (options_.master_task) board_.begin(*options_.master_task, start);
    const Duration busy_poll_time = options_.board.link_gbps > 0 ? Duration{0} : kBusyPollTime;
    Instant poll_until = start;
    while (!interrupted() && !board_.master_task_done()) {
      const Instant at = now();
      if (at >= end) break;
      receive_packets(at);  // first, so that ACKs received before a close count
      receive_messages(at);
      if (board_.next_deadline(at) <= at) board_.on_deadline(at);
      send_messages();
      const uint64_t before = counters_.packets_sent + wire_.dropped();
      board_.transmit(wire_, at);
      sender_.flush();
      print_lines();
      report_capture_failure();
      if (counters_.packets_sent + wire_.dropped() != before) {
        poll_until = at + busy_poll_time;
      } else if (at >= poll_until) {
        sleep_until(std::min(board_.next_deadline(at), end));
      }
    }
  }

  void end_capture() {
    if (!capture_) return;
    capture_->flush();
    report_capture_failure();
  }

  // True if a master has sent all its messages, except those that --drop discarded, and the capture
  // is complete.
  bool good() const {
    if (capture_ && !capture_->failure().empty()) return false;
    if (!options_.master_task) return true;
    const daq::BoardQpCounters t = board_.totals();
    return t.messages_acked + t.overruns ==
           uint64_t{options_.master_task->streams} * options_.master_task->transmit.count;
  }

  void print_summary() const {
    const daq::BoardQpCounters t = board_.totals();
    const char* const text =
        options_.json
            ? "{{\"address\": \"{}\", \"messages_made\": {}, \"messages_acked\": {}, "
              "\"bytes_acked\": {}, "
              "\"packets_sent\": {}, \"packets_repeated\": {}, \"overruns\": {}, \"timeouts\": {}, "
              "\"sequence_naks\": {}, \"rnr_naks\": {}, \"packets_lost_on_purpose\": {}, "
              "\"foreign_packets\": {}, \"icrc_errors\": {}}}\n"
            : "{}: {} messages generated, {} acknowledged ({} bytes); {} packets, {} of them "
              "retransmitted; {} messages dropped because the buffer was full; {} timeouts, {} "
              "sequence NAKs, {} RNR NAKs; {} packets dropped on purpose, {} foreign, {} with a "
              "wrong ICRC\n";
    fmt::print(fmt::runtime(text), daq::print_ip(options_.ip), t.messages_made, t.messages_acked,
               t.bytes_acked, t.packets_sent, t.packets_retransmitted, t.overruns, t.timeouts,
               t.sequence_naks, t.rnr_naks, wire_.dropped(), board_.counters().foreign_packets,
               icrc_errors_);
  }

 private:
  void receive_messages(Instant at) {
    for (UdpSocket* socket : {&request_socket_, &response_socket_}) {
      for (int i = 0; i < kMaxReceiveBatch; ++i) {
        const auto datagram = socket->receive();
        if (!datagram) break;
        if (capture_) {
          capture_->write({gid_of(datagram->source_ip), gid_of(options_.ip), datagram->source_port,
                           daq::kBoardPort},
                          datagram->bytes);
        }
        board_.on_message(datagram->bytes, at);
      }
    }
    for (size_t i = 0; i < paths_.size(); ++i) {
      if (board_.peers()[i] != path_ips_[i]) open_path(i, board_.peers()[i]);
    }
  }

  void open_path(size_t index, uint32_t ip) {
    auto path = std::make_unique<datapath::UdpPath>();
    path->endpoint = &endpoint_;
    path->destination = host::local_address(gid_of(ip), 0);
    path->to = host::SocketAddress::of(path->destination, wire::kRoceUdpPort);
    const wire::IcrcFlow flow{gid_of(options_.ip), gid_of(ip), endpoint_.send.port,
                              wire::kRoceUdpPort};
    path->icrc = wire::IcrcPrefixes(flow);
    // On the way to another host a NIC may segment sends and choose the IP ids itself.
    path->may_segment = host::is_local(path->destination);
    paths_[index] = std::move(path);
    path_ips_[index] = ip;
    wire_.set_flow(index, flow);
  }

  void receive_packets(Instant at) {
    for (int i = 0; i < kMaxReceiveBatch; ++i) {
      const auto datagram = roce_socket_.receive();
      if (!datagram) return;
      const wire::IcrcFlow flow{gid_of(datagram->source_ip), gid_of(options_.ip),
                                datagram->source_port, wire::kRoceUdpPort};
      if (capture_) capture_->write(flow, datagram->bytes);
      if (wire_.should_drop()) continue;
      if (verifier_.flow() != flow) verifier_ = wire::IcrcVerifier(flow);
      if (datagram->bytes.size() < kMinPacketBytes ||
          verifier_.check(datagram->bytes, 0) == wire::IcrcMatch::No) {
        ++icrc_errors_;
        continue;
      }
      board_.on_packet(datagram->bytes.first(datagram->bytes.size() - wire::kIcrcBytes),
                       datagram->source_ip, at);
    }
  }

  void send_messages() {
    while (const auto out = board_.next_message()) {
      const daq::MessageBytes bytes = out->message.store();
      response_socket_.send(out->ip, out->port, bytes);
      if (capture_) {
        capture_->write({gid_of(options_.ip), gid_of(out->ip), daq::kBoardSourcePort, out->port},
                        bytes);
      }
    }
  }

  void sleep_until(Instant deadline) {
    pollfd fds[] = {{request_socket_.fd(), POLLIN, 0},
                    {response_socket_.fd(), POLLIN, 0},
                    {roce_socket_.fd(), POLLIN, 0}};
    const int64_t remaining = deadline == kNever ? 1'000'000'000 : (deadline - now()).ns;
    if (remaining <= 0) return;
    const timespec limit{remaining / 1'000'000'000, remaining % 1'000'000'000};
    ::ppoll(fds, std::size(fds), &limit, nullptr);
  }

  void print_lines() {
    while (const auto line = board_.next_line()) {
      print_line(options_.json ? stderr : stdout, daq::print_ip(options_.ip) + ": " + *line);
    }
  }

  // Reports a failed capture once; the board continues without it.
  void report_capture_failure() {
    if (!capture_ || capture_->failure().empty() ||
        std::exchange(is_capture_failure_reported_, true))
      return;
    print_line(stderr, daq::print_ip(options_.ip) + ": " + capture_->failure());
  }

  FpgaOptions options_;
  daq::Board board_;
  std::unique_ptr<Capture> capture_;
  UdpSocket request_socket_;
  UdpSocket response_socket_;
  UdpSocket roce_socket_;
  datapath::UdpEndpoint endpoint_;
  std::vector<std::unique_ptr<datapath::UdpPath>> paths_;  // by queue pair
  std::vector<uint32_t> path_ips_;
  datapath::UdpCounters counters_;
  datapath::UdpSender sender_;
  Wire wire_;
  wire::IcrcVerifier verifier_{{}};
  uint64_t icrc_errors_ = 0;
  bool is_capture_failure_reported_ = false;
};

}  // namespace

int run_fpga(const FpgaOptions& options) {
  catch_signals();
  Fpga fpga(options);
  if (options.master_task) {
    print_line(stderr, fmt::format("{}: a board with {} queue pairs, connects to {}",
                                   daq::print_ip(options.ip), options.board.manager.queue_pairs,
                                   daq::print_ip(options.master_task->host_ip)));
  } else {
    print_line(stderr, fmt::format("{}: a board with {} queue pairs listens on UDP port {}",
                                   daq::print_ip(options.ip), options.board.manager.queue_pairs,
                                   daq::kBoardPort));
  }
  fpga.run();
  fpga.end_capture();
  fpga.print_summary();
  return fpga.good() ? 0 : 1;
}

}  // namespace verbena::daqtool

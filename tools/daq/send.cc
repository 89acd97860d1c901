// The sender. Actively, it requests connections from a receiver, as a master board does, and sends.
// Passively, it waits for receivers, as a board does, and sends what they request.
#include "tools/daq/send.h"

#include <fmt/core.h>
#include <poll.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "daq/board.h"
#include "daq/host_manager.h"
#include "tools/daq/source.h"
#include "tools/daq/udp.h"

namespace verbena::daqtool {
namespace {

constexpr int kWaitMs = 20;
constexpr Duration kCloseTimeout = milliseconds(3000);

class Sender {
 public:
  using Line = std::function<void(const std::string&)>;

  Sender(const SendOptions& options, const Line& line)
      : options_(options),
        line_(line),
        device_(options.ip),
        mtu_(options.mtu == 0 ? device_.mtu : std::min(mtu_of(options.mtu), device_.mtu)),
        cq_(device_.make_cq(options.streams * (options.inflight + 1))),
        cm_({.ip = options.ip, .port = options.cm_port}),
        socket_(options.ip, options.cm_port),
        connections_(options.streams) {
    summary_.device = device_.name;
  }

  SendSummary run() {
    begin();
    const Instant end = options_.seconds > 0
                            ? now() + Duration{static_cast<int64_t>(options_.seconds * 1e9)}
                            : kNever;
    for (Instant housekeeping_at{0};;) {
      const Instant at = now();
      poll_completions(at);
      if (at >= housekeeping_at) {
        serve_connections(at);
        if (interrupted() || at >= end || all_done()) break;
        housekeeping_at = at + kHousekeepingInterval;
      }
      bool busy = false;
      for (Connection& connection : connections_) busy = push(connection, at) || busy;
      if (!busy) wait_for_messages();
    }
    finish();
    return summary_;
  }

 private:
  enum class State : uint8_t { Free, Opening, Running, Done };
  struct Connection {
    std::unique_ptr<Source> source;
    State state = State::Free;
    uint32_t id = 0;  // of the connection
    std::string peer;
  };
  bool is_active() const { return options_.receiver != 0; }

  void begin() {
    if (!is_active()) {
      log(fmt::format("{} waits for receivers on UDP port {}", daq::print_ip(options_.ip),
                      options_.cm_port));
      return;
    }
    for (Connection& connection : connections_) {
      make_source(connection);
      connection.state = State::Opening;
      connection.id =
          cm_.open(options_.receiver, options_.receiver_port, connection.source->local(), now());
    }
  }

  void make_source(Connection& connection) {
    connection.source =
        std::make_unique<Source>(device_, options_, cq_.get(), index_of(connection));
  }

  // ---------------------------------------------------------------------------------------- data

  // Whether the stream has messages to send or in flight.
  bool push(Connection& connection, Instant at) {
    if (connection.state != State::Running) return false;
    connection.source->post(at);
    if (connection.source->busy()) return true;
    if (is_active()) connection.state = State::Done;
    return false;
  }

  void poll_completions(Instant at) {
    ibv_wc done[64];
    const int n = ibv_poll_cq(cq_.get(), std::size(done), done);
    for (int i = 0; i < n; ++i) {
      Connection& connection = connections_[done[i].wr_id];
      if (connection.state != State::Running || done[i].qp_num != connection.source->number())
        continue;
      if (done[i].status != IBV_WC_SUCCESS) {
        fail(connection,
             fmt::format("{} does not accept a message: {}", connection.peer,
                         ibv_wc_status_str(done[i].status)),
             at);
        continue;
      }
      connection.source->on_completion();
      first_ = std::min(first_, at);
      last_ = at;
    }
  }

  // --------------------------------------------------------------------------------- connections

  void serve_connections(Instant at) {
    while (const auto datagram = socket_.receive())
      cm_.on_datagram(datagram->bytes, datagram->source_ip, at);
    cm_.on_deadline(at);
    while (const auto event = cm_.next_event()) on_event(*event, at);
    send_messages();
  }

  void send_messages() {
    while (const auto out = cm_.next_outgoing())
      socket_.send(out->ip, out->port, out->message.store());
  }

  void on_event(const daq::HostEvent& event, Instant at) {
    const std::string what =
        fmt::format("{} {}", daq::print_ip(event.peer_ip), text_of(event.outcome));
    if (event.outcome == daq::HostOutcome::OpenRequested) return accept(event, at);
    const auto connection = std::ranges::find_if(connections_, [&](const Connection& c) {
      return event.id != 0 && c.id == event.id && c.state != State::Free;
    });
    if (connection == connections_.end()) return log(what);
    switch (event.outcome) {
      case daq::HostOutcome::OpenRefused:
        throw ToolError(fmt::format("{}: {}", what, daq::name_of(event.ack)));
      case daq::HostOutcome::OpenTimedOut:
        throw ToolError(what);
      case daq::HostOutcome::Opened:
        start(*connection, event.peer);
        start_transfer(*connection,
                       {.valid = true,
                        .start = true,
                        .immediate = options_.op == daq::TransferKind::Write,
                        .kind = options_.op,
                        .length = options_.message_bytes,
                        .count = static_cast<uint32_t>(options_.messages),
                        .gap_cycles = options_.gap_cycles},
                       at);
        return;
      case daq::HostOutcome::TransmitRequested:
        return start_transfer(*connection, event.transmit, at);
      case daq::HostOutcome::PeerClosed:
      case daq::HostOutcome::PeerRestarted:
        log(*connection, what);
        poll_completions(at);
        return leave(*connection,
                     event.outcome == daq::HostOutcome::PeerClosed ? State::Done : State::Free);
      default:
        log(what);
    }
  }

  void start(Connection& connection, const daq::QpInfo& peer) {
    connection.peer = daq::print_ip(peer.ip);
    connection.source->connect(peer, mtu_);
    connection.state = State::Running;
    log(connection, fmt::format("INIT, RTR, RTS: sends to {} QP {}", connection.peer, peer.qpn));
  }

  void accept(const daq::HostEvent& event, Instant at) {
    const std::string peer = daq::print_ip(event.peer_ip);
    const auto connection = std::ranges::find(connections_, State::Free, &Connection::state);
    if (is_active() || connection == connections_.end()) {
      log(fmt::format("{} requests one stream more than --streams {}: NO_QP", peer,
                      options_.streams));
      return cm_.refuse(event.id, daq::Ack::NoQp);
    }
    try {
      make_source(*connection);
      start(*connection, event.peer);
    } catch (const ToolError& error) {
      log(fmt::format("{} requests a connection: ERROR: {}", peer, error.what()));
      connection->source.reset();
      return cm_.refuse(event.id, daq::Ack::Error);
    }
    connection->id = event.id;
    cm_.accept(event.id, connection->source->local(), at);
  }

  void start_transfer(Connection& connection, const daq::Transmit& command, Instant at) {
    try {
      const bool taken = connection.source->begin(command, at);
      log(connection, fmt::format("{}{} messages of {} bytes", taken ? "" : "busy, ignored: ",
                                  command.count, command.length & ~3u));
      if (taken) summary_.wanted += command.count;
    } catch (const ToolError& error) {
      fail(connection, error.what(), at);
    }
  }

  // An active sender has one receiver, so its failure is final. A passive sender serves the others.
  void fail(Connection& connection, const std::string& why, Instant at) {
    if (is_active()) throw ToolError(why);
    log(connection, why);
    cm_.close(connection.id, at);
    leave(connection, State::Free);
  }

  void leave(Connection& connection, State state) {
    count(connection);
    connection.source.reset();
    connection.state = state;
  }

  void count(const Connection& connection) {
    if (!connection.source) return;
    summary_.messages += connection.source->messages();
    summary_.bytes += connection.source->bytes();
  }

  bool all_done() const {
    return std::ranges::all_of(connections_,
                               [](const Connection& c) { return c.state == State::Done; });
  }

  void finish() {
    const Instant ended = now();
    summary_.seconds = first_ < last_ ? static_cast<double>((last_ - first_).ns) / 1e9 : 0;
    for (const Connection& connection : connections_) {
      if (connection.source) cm_.close(connection.id, ended);
    }
    while (cm_.connections() > 0 && now() < ended + kCloseTimeout) {
      serve_connections(now());
      wait_for_messages();
    }
    for (const Connection& connection : connections_) count(connection);
  }

  void wait_for_messages() {
    pollfd fd{socket_.fd(), POLLIN, 0};
    ::poll(&fd, 1, kWaitMs);
  }

  uint32_t index_of(const Connection& connection) const {
    return static_cast<uint32_t>(&connection - connections_.data());
  }
  void log(const std::string& text) { line_(text); }
  void log(const Connection& connection, const std::string& text) {
    log(fmt::format("stream {}: {}", index_of(connection), text));
  }

  SendOptions options_;
  const Line& line_;
  VerbsDevice device_;
  ibv_mtu mtu_;
  Owned<ibv_cq, ibv_destroy_cq> cq_;
  daq::HostManager cm_;
  UdpSocket socket_;
  std::vector<Connection> connections_;  // destroyed before the members above
  Instant first_ = kNever;
  Instant last_{0};
  SendSummary summary_;
};

}  // namespace

SendSummary send(const SendOptions& options, const std::function<void(const std::string&)>& line) {
  SendOptions resolved = options;
  if (resolved.ip == 0) resolved.ip = source_address_to(resolved.receiver);
  return Sender(resolved, line).run();
}

}  // namespace verbena::daqtool

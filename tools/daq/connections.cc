// Opening, accepting, supervising and closing the receiver's connections.
#include "tools/daq/connections.h"

#include <fmt/core.h>
#include <poll.h>

#include <algorithm>
#include <utility>

#include "daq/board.h"

namespace verbena::daqtool {
namespace {

constexpr Duration kReopenAfter = milliseconds(200);
constexpr Duration kCloseTimeout = seconds(3);
// The limit is short for a board that was commanded to send, and long for one that sends on its
// own.
constexpr double kSilenceSeconds = 3;
constexpr double kLongSilenceSeconds = 60;

}  // namespace

Connections::Connections(const ReceiveOptions& options, const Plan& plan, const VerbsDevice& device,
                         ibv_cq* cq, Hooks hooks)
    : options_(options),
      cq_(cq),
      hooks_(std::move(hooks)),
      cm_({.ip = options.ip, .port = options.cm_port}),
      socket_(options.ip, options.cm_port) {
  for (uint32_t i = 0; i < plan.streams; ++i) {
    connections_.push_back({std::make_unique<Stream>(device, options, plan, i)});
    if (!options.boards.empty()) connections_.back().board = options.boards[i / options.streams];
  }
}

void Connections::begin() {
  for (Connection& connection : connections_) {
    if (connection.board != 0) open(connection);
  }
  if (options_.boards.empty()) {
    hooks_.log(fmt::format("{} waits for boards on UDP port {}", daq::print_ip(options_.ip),
                           options_.cm_port));
  }
  send_messages();
}

void Connections::do_housekeeping(Instant at) {
  receive_messages(at);
  while (const auto event = cm_.next_event()) on_event(*event, at);
  for (Connection& connection : connections_) {
    if (connection.state == State::Waiting && connection.reopen_at <= at) open(connection);
    check_silence(connection, at);
    if (connection.state == State::Running && connection.board != 0 &&
        connection.stream->is_complete() && is_quiet(connection)) {
      connection.state = State::Done;
    }
  }
  send_messages();
}

void Connections::receive_messages(Instant at) {
  while (const auto datagram = socket_.receive()) {
    cm_.on_datagram(datagram->bytes, datagram->source_ip, at);
  }
  if (cm_.next_deadline() <= at) cm_.on_deadline(at);
}

void Connections::send_messages() {
  while (const auto out = cm_.next_outgoing())
    socket_.send(out->ip, out->port, out->message.store());
}

// --------------------------------------------------------------------------------------- streams

Stream* Connections::stream_of(const ibv_wc& completion) {
  const Connection& connection = connections_[completion.wr_id >> 32];
  const bool current = completion.qp_num == connection.stream->summary().queue_pair;
  return current && connection.state == State::Running ? connection.stream.get() : nullptr;
}

void Connections::consume(Instant at) {
  for (Connection& connection : connections_) {
    if (connection.state == State::Running && !connection.stream->consume(at))
      on_failure(connection, at);
  }
}

void Connections::on_failure(const Stream& stream, Instant at) {
  on_failure(
      *std::ranges::find(connections_, &stream, [](const Connection& c) { return c.stream.get(); }),
      at);
}

bool Connections::is_quiet(const Connection& connection) const {
  return connection.stream->next_consumption() == kNever;
}

bool Connections::all_done() const {
  return std::ranges::all_of(
      connections_, [](const Connection& connection) { return connection.state == State::Done; });
}

Instant Connections::next_deadline() const {
  Instant next = cm_.next_deadline();
  for (const Connection& connection : connections_)
    next = std::min(next, connection.stream->next_consumption());
  return next;
}

Instant Connections::last_activity() const {
  Instant last{0};
  for (const Connection& connection : connections_)
    last = std::max(last, connection.stream->last_activity());
  return last;
}

// ----------------------------------------------------------------------------------- connections

void Connections::open(Connection& connection) {
  const daq::QpInfo local = connection.stream->prepare(cq_);
  connection.state = State::Opening;
  connection.id = cm_.open(connection.board, daq::kBoardPort, local, now());
  log(connection, fmt::format("QP {} is INIT, requests a connection from {}", local.qpn,
                              daq::print_ip(connection.board)));
}

Connections::Connection* Connections::connection_of(uint32_t id) {
  const auto found = std::ranges::find_if(connections_, [&](const Connection& connection) {
    return id != 0 && connection.id == id && connection.state != State::Free &&
           connection.state != State::Done;
  });
  return found == connections_.end() ? nullptr : &*found;
}

void Connections::on_event(const daq::HostEvent& event, Instant at) {
  Connection* const connection = connection_of(event.id);
  const std::string what =
      fmt::format("{} {}", daq::print_ip(event.peer_ip), text_of(event.outcome));
  switch (event.outcome) {
    case daq::HostOutcome::Opened:
      if (connection != nullptr && !start(*connection, event.peer)) on_failure(*connection, at);
      return;
    case daq::HostOutcome::OpenRequested:
      return accept(event, at);
    case daq::HostOutcome::OpenRefused:
      if (connection != nullptr) {
        end_connection(*connection, fmt::format("{}: {}", what, daq::name_of(event.ack)), at);
      }
      return;
    case daq::HostOutcome::OpenTimedOut:
      if (connection != nullptr) end_connection(*connection, what, at);
      return;
    case daq::HostOutcome::PeerClosed:
    case daq::HostOutcome::PeerRestarted:
      if (connection != nullptr) on_peer_closed(*connection, event, at);
      return;
    case daq::HostOutcome::Closed:
    case daq::HostOutcome::CloseTimedOut:
      if (connection != nullptr && connection->state == State::Closing) {
        connection->state = State::Waiting;
        connection->reopen_at = at + kReopenAfter;
      }
      return;
    default:
      hooks_.log(what);
  }
}

void Connections::on_peer_closed(Connection& connection, const daq::HostEvent& event, Instant at) {
  hooks_.drain_completions(at);  // messages that arrived before the close
  if (connection.state != State::Running) return;
  connection.stream->disconnect();
  log(connection, fmt::format("{} {}; {} messages", daq::print_ip(event.peer_ip),
                              text_of(event.outcome), connection.stream->summary().messages));
  connection.state = event.outcome == daq::HostOutcome::PeerClosed ? State::Done : State::Free;
}

// False: the connection to the address that the peer gave fails. Other streams continue.
bool Connections::start(Connection& connection, const daq::QpInfo& peer) {
  connection.state = State::Running;
  try {
    connection.stream->connect(peer);
  } catch (const ToolError& error) {
    connection.stream->summary().trouble =
        fmt::format("{} QP {}: {}", daq::print_ip(peer.ip), peer.qpn, error.what());
    return false;
  }
  connection.stream->summary().trouble.clear();
  log(connection,
      fmt::format("RTR, RTS: receives from {} QP {}", daq::print_ip(peer.ip), peer.qpn));
  if (connection.board == 0 || options_.messages == 0) return true;
  cm_.transmit(connection.id, {.valid = true,
                               .start = true,
                               .immediate = options_.op == daq::TransferKind::Write,
                               .kind = options_.op,
                               .length = options_.message_bytes,
                               .count = static_cast<uint32_t>(std::min<uint64_t>(
                                   connection.stream->messages_left(), UINT32_MAX)),
                               .gap_cycles = options_.gap_cycles});
  return true;
}

void Connections::accept(const daq::HostEvent& event, Instant at) {
  const auto connection = std::ranges::find_if(
      connections_, [](const Connection& c) { return c.board == 0 && c.state == State::Free; });
  if (connection == connections_.end()) {
    hooks_.log(fmt::format("{} requests one stream more than --streams {}: NO_QP",
                           daq::print_ip(event.peer_ip), options_.streams));
    return cm_.refuse(event.id, daq::Ack::NoQp);
  }
  const daq::QpInfo local = connection->stream->prepare(cq_);
  connection->id = event.id;
  if (start(*connection, event.peer)) return cm_.accept(event.id, local, at);
  hooks_.log(fmt::format("{} requests a connection to {}: ERROR", daq::print_ip(event.peer_ip),
                         std::exchange(connection->stream->summary().trouble, {})));
  connection->stream->disconnect();
  connection->state = State::Free;
  cm_.refuse(event.id, daq::Ack::Error);
}

void Connections::on_failure(Connection& connection, Instant at) {
  cm_.close(connection.id, at);
  end_connection(connection, connection.stream->summary().trouble, at);
}

// Ends the connection, and schedules a new one with --reconnect.
void Connections::end_connection(Connection& connection, const std::string& why, Instant at) {
  log(connection,
      fmt::format("{}; {} messages so far", why, connection.stream->summary().messages));
  connection.stream->summary().trouble = why;
  const bool closing = connection.state == State::Running;  // wait for the response to CLOSE_QP
  if (connection.board != 0 && options_.reconnect && !connection.stream->is_complete()) {
    connection.state = closing ? State::Closing : State::Waiting;
    connection.reopen_at = at + kReopenAfter;
  } else {
    connection.state = connection.board == 0 ? State::Free : State::Done;
  }
  connection.stream->disconnect();
}

double Connections::silence_limit(const Connection& connection) const {
  if (options_.silence_seconds) return *options_.silence_seconds;
  return connection.board != 0 && options_.messages != 0 ? kSilenceSeconds : kLongSilenceSeconds;
}

void Connections::check_silence(Connection& connection, Instant at) {
  const double limit = silence_limit(connection);
  if (connection.state != State::Running || limit == 0 || connection.stream->is_complete() ||
      !is_quiet(connection) ||
      at < connection.stream->last_activity() + Duration{static_cast<int64_t>(limit * 1e9)}) {
    return;
  }
  const std::string board = daq::print_ip(connection.stream->summary().board);
  cm_.close(connection.id, at);
  end_connection(connection,
                 fmt::format("{} is silent for {:g} s: given up (--silence)", board, limit), at);
  // A peer that opened the connection may open it again; the receiver waits for that only with
  // --reconnect.
  if (connection.board == 0 && !options_.reconnect) connection.state = State::Done;
}

void Connections::end(Instant at) {
  for (const Connection& connection : connections_) {
    if (connection.state != State::Free) cm_.close(connection.id, at);
  }
  send_messages();
  while (cm_.connections() > 0 && now() < at + kCloseTimeout) {
    pollfd fd{socket_.fd(), POLLIN, 0};
    ::poll(&fd, 1, 20);
    receive_messages(now());
    while (cm_.next_event()) {
    }
    send_messages();
  }
  for (Connection& connection : connections_) {
    connection.stream->disconnect();
    StreamSummary& s = connection.stream->summary();
    if (connection.stream->is_complete()) {
      s.trouble.clear();
    } else if (connection.board != 0 && options_.messages != 0) {
      s.missing = connection.stream->messages_left();
    }
  }
}

// ------------------------------------------------------------------------------------ for people

const char* Connections::name_of(State state) {
  switch (state) {
    case State::Free:
      return "waiting";
    case State::Opening:
      return "opening";
    case State::Running:
      return "receiving";
    case State::Closing:
    case State::Waiting:
      return "reopening";
    case State::Done:
      return "done";
  }
  return "";
}

std::vector<Connections::View> Connections::view() const {
  std::vector<View> all;
  for (const Connection& connection : connections_) {
    all.push_back(
        {connection.stream->summary(), name_of(connection.state), connection.stream->posted()});
  }
  return all;
}

void Connections::log(const Connection& connection, const std::string& text) {
  hooks_.log(fmt::format("stream {}: {}", &connection - connections_.data(), text));
}

}  // namespace verbena::daqtool

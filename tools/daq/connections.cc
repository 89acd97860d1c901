// Opening, accepting, failing, closing.
#include "tools/daq/connections.h"

#include <fmt/core.h>
#include <poll.h>

#include <algorithm>
#include <utility>

#include "daq/board.h"

namespace verbena::daqtool {
namespace {

constexpr Duration kReopenAfter = milliseconds(200);
constexpr Duration kFarewell = seconds(3);
// A board that was told what to send sends it. One that decides by itself may take its time.
constexpr double kPatienceSeconds = 3;
constexpr double kLongPatienceSeconds = 60;

}  // namespace

Connections::Connections(const ReceiveOptions& options, const Plan& plan, const VerbsDevice& device,
                         ibv_cq* cq, Hooks hooks)
    : options_(options),
      cq_(cq),
      hooks_(std::move(hooks)),
      cm_({.ip = options.ip, .port = options.cm_port}),
      socket_(options.ip, options.cm_port) {
  for (uint32_t i = 0; i < plan.streams; ++i) {
    lanes_.push_back({std::make_unique<Stream>(device, options, plan, i)});
    if (!options.boards.empty()) lanes_.back().board = options.boards[i / options.streams];
  }
}

void Connections::begin() {
  for (Lane& lane : lanes_) {
    if (lane.board != 0) open(lane);
  }
  if (options_.boards.empty()) {
    hooks_.say(fmt::format("{} waits for boards on UDP port {}", daq::print_ip(options_.ip),
                           options_.cm_port));
  }
  talk();
}

void Connections::look_after(Instant at) {
  hear(at);
  while (const auto event = cm_.next_event()) on_event(*event, at);
  for (Lane& lane : lanes_) {
    if (lane.state == State::Waiting && lane.reopen_at <= at) open(lane);
    look_for_silence(lane, at);
    if (lane.state == State::Running && lane.board != 0 && lane.stream->has_all() &&
        is_quiet(lane)) {
      lane.state = State::Done;
    }
  }
  talk();
}

void Connections::hear(Instant at) {
  while (const auto datagram = socket_.receive()) {
    cm_.on_datagram(datagram->bytes, datagram->source_ip, at);
  }
  if (cm_.next_deadline() <= at) cm_.on_deadline(at);
}

void Connections::talk() {
  while (const auto out = cm_.next_outgoing())
    socket_.send(out->ip, out->port, out->message.store());
}

// --------------------------------------------------------------------------------------- streams

Stream* Connections::stream_of(const ibv_wc& completion) {
  const Lane& lane = lanes_[completion.wr_id >> 32];
  const bool current = completion.qp_num == lane.stream->summary().queue_pair;
  return current && lane.state == State::Running ? lane.stream.get() : nullptr;
}

void Connections::consume(Instant at) {
  for (Lane& lane : lanes_) {
    if (lane.state == State::Running && !lane.stream->consume(at)) on_failure(lane, at);
  }
}

void Connections::on_failure(const Stream& stream, Instant at) {
  on_failure(*std::ranges::find(lanes_, &stream, [](const Lane& l) { return l.stream.get(); }), at);
}

bool Connections::is_quiet(const Lane& lane) const {
  return lane.stream->next_consumption() == kNever;
}

bool Connections::all_done() const {
  return std::ranges::all_of(lanes_, [](const Lane& lane) { return lane.state == State::Done; });
}

Instant Connections::next_deadline() const {
  Instant next = cm_.next_deadline();
  for (const Lane& lane : lanes_) next = std::min(next, lane.stream->next_consumption());
  return next;
}

Instant Connections::last_heard() const {
  Instant last{0};
  for (const Lane& lane : lanes_) last = std::max(last, lane.stream->heard_at());
  return last;
}

// ----------------------------------------------------------------------------------- connections

void Connections::open(Lane& lane) {
  const daq::QpInfo local = lane.stream->prepare(cq_);
  lane.state = State::Opening;
  lane.id = cm_.open(lane.board, daq::kBoardPort, local, now());
  tell(lane, fmt::format("QP {} is INIT, asks {}", local.qpn, daq::print_ip(lane.board)));
}

Connections::Lane* Connections::lane_of(uint32_t id) {
  const auto found = std::ranges::find_if(lanes_, [&](const Lane& lane) {
    return id != 0 && lane.id == id && lane.state != State::Free && lane.state != State::Done;
  });
  return found == lanes_.end() ? nullptr : &*found;
}

void Connections::on_event(const daq::HostEvent& event, Instant at) {
  Lane* const lane = lane_of(event.id);
  const std::string what =
      fmt::format("{} {}", daq::print_ip(event.peer_ip), text_of(event.outcome));
  switch (event.outcome) {
    case daq::HostOutcome::Opened:
      if (lane != nullptr && !start(*lane, event.peer)) on_failure(*lane, at);
      return;
    case daq::HostOutcome::OpenRequested:
      return accept(event, at);
    case daq::HostOutcome::OpenRefused:
      if (lane != nullptr) {
        end_connection(*lane, fmt::format("{}: {}", what, daq::name_of(event.ack)), at);
      }
      return;
    case daq::HostOutcome::OpenTimedOut:
      if (lane != nullptr) end_connection(*lane, what, at);
      return;
    case daq::HostOutcome::PeerClosed:
    case daq::HostOutcome::PeerRestarted:
      if (lane != nullptr) on_leave(*lane, event, at);
      return;
    case daq::HostOutcome::Closed:
    case daq::HostOutcome::CloseTimedOut:
      if (lane != nullptr && lane->state == State::Closing) {
        lane->state = State::Waiting;
        lane->reopen_at = at + kReopenAfter;
      }
      return;
    default:
      hooks_.say(what);
  }
}

void Connections::on_leave(Lane& lane, const daq::HostEvent& event, Instant at) {
  hooks_.take_completions(at);  // what came before it left
  if (lane.state != State::Running) return;
  lane.stream->disconnect();
  tell(lane, fmt::format("{} {}; {} messages", daq::print_ip(event.peer_ip), text_of(event.outcome),
                         lane.stream->summary().messages));
  lane.state = event.outcome == daq::HostOutcome::PeerClosed ? State::Done : State::Free;
}

// False: what the peer says of itself leads nowhere. Other streams go on.
bool Connections::start(Lane& lane, const daq::QpInfo& peer) {
  lane.state = State::Running;
  try {
    lane.stream->connect(peer);
  } catch (const Trouble& trouble) {
    lane.stream->summary().trouble =
        fmt::format("{} QP {}: {}", daq::print_ip(peer.ip), peer.qpn, trouble.what());
    return false;
  }
  lane.stream->summary().trouble.clear();
  tell(lane, fmt::format("RTR, RTS: receives from {} QP {}", daq::print_ip(peer.ip), peer.qpn));
  if (lane.board == 0 || options_.messages == 0) return true;
  cm_.transmit(lane.id,
               {.valid = true,
                .start = true,
                .immediate = options_.op == daq::TransferKind::Write,
                .kind = options_.op,
                .length = options_.message_bytes,
                .count = static_cast<uint32_t>(std::min<uint64_t>(lane.stream->left(), UINT32_MAX)),
                .gap_cycles = options_.gap_cycles});
  return true;
}

void Connections::accept(const daq::HostEvent& event, Instant at) {
  const auto lane = std::ranges::find_if(
      lanes_, [](const Lane& l) { return l.board == 0 && l.state == State::Free; });
  if (lane == lanes_.end()) {
    hooks_.say(fmt::format("{} asks for one stream more than --streams {}: NO_QP",
                           daq::print_ip(event.peer_ip), options_.streams));
    return cm_.refuse(event.id, daq::Ack::NoQp);
  }
  const daq::QpInfo local = lane->stream->prepare(cq_);
  lane->id = event.id;
  if (start(*lane, event.peer)) return cm_.accept(event.id, local, at);
  hooks_.say(fmt::format("{} asks for a connection to {}: ERROR", daq::print_ip(event.peer_ip),
                         std::exchange(lane->stream->summary().trouble, {})));
  lane->stream->disconnect();
  lane->state = State::Free;
  cm_.refuse(event.id, daq::Ack::Error);
}

void Connections::on_failure(Lane& lane, Instant at) {
  cm_.close(lane.id, at);
  end_connection(lane, lane.stream->summary().trouble, at);
}

// It is over; asked for again where that is wanted.
void Connections::end_connection(Lane& lane, const std::string& why, Instant at) {
  tell(lane, fmt::format("{}; {} messages so far", why, lane.stream->summary().messages));
  lane.stream->summary().trouble = why;
  const bool closing = lane.state == State::Running;  // the answer to our CLOSE is waited for
  if (lane.board != 0 && options_.reconnect && !lane.stream->has_all()) {
    lane.state = closing ? State::Closing : State::Waiting;
    lane.reopen_at = at + kReopenAfter;
  } else {
    lane.state = lane.board == 0 ? State::Free : State::Done;
  }
  lane.stream->disconnect();
}

double Connections::patience_with(const Lane& lane) const {
  if (options_.silence_seconds) return *options_.silence_seconds;
  return lane.board != 0 && options_.messages != 0 ? kPatienceSeconds : kLongPatienceSeconds;
}

void Connections::look_for_silence(Lane& lane, Instant at) {
  const double patience = patience_with(lane);
  if (lane.state != State::Running || patience == 0 || lane.stream->has_all() || !is_quiet(lane) ||
      at < lane.stream->heard_at() + Duration{static_cast<int64_t>(patience * 1e9)}) {
    return;
  }
  const std::string board = daq::print_ip(lane.stream->summary().board);
  cm_.close(lane.id, at);
  end_connection(lane,
                 fmt::format("{} is silent for {:g} s: given up (--silence)", board, patience), at);
  // One that asked may ask again, but is not waited for unless that is wanted.
  if (lane.board == 0 && !options_.reconnect) lane.state = State::Done;
}

void Connections::end(Instant at) {
  for (const Lane& lane : lanes_) {
    if (lane.state != State::Free) cm_.close(lane.id, at);
  }
  talk();
  while (cm_.connections() > 0 && now() < at + kFarewell) {
    pollfd fd{socket_.fd(), POLLIN, 0};
    ::poll(&fd, 1, 20);
    hear(now());
    while (cm_.next_event()) {
    }
    talk();
  }
  for (Lane& lane : lanes_) {
    lane.stream->disconnect();
    StreamSummary& s = lane.stream->summary();
    if (lane.stream->has_all()) {
      s.trouble.clear();
    } else if (lane.board != 0 && options_.messages != 0) {
      s.missing = lane.stream->left();
    }
  }
}

// ------------------------------------------------------------------------------------ for people

const char* Connections::name_of(State state) {
  switch (state) {
    case State::Free:
      return "waiting";
    case State::Opening:
      return "asking";
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
  for (const Lane& lane : lanes_) {
    all.push_back({lane.stream->summary(), name_of(lane.state), lane.stream->posted()});
  }
  return all;
}

void Connections::tell(const Lane& lane, const std::string& text) {
  hooks_.say(fmt::format("stream {}: {}", &lane - lanes_.data(), text));
}

}  // namespace verbena::daqtool

// Asks a receiver for connections in a board's place and sends; or waits like a board for receivers
// that ask, and does what they say.
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

constexpr Duration kChoresEvery = milliseconds(1);
constexpr int kNapMs = 20;
constexpr Duration kFarewell = seconds(3);

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
        lanes_(options.streams) {
    summary_.device = device_.name;
  }

  SendSummary run() {
    begin();
    const Instant end = options_.seconds > 0
                            ? now() + Duration{static_cast<int64_t>(options_.seconds * 1e9)}
                            : kNever;
    for (Instant chores_at{0};;) {
      const Instant at = now();
      take_completions(at);
      if (at >= chores_at) {
        look_after_connections(at);
        if (interrupted() || at >= end || all_done()) break;
        chores_at = at + kChoresEvery;
      }
      bool busy = false;
      for (Lane& lane : lanes_) busy = push(lane, at) || busy;
      if (!busy) nap();
    }
    finish();
    return summary_;
  }

 private:
  enum class State : uint8_t { Free, Opening, Running, Done };
  struct Lane {
    std::unique_ptr<Source> source;
    State state = State::Free;
    uint32_t id = 0;  // of the connection
    std::string who;
  };
  bool asks() const { return options_.receiver != 0; }

  void begin() {
    if (!asks()) {
      say(fmt::format("{} waits for receivers on UDP port {}", daq::print_ip(options_.ip),
                      options_.cm_port));
      return;
    }
    for (Lane& lane : lanes_) {
      make_source(lane);
      lane.state = State::Opening;
      lane.id = cm_.open(options_.receiver, options_.receiver_port, lane.source->local(), now());
    }
  }

  void make_source(Lane& lane) {
    lane.source = std::make_unique<Source>(device_, options_, cq_.get(), index_of(lane));
  }

  // ---------------------------------------------------------------------------------------- data

  // Whether the stream has something under way.
  bool push(Lane& lane, Instant at) {
    if (lane.state != State::Running) return false;
    lane.source->post(at);
    if (lane.source->busy()) return true;
    if (asks()) lane.state = State::Done;
    return false;
  }

  void take_completions(Instant at) {
    ibv_wc done[64];
    const int n = ibv_poll_cq(cq_.get(), std::size(done), done);
    for (int i = 0; i < n; ++i) {
      Lane& lane = lanes_[done[i].wr_id];
      if (lane.state != State::Running || done[i].qp_num != lane.source->number()) continue;
      if (done[i].status != IBV_WC_SUCCESS) {
        fail(lane,
             fmt::format("{} does not take a message: {}", lane.who,
                         ibv_wc_status_str(done[i].status)),
             at);
        continue;
      }
      lane.source->on_completion();
      first_ = std::min(first_, at);
      last_ = at;
    }
  }

  // --------------------------------------------------------------------------------- connections

  void look_after_connections(Instant at) {
    while (const auto datagram = socket_.receive())
      cm_.on_datagram(datagram->bytes, datagram->source_ip, at);
    cm_.on_deadline(at);
    while (const auto event = cm_.next_event()) on_event(*event, at);
    talk();
  }

  void talk() {
    while (const auto out = cm_.next_outgoing())
      socket_.send(out->ip, out->port, out->message.store());
  }

  void on_event(const daq::HostEvent& event, Instant at) {
    const std::string what =
        fmt::format("{} {}", daq::print_ip(event.peer_ip), text_of(event.outcome));
    if (event.outcome == daq::HostOutcome::OpenRequested) return accept(event, at);
    const auto lane = std::ranges::find_if(lanes_, [&](const Lane& l) {
      return event.id != 0 && l.id == event.id && l.state != State::Free;
    });
    if (lane == lanes_.end()) return say(what);
    switch (event.outcome) {
      case daq::HostOutcome::OpenRefused:
        throw Trouble(fmt::format("{}: {}", what, daq::name_of(event.ack)));
      case daq::HostOutcome::OpenTimedOut:
        throw Trouble(what);
      case daq::HostOutcome::Opened:
        start(*lane, event.peer);
        give_orders(*lane,
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
        return give_orders(*lane, event.transmit, at);
      case daq::HostOutcome::PeerClosed:
      case daq::HostOutcome::PeerRestarted:
        tell(*lane, what);
        take_completions(at);
        return leave(*lane,
                     event.outcome == daq::HostOutcome::PeerClosed ? State::Done : State::Free);
      default:
        say(what);
    }
  }

  void start(Lane& lane, const daq::QpInfo& peer) {
    lane.who = daq::print_ip(peer.ip);
    lane.source->connect(peer, mtu_);
    lane.state = State::Running;
    tell(lane, fmt::format("INIT, RTR, RTS: sends to {} QP {}", lane.who, peer.qpn));
  }

  void accept(const daq::HostEvent& event, Instant at) {
    const std::string who = daq::print_ip(event.peer_ip);
    const auto lane = std::ranges::find(lanes_, State::Free, &Lane::state);
    if (asks() || lane == lanes_.end()) {
      say(fmt::format("{} asks for one stream more than --streams {}: NO_QP", who,
                      options_.streams));
      return cm_.refuse(event.id, daq::Ack::NoQp);
    }
    try {
      make_source(*lane);
      start(*lane, event.peer);
    } catch (const Trouble& trouble) {
      say(fmt::format("{} asks for a connection: ERROR: {}", who, trouble.what()));
      lane->source.reset();
      return cm_.refuse(event.id, daq::Ack::Error);
    }
    lane->id = event.id;
    cm_.accept(event.id, lane->source->local(), at);
  }

  void give_orders(Lane& lane, const daq::Transmit& orders, Instant at) {
    try {
      const bool taken = lane.source->begin(orders, at);
      tell(lane, fmt::format("{}{} messages of {} bytes",
                             taken ? "" : "busy, ignored: ", orders.count, orders.length & ~3u));
      if (taken) summary_.wanted += orders.count;
    } catch (const Trouble& trouble) {
      fail(lane, trouble.what(), at);
    }
  }

  // Who was asked is all there is to serve; of those who ask, others go on.
  void fail(Lane& lane, const std::string& why, Instant at) {
    if (asks()) throw Trouble(why);
    tell(lane, why);
    cm_.close(lane.id, at);
    leave(lane, State::Free);
  }

  void leave(Lane& lane, State state) {
    count(lane);
    lane.source.reset();
    lane.state = state;
  }

  void count(const Lane& lane) {
    if (!lane.source) return;
    summary_.messages += lane.source->messages();
    summary_.bytes += lane.source->bytes();
  }

  bool all_done() const {
    return std::ranges::all_of(lanes_, [](const Lane& l) { return l.state == State::Done; });
  }

  void finish() {
    const Instant ended = now();
    summary_.seconds = first_ < last_ ? static_cast<double>((last_ - first_).ns) / 1e9 : 0;
    for (const Lane& lane : lanes_) {
      if (lane.source) cm_.close(lane.id, ended);
    }
    while (cm_.connections() > 0 && now() < ended + kFarewell) {
      look_after_connections(now());
      nap();
    }
    for (const Lane& lane : lanes_) count(lane);
  }

  void nap() {
    pollfd fd{socket_.fd(), POLLIN, 0};
    ::poll(&fd, 1, kNapMs);
  }

  uint32_t index_of(const Lane& lane) const { return static_cast<uint32_t>(&lane - lanes_.data()); }
  void say(const std::string& text) { line_(text); }
  void tell(const Lane& lane, const std::string& text) {
    say(fmt::format("stream {}: {}", index_of(lane), text));
  }

  SendOptions options_;
  const Line& line_;
  VerbsDevice device_;
  ibv_mtu mtu_;
  Owned<ibv_cq, ibv_destroy_cq> cq_;
  daq::HostManager cm_;
  UdpSocket socket_;
  std::vector<Lane> lanes_;  // go before what they are made from
  Instant first_ = kNever;
  Instant last_{0};
  SendSummary summary_;
};

}  // namespace

SendSummary send(const SendOptions& options, const std::function<void(const std::string&)>& line) {
  SendOptions settled = options;
  if (settled.ip == 0) settled.ip = source_address_to(settled.receiver);
  return Sender(settled, line).run();
}

}  // namespace verbena::daqtool

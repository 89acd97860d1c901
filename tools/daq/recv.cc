// The receiver: one thread that polls one completion queue for all streams, and looks after the
// connections in between.
#include "tools/daq/recv.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <utility>

#include "daq/board.h"
#include "daq/host_manager.h"
#include "tools/daq/screen.h"
#include "tools/daq/stream.h"
#include "tools/daq/udp.h"
#include "tools/daq/verbs_device.h"

namespace verbena::daqtool {
namespace {

constexpr int kPolledAtOnce = 64;
constexpr Duration kChoresEvery = milliseconds(1);
constexpr Duration kLongestSleep = milliseconds(50);
constexpr Duration kReopenAfter = milliseconds(200);
constexpr Duration kLastAnswers = milliseconds(2);
constexpr Duration kScreenEvery = milliseconds(500);

double cpu_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

// Memory follows: pages are where they are touched first.
void run_on_node(int node) {
  std::ifstream file(fmt::format("/sys/devices/system/node/node{}/cpulist", node));
  cpu_set_t set;
  CPU_ZERO(&set);
  for (std::string range; std::getline(file, range, ',');) {
    unsigned first = 0, last = 0;
    const int n = std::sscanf(range.c_str(), "%u-%u", &first, &last);
    if (n < 1) continue;
    for (unsigned cpu = first; cpu <= (n == 2 ? last : first); ++cpu) CPU_SET(cpu, &set);
  }
  if (CPU_COUNT(&set) == 0 || ::sched_setaffinity(0, sizeof set, &set) != 0) {
    throw Trouble(fmt::format("there is no NUMA node {} to run on", node));
  }
}

class Receiver {
 public:
  Receiver(const ReceiveOptions& options, const std::function<void(const std::string&)>& line)
      : options_(options),
        line_(line),
        device_(options.ip),
        cm_({.ip = options.ip, .port = options.cm_port}),
        socket_(options.ip, options.cm_port) {
    const uint32_t total =
        static_cast<uint32_t>(std::max<size_t>(1, options.boards.size())) * options.streams;
    mtu_ = options.mtu == 0 ? device_.mtu : std::min(mtu_of(options.mtu), device_.mtu);
    options_.mtu = bytes_of(mtu_);
    const uint32_t receives = receives_for(options_, device_);
    if (receives != options.receives) {
      say(fmt::format("{} receives for each stream instead of {}: {}", receives, options.receives,
                      receives == static_cast<uint32_t>(device_.limits.max_qp_wr)
                          ? "the device takes no more"
                          : "more would let WRITEs overtake the check (--wrap, --no-check)"));
    }
    if (options.check && !can_check(options_)) {
      say("data are not checked: messages overwrite each other before they can be looked at "
          "(--wrap)");
    }
    cq_ = device_.make_cq(
        std::min(total * (receives + 1), static_cast<uint32_t>(device_.limits.max_cqe)));
    const int flags = ::fcntl(device_.channel->fd, F_GETFL);
    ::fcntl(device_.channel->fd, F_SETFL, flags | O_NONBLOCK);
    for (uint32_t i = 0; i < total; ++i) {
      lanes_.push_back({std::make_unique<Stream>(device_, options_, i)});
      if (!options.boards.empty()) lanes_.back().board = options.boards[i / options.streams];
    }
    summary_.receives = receives;
    summary_.device = device_.name;
  }

  ReceiveSummary run() {
    const Instant start = now();
    end_ = options_.seconds > 0 ? start + Duration{static_cast<int64_t>(options_.seconds * 1e9)}
                                : kNever;
    for (Lane& lane : lanes_) {
      if (lane.board != 0) open(lane);
    }
    if (options_.boards.empty()) {
      say(fmt::format("{} waits for boards on UDP port {}", daq::print_ip(device_.ip),
                      options_.cm_port));
    }
    talk();
    Instant chores_at = start;
    last_message_ = start;
    bool ending = false;
    while (!ending) {
      const Instant at = now();
      const int n = poll_once(at);
      if (options_.consumer_us != 0) consume_all(at);
      if (n > 0) last_message_ = at;
      if (n == 0 || at >= chores_at) {
        do_chores(at);
        chores_at = at + kChoresEvery;
        ending = interrupted() || at >= end_ || all_done();
      }
      if (n == 0 && !ending) wait(at);
    }
    finish();
    return summary_;
  }

 private:
  enum class State : uint8_t { Free, Opening, Running, Closing, Waiting, Done };
  struct Lane {  // a stream and where its connection stands
    std::unique_ptr<Stream> stream;
    uint32_t board = 0;  // to be asked; 0: it asked
    State state = State::Free;
    uint32_t id = 0;  // of the connection
    Instant reopen_at = kNever;
  };

  // --------------------------------------------------------------------------------- completions

  int poll_once(Instant at) {
    ibv_wc done[kPolledAtOnce];
    const int n = ibv_poll_cq(cq_.get(), kPolledAtOnce, done);
    if (n < 0) throw Trouble("ibv_poll_cq failed");
    deepest_ = std::max(deepest_, n);
    for (int i = 0; i < n; ++i) {
      Lane& lane = lanes_[done[i].wr_id >> 32];
      // What an ended connection's queue held says nothing any more.
      if (done[i].qp_num != lane.stream->summary().queue_pair || lane.state != State::Running)
        continue;
      if (!lane.stream->on_completion(done[i], at)) {
        on_failure(lane, at);
      } else if (first_message_ == kNever) {
        first_message_ = at;
        first_cpu_ = cpu_seconds();
      }
    }
    if (n > 0 && options_.consumer_us == 0) consume_all(at);
    return n;
  }

  // All that the queue holds now; other boards may fill it for ever.
  void poll_all(Instant at) {
    for (int looked = 0, n = 1; n > 0 && looked < cq_->cqe; looked += n) n = poll_once(at);
  }

  void consume_all(Instant at) {
    for (Lane& lane : lanes_) {
      if (lane.state == State::Running) lane.stream->consume(at);
    }
  }

  void wait(Instant at) {
    if (options_.poll == Poll::Busy) return;
    if (options_.poll == Poll::Hybrid && at < last_message_ + microseconds(options_.spin_us))
      return;
    if (ibv_req_notify_cq(cq_.get(), 0) != 0) throw Trouble("ibv_req_notify_cq failed");
    if (poll_once(at) > 0) {
      last_message_ = at;
      return;
    }
    Instant until = std::min({at + kLongestSleep, cm_.next_deadline(), end_});
    for (const Lane& lane : lanes_) until = std::min(until, lane.stream->next_consumption());
    const int64_t left = (until - now()).ns;
    if (left <= 0) return;
    ++summary_.sleeps;
    pollfd fds[] = {{device_.channel->fd, POLLIN, 0}, {socket_.fd(), POLLIN, 0}};
    const timespec limit{left / 1'000'000'000, left % 1'000'000'000};
    if (::ppoll(fds, std::size(fds), &limit, nullptr) <= 0 || (fds[0].revents & POLLIN) == 0)
      return;
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    if (ibv_get_cq_event(device_.channel.get(), &cq, &context) == 0) ibv_ack_cq_events(cq, 1);
    last_message_ = now();
  }

  // --------------------------------------------------------------------------------- connections

  void open(Lane& lane) {
    const daq::QpInfo local = lane.stream->prepare(cq_.get());
    lane.state = State::Opening;
    lane.id = cm_.open(lane.board, daq::kBoardPort, local, now());
    tell(lane, fmt::format("QP {} is INIT, asks {}", local.qpn, daq::print_ip(lane.board)));
  }

  void do_chores(Instant at) {
    while (const auto datagram = socket_.receive()) {
      cm_.on_datagram(datagram->bytes, datagram->source_ip, at);
    }
    if (cm_.next_deadline() <= at) cm_.on_deadline(at);
    while (const auto event = cm_.next_event()) on_event(*event, at);
    for (Lane& lane : lanes_) {
      if (lane.state == State::Waiting && lane.reopen_at <= at) open(lane);
      look_for_silence(lane, at);
      if (lane.state == State::Running && lane.board != 0 && lane.stream->has_all() &&
          lane.stream->next_consumption() == kNever) {
        lane.state = State::Done;
      }
    }
    talk();
    if (options_.screen && at >= screen_at_) {
      draw_screen(at);
      screen_at_ = at + kScreenEvery;
    }
  }

  void talk() {
    while (const auto out = cm_.next_outgoing())
      socket_.send(out->ip, out->port, out->message.store());
  }

  Lane* lane_of(uint32_t id) {
    const auto found = std::ranges::find_if(lanes_, [&](const Lane& lane) {
      return id != 0 && lane.id == id && lane.state != State::Free && lane.state != State::Done;
    });
    return found == lanes_.end() ? nullptr : &*found;
  }

  void on_event(const daq::HostEvent& event, Instant at) {
    Lane* const lane = lane_of(event.id);
    const std::string who = daq::print_ip(event.peer_ip);
    switch (event.outcome) {
      case daq::HostOutcome::Opened:
        if (lane != nullptr && !start(*lane, event.peer)) on_failure(*lane, at);
        return;
      case daq::HostOutcome::Asked:
        return accept(event, at);
      case daq::HostOutcome::OpenRefused:
      case daq::HostOutcome::OpenUnanswered:
        if (lane != nullptr) {
          end_connection(
              *lane,
              fmt::format(
                  "{} {}{}", who, text_of(event.outcome),
                  event.ack == daq::Ack::Null ? "" : fmt::format(": {}", name_of(event.ack))),
              at);
        }
        return;
      case daq::HostOutcome::PeerClosed:
      case daq::HostOutcome::PeerRestarted:
        if (lane == nullptr) return;
        poll_all(at);  // what came before it left
        lane->stream->disconnect();
        tell(*lane, fmt::format("{} {}; {} messages", who, text_of(event.outcome),
                                lane->stream->summary().messages));
        lane->state = event.outcome == daq::HostOutcome::PeerClosed ? State::Done : State::Free;
        return;
      case daq::HostOutcome::Closed:
      case daq::HostOutcome::CloseUnanswered:
        if (lane != nullptr && lane->state == State::Closing) {
          lane->state = State::Waiting;
          lane->reopen_at = at + kReopenAfter;
        }
        return;
      default:
        say(fmt::format("{} {}", who, text_of(event.outcome)));
    }
  }

  // False: what the peer says of itself leads nowhere. Other streams go on.
  bool start(Lane& lane, const daq::QpInfo& peer) {
    lane.state = State::Running;
    try {
      lane.stream->connect(peer, mtu_);
    } catch (const Trouble& trouble) {
      lane.stream->summary().trouble =
          fmt::format("{} QP {}: {}", daq::print_ip(peer.ip), peer.qpn, trouble.what());
      return false;
    }
    lane.stream->summary().trouble.clear();
    tell(lane, fmt::format("RTR, RTS: receives from {} QP {}", daq::print_ip(peer.ip), peer.qpn));
    if (lane.board == 0 || options_.messages == 0) return true;
    cm_.transmit(
        lane.id,
        {.valid = true,
         .start = true,
         .immediate = options_.op == daq::TransferKind::Write,
         .kind = options_.op,
         .length = options_.message_bytes,
         .count = static_cast<uint32_t>(std::min<uint64_t>(lane.stream->left(), UINT32_MAX)),
         .gap_cycles = options_.gap_cycles});
    return true;
  }

  void accept(const daq::HostEvent& event, Instant at) {
    const auto lane = std::ranges::find_if(
        lanes_, [](const Lane& l) { return l.board == 0 && l.state == State::Free; });
    if (lane == lanes_.end()) {
      say(fmt::format("{} asks for one stream more than --streams {}: NO_QP",
                      daq::print_ip(event.peer_ip), options_.streams));
      return cm_.refuse(event.id, daq::Ack::NoQp);
    }
    const daq::QpInfo local = lane->stream->prepare(cq_.get());
    lane->id = event.id;
    if (start(*lane, event.peer)) return cm_.accept(event.id, local, at);
    say(fmt::format("{} asks for a connection to {}: ERROR", daq::print_ip(event.peer_ip),
                    std::exchange(lane->stream->summary().trouble, {})));
    lane->stream->disconnect();
    lane->state = State::Free;
    cm_.refuse(event.id, daq::Ack::Error);
  }

  void on_failure(Lane& lane, Instant at) {
    cm_.close(lane.id, at);
    end_connection(lane, lane.stream->summary().trouble, at);
  }

  // It is over; asked for again where that is wanted.
  void end_connection(Lane& lane, const std::string& why, Instant at) {
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

  // A board that was told to send and does not is gone. One that sends by itself may be quiet.
  void look_for_silence(Lane& lane, Instant at) {
    const Duration patience{static_cast<int64_t>(options_.silence_seconds * 1e9)};
    if (lane.state != State::Running || lane.board == 0 || options_.messages == 0 ||
        lane.stream->has_all() || lane.stream->next_consumption() != kNever ||
        at < lane.stream->heard_at() + patience) {
      return;
    }
    cm_.close(lane.id, at);
    end_connection(lane, fmt::format("{} is silent", daq::print_ip(lane.board)), at);
  }

  bool all_done() const {
    return std::ranges::all_of(lanes_, [](const Lane& lane) { return lane.state == State::Done; });
  }

  // Takes leave of the boards, and closes the books.
  void finish() {
    const Instant ended = now();
    const Instant first = first_message_ == kNever ? ended : first_message_;
    Instant last = first;
    for (const Lane& lane : lanes_) last = std::max(last, lane.stream->heard_at());
    summary_.seconds = static_cast<double>((last - first).ns) / 1e9;
    summary_.cpu_seconds = first_message_ == kNever ? 0 : cpu_seconds() - first_cpu_;
    // The last acknowledgements leave before the queue pairs do.
    while (now() < ended + kLastAnswers) poll_once(now());
    for (const Lane& lane : lanes_) {
      if (lane.state != State::Free) cm_.close(lane.id, ended);
    }
    talk();
    const Instant patience = ended + seconds(3);
    while (cm_.connections() > 0 && now() < patience) {
      pollfd fd{socket_.fd(), POLLIN, 0};
      ::poll(&fd, 1, 20);
      const Instant at = now();
      while (const auto datagram = socket_.receive())
        cm_.on_datagram(datagram->bytes, datagram->source_ip, at);
      cm_.on_deadline(at);
      while (cm_.next_event()) {
      }
      talk();
    }
    for (Lane& lane : lanes_) {
      lane.stream->disconnect();
      StreamSummary& s = lane.stream->summary();
      if (lane.board != 0 && options_.messages != 0 && !lane.stream->has_all())
        s.missing = lane.stream->left();
      if (lane.stream->has_all()) s.trouble.clear();
      summary_.streams.push_back(s);
    }
  }

  // ------------------------------------------------------------------------------------- for
  // people

  void draw_screen(Instant at) {
    std::vector<ScreenRow> rows;
    for (const Lane& lane : lanes_) rows.push_back({lane.stream->summary(), lane.stream->posted()});
    screen_.draw(rows, at, first_message_ == kNever ? at : first_message_, cpu_seconds(), deepest_);
    deepest_ = 0;
  }
  void say(const std::string& text) {
    if (options_.quiet) return;
    screen_.leave_room();
    line_(text);
  }
  void tell(const Lane& lane, const std::string& text) {
    say(fmt::format("stream {}: {}", &lane - lanes_.data(), text));
  }

  ReceiveOptions options_;
  const std::function<void(const std::string&)>& line_;
  VerbsDevice device_;
  ibv_mtu mtu_;
  Owned<ibv_cq, ibv_destroy_cq> cq_;
  daq::HostManager cm_;
  UdpSocket socket_;
  std::vector<Lane> lanes_;  // streams go before what they are made from
  ReceiveSummary summary_;
  Instant end_ = kNever;
  Instant first_message_ = kNever;
  Instant last_message_{0};
  double first_cpu_ = 0;
  int deepest_ = 0;
  Screen screen_;
  Instant screen_at_{0};
};

}  // namespace

uint64_t ReceiveSummary::messages() const {
  uint64_t sum = 0;
  for (const StreamSummary& s : streams) sum += s.messages;
  return sum;
}
uint64_t ReceiveSummary::bytes() const {
  uint64_t sum = 0;
  for (const StreamSummary& s : streams) sum += s.bytes;
  return sum;
}
double ReceiveSummary::gbps() const {
  return seconds > 0 ? static_cast<double>(bytes()) * 8 / seconds / 1e9 : 0;
}
bool ReceiveSummary::good() const {
  return std::ranges::all_of(streams, [](const StreamSummary& s) {
    return s.wrong_messages == 0 && s.missing == 0 && s.trouble.empty();
  });
}

ReceiveSummary receive(const ReceiveOptions& options,
                       const std::function<void(const std::string&)>& line) {
  ReceiveOptions settled = options;
  if (settled.ip == 0 && !settled.boards.empty())
    settled.ip = source_address_to(settled.boards.front());
  if (settled.ip == 0) settled.ip = 0x7F000001;
  if (settled.numa_node >= 0) run_on_node(settled.numa_node);
  return Receiver(settled, line).run();
}

std::string to_json(const ReceiveSummary& summary) {
  std::string text = fmt::format(
      "{{\"device\": \"{}\", \"seconds\": {:.6f}, \"cpu_seconds\": {:.6f}, \"messages\": {}, "
      "\"bytes\": {}, "
      "\"gbps\": {:.4f}, \"receives\": {}, \"sleeps\": {}, \"good\": {}, \"streams\": [",
      summary.device, summary.seconds, summary.cpu_seconds, summary.messages(), summary.bytes(),
      summary.gbps(), summary.receives, summary.sleeps, summary.good());
  const char* separator = "\n";
  for (const StreamSummary& s : summary.streams) {
    text += fmt::format(
        "{} {{\"board\": \"{}\", \"qp\": {}, \"board_qp\": {}, \"messages\": {}, \"bytes\": {}, "
        "\"packets\": {}, "
        "\"wrong\": {}, \"lost\": {}, \"missing\": {}, \"starved\": {}, \"connections\": {}, "
        "\"trouble\": \"{}\", "
        "\"gaps\": [",
        separator, daq::print_ip(s.board), s.queue_pair, s.board_queue_pair, s.messages, s.bytes,
        s.packets, s.wrong_messages, s.lost, s.missing, s.starved, s.connections, s.trouble);
    const char* comma = "";
    for (const Gap& gap : s.gaps) {
      text += fmt::format("{}[{}, {}]", comma, gap.at_message, gap.lost);
      comma = ", ";
    }
    text += "]}";
    separator = ",\n";
  }
  return text + "\n]}\n";
}

}  // namespace verbena::daqtool

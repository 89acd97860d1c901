// Who sends when, and what is said about it.
#include "daq/board.h"

#include <algorithm>

namespace verbena::daq {
namespace {

// A sleeper wakes late: so much of the link's time may be made up for at once.
constexpr Duration kLinkBurst = milliseconds(1);
constexpr size_t kMostLines = 1000;  // kept for an owner who does not take them

std::string name(uint32_t qpn) { return "QP " + std::to_string(qpn); }

void add(BoardQpCounters& to, const BoardQpCounters& more) {
  to.messages_made += more.messages_made;
  to.messages_acked += more.messages_acked;
  to.bytes_acked += more.bytes_acked;
  to.packets_sent += more.packets_sent;
  to.packets_repeated += more.packets_repeated;
  to.overruns += more.overruns;
  to.timeouts += more.timeouts;
  to.sequence_naks += more.sequence_naks;
  to.rnr_naks += more.rnr_naks;
  to.strange_answers += more.strange_answers;
}

const char* text_of(BoardQpFailure failure) {
  switch (failure) {
    case BoardQpFailure::None:
      return "";
    case BoardQpFailure::RetriesExceeded:
      return "the host does not acknowledge, all retries are spent";
    case BoardQpFailure::RnrRetriesExceeded:
      return "the host is not ready to receive, all retries are spent";
    case BoardQpFailure::Refused:
      return "the host refused a request";
  }
  return "";
}

}  // namespace

std::string print_ip(uint32_t ip) {
  return std::to_string(ip >> 24) + '.' + std::to_string(ip >> 16 & 255) + '.' +
         std::to_string(ip >> 8 & 255) + '.' + std::to_string(ip & 255);
}

Board::Board(const Config& config)
    : config_(config),
      manager_(config.manager),
      queue_pairs_(config.manager.queue_pairs),
      peers_(config.manager.queue_pairs) {}

void Board::on_message(std::span<const std::byte> bytes, Instant now) {
  ++counters_.cm_messages;
  manager_.on_datagram(bytes, now);
  take_events(now);
}

void Board::take_events(Instant now) {
  while (const auto event = manager_.next_event()) {
    const uint32_t qpn = event->qpn;
    if (lines_.size() < kMostLines) {
      lines_.push_back((event->peer_ip != 0 ? print_ip(event->peer_ip) + ": " : std::string()) +
                       (qpn != 0 ? name(qpn) + ": " : std::string()) + text_of(event->outcome));
    }
    switch (event->outcome) {
      case BoardOutcome::Opened:
        open(qpn, now);
        break;
      case BoardOutcome::PeerAccepted:
        open(qpn, now);
        on_mission_.push_back(qpn);
        if (mission_) start(qpn, mission_->transmit, now);
        break;
      case BoardOutcome::PeerRefused:
      case BoardOutcome::PeerSilent:
        std::erase(on_mission_, qpn);  // where it was to be closed: that is all that can be done
        break;
      case BoardOutcome::Closed:
      case BoardOutcome::PeerClosed:
        std::erase(on_mission_, qpn);
        retire(qpn);
        break;
      case BoardOutcome::TransmitStart:
        start(qpn, event->message.transmit, now);
        break;
      default:
        break;
    }
  }
  pursue_mission(now);
}

void Board::open(uint32_t qpn, Instant /*now*/) {
  const QpInfo& peer = manager_.peer_of(qpn);
  peers_[qpn - kFirstQpn] = peer.ip;
  at(qpn) = BoardQueuePair(config_.queue_pair, peer, wire::PathId{qpn - kFirstQpn});
}

void Board::start(uint32_t qpn, const Transmit& command, Instant now) {
  const bool started = at(qpn).start(command, now);
  lines_.push_back(name(qpn) + (started ? ": " : ": busy, ignored: ") +
                   std::to_string(command.count) + " messages of " +
                   std::to_string(command.length & ~3u) + " bytes");
}

void Board::retire(uint32_t qpn) {
  add(past_, at(qpn).counters());
  at(qpn) = {};
}

void Board::on_packet(std::span<const std::byte> bytes, uint32_t source_ip, Instant now) {
  wire::ParseError why{};
  const auto packet = wire::Packet::parse(bytes, &why);
  const uint32_t qpn = packet ? packet->bth.destination.value() : 0;
  if (!packet || packet->bth.opcode != static_cast<uint8_t>(wire::Opcode::RcAck) ||
      !is_ready(qpn) || manager_.peer_of(qpn).ip != source_ip) {
    ++counters_.foreign_packets;
    return;
  }
  at(qpn).on_answer(*packet, now);
  note_failure(qpn, now);
  pursue_mission(now);
}

void Board::note_failure(uint32_t qpn, Instant now) {
  const BoardQueuePair& qp = at(qpn);
  if (qp.failure() == BoardQpFailure::None || !is_ready(qpn)) return;
  manager_.fail(qpn, now);
  std::string line = name(qpn) + ": failed: " + text_of(qp.failure());
  if (qp.failure() == BoardQpFailure::Refused) {
    line += " (NAK code " + std::to_string(qp.syndrome() & 31) + ")";
  }
  lines_.push_back(std::move(line));
}

void Board::transmit(wire::PacketSink& sink, Instant now) {
  const double ns_per_byte = config_.link_gbps > 0 ? 8 / config_.link_gbps : 0;
  link_waits_ = false;
  link_free_at_ = std::max(link_free_at_, now - kLinkBurst);
  // One packet of each in turn, until a whole round has none.
  for (uint32_t idle = 0; idle < manager_.queue_pairs() && sink.room() > 0;) {
    if (ns_per_byte > 0 && link_free_at_ > now) {
      link_waits_ = true;
      return;
    }
    const uint32_t qpn = kFirstQpn + turn_;
    turn_ = (turn_ + 1) % manager_.queue_pairs();
    const size_t bytes = is_ready(qpn) ? at(qpn).send_one(sink, now) : 0;
    idle = bytes == 0 ? idle + 1 : 0;
    link_free_at_ =
        link_free_at_ + Duration{static_cast<int64_t>(static_cast<double>(bytes) * ns_per_byte)};
  }
}

Instant Board::next_deadline(Instant now) const {
  Instant next = manager_.next_deadline();
  for (uint32_t qpn = kFirstQpn; qpn < end_qpn(); ++qpn) {
    if (is_ready(qpn)) next = std::min(next, queue_pairs_[qpn - kFirstQpn].next_deadline());
  }
  if (link_waits_) next = std::min(next, std::max(link_free_at_, now));
  return next;
}

void Board::on_deadline(Instant now) {
  manager_.on_deadline(now);
  for (uint32_t qpn = kFirstQpn; qpn < end_qpn(); ++qpn) {
    if (!is_ready(qpn)) continue;
    at(qpn).on_deadline(now);
    note_failure(qpn, now);
  }
  take_events(now);
}

// ------------------------------------------------------------------------------------ as a master

void Board::begin(const Mission& mission, Instant now) {
  mission_ = mission;
  to_open_ = mission.streams;
  pursue_mission(now);
}

bool Board::mission_done() const {
  return mission_ && to_open_ == 0 && on_mission_.empty() && !manager_.asking();
}

// One exchange at a time: opens what is to be opened, then closes what has sent all it had.
void Board::pursue_mission(Instant now) {
  if (!mission_ || manager_.asking()) return;
  if (to_open_ > 0) {
    if (manager_.ask_open(mission_->host_ip, mission_->host_port, now)) {
      --to_open_;
      return;
    }
    lines_.push_back("no queue pair is free for " + std::to_string(to_open_) + " more streams");
    to_open_ = 0;
  }
  for (const uint32_t qpn : on_mission_) {
    if (is_ready(qpn) && at(qpn).transferring()) continue;
    if (manager_.ask_close(qpn, now)) return;
  }
}

// ------------------------------------------------------------------------------------------------

bool Board::transferring() const {
  for (uint32_t qpn = kFirstQpn; qpn < end_qpn(); ++qpn) {
    if (is_ready(qpn) && queue_pair(qpn).transferring()) return true;
  }
  return false;
}

BoardQpCounters Board::totals() const {
  BoardQpCounters sum = past_;
  for (const BoardQueuePair& qp : queue_pairs_) add(sum, qp.counters());
  return sum;
}

std::optional<std::string> Board::next_line() {
  if (lines_.empty()) return std::nullopt;
  std::string line = std::move(lines_.front());
  lines_.pop_front();
  return line;
}

}  // namespace verbena::daq

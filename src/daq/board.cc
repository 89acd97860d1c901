// Board: schedules the queue pairs on the link, runs the master task and writes the log lines.
#include "daq/board.h"

#include <algorithm>

namespace verbena::daq {
namespace {

// A sleeping thread wakes late. The board may send this much link time in one burst to catch up.
constexpr Duration kLinkBurst = milliseconds(1);
constexpr size_t kMaxLines = 1000;  // bounds the memory if the owner does not read the lines

std::string name_of_qp(uint32_t qpn) { return "QP " + std::to_string(qpn); }

void add(BoardQpCounters& to, const BoardQpCounters& more) {
  to.messages_made += more.messages_made;
  to.messages_acked += more.messages_acked;
  to.bytes_acked += more.bytes_acked;
  to.packets_sent += more.packets_sent;
  to.packets_retransmitted += more.packets_retransmitted;
  to.overruns += more.overruns;
  to.timeouts += more.timeouts;
  to.sequence_naks += more.sequence_naks;
  to.rnr_naks += more.rnr_naks;
  to.unexpected_responses += more.unexpected_responses;
}

const char* text_of(BoardQpFailure failure) {
  switch (failure) {
    case BoardQpFailure::None:
      return "";
    case BoardQpFailure::RetriesExceeded:
      return "the host sends no ACK, all retries are used up";
    case BoardQpFailure::RnrRetriesExceeded:
      return "the host is not ready to receive, all retries are used up";
    case BoardQpFailure::Refused:
      return "the host rejected a request";
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
  process_events(now);
}

void Board::process_events(Instant now) {
  while (const auto event = manager_.next_event()) {
    const uint32_t qpn = event->qpn;
    if (lines_.size() < kMaxLines) {
      lines_.push_back((event->peer_ip != 0 ? print_ip(event->peer_ip) + ": " : std::string()) +
                       (qpn != 0 ? name_of_qp(qpn) + ": " : std::string()) +
                       text_of(event->outcome));
    }
    switch (event->outcome) {
      case BoardOutcome::Opened:
        open(qpn, now);
        break;
      case BoardOutcome::PeerAccepted:
        open(qpn, now);
        master_task_qps_.push_back(qpn);
        if (master_task_) start(qpn, master_task_->transmit, now);
        break;
      case BoardOutcome::PeerRefused:
      case BoardOutcome::PeerSilent:
        std::erase(master_task_qps_, qpn);  // also after a failed close: no retry is left
        break;
      case BoardOutcome::Closed:
      case BoardOutcome::PeerClosed:
        std::erase(master_task_qps_, qpn);
        retire(qpn);
        break;
      case BoardOutcome::TransmitStart:
        start(qpn, event->message.transmit, now);
        break;
      default:
        break;
    }
  }
  advance_master_task(now);
}

void Board::open(uint32_t qpn, Instant /*now*/) {
  const QpInfo& peer = manager_.peer_of(qpn);
  peers_[qpn - kFirstQpn] = peer.ip;
  at(qpn) = BoardQueuePair(config_.queue_pair, peer, wire::PathId{qpn - kFirstQpn});
}

void Board::start(uint32_t qpn, const Transmit& command, Instant now) {
  const bool started = at(qpn).start(command, now);
  lines_.push_back(name_of_qp(qpn) + (started ? ": " : ": busy, ignored: ") +
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
  at(qpn).on_response(*packet, now);
  report_failure(qpn, now);
  advance_master_task(now);
}

void Board::report_failure(uint32_t qpn, Instant now) {
  const BoardQueuePair& qp = at(qpn);
  if (qp.failure() == BoardQpFailure::None || !is_ready(qpn)) return;
  manager_.fail(qpn, now);
  std::string line = name_of_qp(qpn) + ": failed: " + text_of(qp.failure());
  if (qp.failure() == BoardQpFailure::Refused) {
    line += " (NAK code " + std::to_string(qp.syndrome() & 31) + ")";
  }
  lines_.push_back(std::move(line));
}

void Board::transmit(wire::PacketSink& sink, Instant now) {
  const double ns_per_byte = config_.link_gbps > 0 ? 8 / config_.link_gbps : 0;
  waits_for_link_ = false;
  link_free_at_ = std::max(link_free_at_, now - kLinkBurst);
  // Round robin, one packet per queue pair, until no queue pair has a packet.
  for (uint32_t idle = 0; idle < manager_.queue_pairs() && sink.room() > 0;) {
    if (ns_per_byte > 0 && link_free_at_ > now) {
      waits_for_link_ = true;
      return;
    }
    const uint32_t qpn = kFirstQpn + next_qp_;
    next_qp_ = (next_qp_ + 1) % manager_.queue_pairs();
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
  if (waits_for_link_) next = std::min(next, std::max(link_free_at_, now));
  return next;
}

void Board::on_deadline(Instant now) {
  manager_.on_deadline(now);
  for (uint32_t qpn = kFirstQpn; qpn < end_qpn(); ++qpn) {
    if (!is_ready(qpn)) continue;
    at(qpn).on_deadline(now);
    report_failure(qpn, now);
  }
  process_events(now);
}

// ------------------------------------------------------------------------------------ as a master

void Board::begin(const MasterTask& master_task, Instant now) {
  master_task_ = master_task;
  streams_to_open_ = master_task.streams;
  advance_master_task(now);
}

bool Board::master_task_done() const {
  return master_task_ && streams_to_open_ == 0 && master_task_qps_.empty() &&
         !manager_.exchange_pending();
}

// Runs one exchange at a time: opens all streams, then closes each one that has sent its data.
void Board::advance_master_task(Instant now) {
  if (!master_task_ || manager_.exchange_pending()) return;
  if (streams_to_open_ > 0) {
    if (manager_.request_open(master_task_->host_ip, master_task_->host_port, now)) {
      --streams_to_open_;
      return;
    }
    lines_.push_back("no queue pair is free for " + std::to_string(streams_to_open_) +
                     " more streams");
    streams_to_open_ = 0;
  }
  for (const uint32_t qpn : master_task_qps_) {
    if (is_ready(qpn) && at(qpn).transferring()) continue;
    if (manager_.request_close(qpn, now)) return;
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

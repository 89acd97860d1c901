// BoardQueuePair: message generation, segmentation into packets, and go-back-N recovery.
#include "daq/board_queue_pair.h"

#include <algorithm>

#include "base/check.h"
#include "daq/pattern.h"

namespace verbena::daq {
namespace {

constexpr uint32_t kInfiniteRnr = 7;
constexpr uint32_t kUdpIpv4Bytes = 28;
// The most that a paced generator catches up after it had to wait.
constexpr Duration kMaxCatchUp = milliseconds(5);

wire::Opcode opcode_of(TransferKind kind, bool immediate, bool first, bool last) {
  using enum wire::Opcode;
  const bool write = kind == TransferKind::Write;
  if (first && last) {
    if (write) return immediate ? RcWriteOnlyImm : RcWriteOnly;
    return immediate ? RcSendOnlyImm : RcSendOnly;
  }
  if (first) return write ? RcWriteFirst : RcSendFirst;
  if (!last) return write ? RcWriteMiddle : RcSendMiddle;
  if (write) return immediate ? RcWriteLastImm : RcWriteLast;
  return immediate ? RcSendLastImm : RcSendLast;
}

}  // namespace

Duration rnr_timer(uint8_t code) {
  // In units of 10 us.
  static constexpr uint32_t kTimes[32] = {65536, 1,    2,    3,     4,     6,     8,     12,
                                          16,    24,   32,   48,    64,    96,    128,   192,
                                          256,   384,  512,  768,   1024,  1536,  2048,  3072,
                                          4096,  6144, 8192, 12288, 16384, 24576, 32768, 49152};
  return microseconds(int64_t{kTimes[code & 31]} * 10);
}

BoardQueuePair::BoardQueuePair(const BoardQpConfig& config, const QpInfo& peer, wire::PathId path)
    : config_(config), peer_(peer), path_(path), payload_(bytes_of(config.mtu)) {}

bool BoardQueuePair::start(const Transmit& command, Instant now) {
  if (messages_left_ != 0 || failure_ != BoardQpFailure::None) return false;
  command_ = command;
  command_.length &= ~3u;  // the firmware ignores the two low bits
  messages_left_ = command.count;
  offset_ = 0;
  const uint32_t cycles = std::max(command.gap_cycles, config_.min_gap_cycles);
  gap_ = {static_cast<int64_t>(cycles * 1e9 / config_.clock_hz)};
  next_message_at_ = now;
  return true;
}

// ------------------------------------------------------------------------------------ generator

// A message larger than the buffer is accepted while the buffer is empty.
bool BoardQueuePair::has_room() const {
  return requests_.size() < config_.max_requests &&
         (requests_.empty() || bytes_in_flight_ + command_.length <= config_.inflight_bytes);
}

void BoardQueuePair::make_messages(Instant now) {
  while (messages_left_ != 0 && next_message_at_ <= now) {
    const bool room = has_room();
    if (!room && (config_.overrun == Overrun::Wait || gap_.ns == 0)) return;
    if (config_.overrun == Overrun::Wait)
      next_message_at_ = std::max(next_message_at_, now - kMaxCatchUp);
    if (room) {
      make_message();
    } else {
      ++counters_.overruns;
      next_word_ += command_.length / 4;  // the receiver detects the gap in the pattern
    }
    ++counters_.messages_made;
    --messages_left_;
    next_message_at_ = next_message_at_ + gap_;
  }
}

void BoardQueuePair::make_message() {
  const uint32_t mtu = bytes_of(config_.mtu);
  const uint32_t packets = std::max(1u, (command_.length + mtu - 1) / mtu);
  requests_.push_back({generated_packets_, packets, command_.length, offset_, next_word_,
                       command_.kind, command_.immediate});
  generated_packets_ += packets;
  bytes_in_flight_ += command_.length;
  next_word_ += command_.length / 4;
  if (command_.kind == TransferKind::Write) {
    offset_ = (offset_ + command_.length) % config_.wrap_bytes;
  }
}

// -------------------------------------------------------------------------------------- sending

wire::Packet BoardQueuePair::packet_of(const GeneratedMessage& message, uint32_t index) const {
  const bool first = index == 0;
  const bool last = index + 1 == message.packets;
  const wire::Opcode opcode = opcode_of(message.kind, message.immediate, first, last);
  wire::Packet p;
  p.bth.opcode = static_cast<uint8_t>(opcode);
  p.op = wire::info_of(p.bth.opcode);
  p.bth.solicited = last && (message.kind == TransferKind::Send || message.immediate);
  p.bth.destination = wire::Qpn(peer_.qpn);
  p.bth.ack_request = true;
  p.bth.psn = wire::Psn(peer_.psn) + static_cast<uint32_t>(message.first_packet + index);
  p.reth = {peer_.address + message.offset, peer_.rkey, message.bytes};
  p.immediate = kGeneratorImmediate;
  return p;
}

size_t BoardQueuePair::send_one(wire::PacketSink& sink, Instant now) {
  if (failure_ != BoardQpFailure::None) return 0;
  make_messages(now);
  if (rnr_until_ != kNever || next_ == generated_packets_ || sink.room() == 0) return 0;
  const GeneratedMessage& message = requests_[next_request_];
  const auto index = static_cast<uint32_t>(next_ - message.first_packet);
  const uint32_t mtu = bytes_of(config_.mtu);
  const wire::Packet p = packet_of(message, index);
  const std::span<std::byte> data =
      std::span(payload_).first(std::min(mtu, message.bytes - index * mtu));
  fill_pattern(data, message.first_word + index * (mtu / 4));

  wire::TxPacket out;
  out.path = path_;
  out.header_bytes = static_cast<uint8_t>(wire::store_headers(p, out.header.data()));
  const std::span<const std::byte> part = data;
  out.payload = {&part, 1};
  out.payload_bytes = static_cast<uint32_t>(data.size());
  sink.push(out);

  ++counters_.packets_sent;
  if (next_ < sent_until_) ++counters_.packets_retransmitted;
  ++next_;
  sent_until_ = std::max(sent_until_, next_);
  if (next_ == message.first_packet + message.packets) ++next_request_;
  if (timeout_at_ == kNever) timeout_at_ = now + config_.timeout;
  return out.header_bytes + data.size() + wire::kIcrcBytes + kUdpIpv4Bytes;
}

// ------------------------------------------------------------------------------------- responses

// The index of the packet in flight with this PSN.
std::optional<uint64_t> BoardQueuePair::packet_with(wire::Psn psn) const {
  const wire::Psn oldest = wire::Psn(peer_.psn) + static_cast<uint32_t>(unacked_);
  const int32_t ahead = psn.distance_from(oldest);
  if (ahead < 0 || unacked_ + static_cast<uint32_t>(ahead) >= sent_until_) return std::nullopt;
  return unacked_ + static_cast<uint32_t>(ahead);
}

void BoardQueuePair::on_response(const wire::Packet& packet, Instant now) {
  if (failure_ != BoardQpFailure::None) return;
  const auto which = packet_with(packet.bth.psn);
  if (!which) {
    ++counters_.unexpected_responses;
    return;
  }
  const bool nak = packet.aeth.kind != wire::AckKind::Ack;
  const uint64_t until = *which + (nak ? 0 : 1);
  if (until > unacked_) {
    on_acked(until);
    timeouts_in_a_row_ = rnrs_in_a_row_ = 0;
    rnr_until_ = kNever;
    timeout_at_ = unacked_ == sent_until_ ? kNever : now + config_.timeout;
  }
  switch (packet.aeth.kind) {
    case wire::AckKind::Ack:
      return;
    case wire::AckKind::RnrNak:
      ++counters_.rnr_naks;
      go_back_to(*which);
      if (config_.rnr_retries != kInfiniteRnr && ++rnrs_in_a_row_ > config_.rnr_retries) {
        return fail(BoardQpFailure::RnrRetriesExceeded);
      }
      rnr_until_ = now + rnr_timer(packet.aeth.value);
      timeout_at_ = kNever;
      return;
    case wire::AckKind::Nak:
      if (packet.aeth.value == static_cast<uint8_t>(wire::NakCode::SequenceError)) {
        ++counters_.sequence_naks;
        go_back_to(*which);
        timeout_at_ = now + config_.timeout;
        return;
      }
      syndrome_ =
          static_cast<uint8_t>(static_cast<uint8_t>(packet.aeth.kind) << 5 | packet.aeth.value);
      return fail(BoardQpFailure::Refused);
    case wire::AckKind::Reserved:
      ++counters_.unexpected_responses;
  }
}

void BoardQueuePair::on_acked(uint64_t until) {
  unacked_ = until;
  while (!requests_.empty()) {
    const GeneratedMessage& oldest = requests_.front();
    if (oldest.first_packet + oldest.packets > until) break;
    ++counters_.messages_acked;
    counters_.bytes_acked += oldest.bytes;
    bytes_in_flight_ -= oldest.bytes;
    requests_.pop_front();
    if (next_request_ > 0) --next_request_;
  }
  // The peer acknowledged packets that were about to be retransmitted.
  if (next_ < until) go_back_to(until);
}

void BoardQueuePair::go_back_to(uint64_t packet) {
  next_ = packet;
  next_request_ = 0;
  while (next_request_ < requests_.size() &&
         requests_[next_request_].first_packet + requests_[next_request_].packets <= packet) {
    ++next_request_;
  }
}

// ----------------------------------------------------------------------------------------- time

Instant BoardQueuePair::next_deadline() const {
  if (failure_ != BoardQpFailure::None) return kNever;
  const bool generator_waits =
      messages_left_ != 0 && (has_room() || config_.overrun == Overrun::Drop);
  return std::min({timeout_at_, rnr_until_, generator_waits ? next_message_at_ : kNever});
}

void BoardQueuePair::on_deadline(Instant now) {
  if (failure_ != BoardQpFailure::None) return;
  if (rnr_until_ <= now) rnr_until_ = kNever;
  if (timeout_at_ > now) return;
  ++counters_.timeouts;
  if (++timeouts_in_a_row_ > config_.retries) return fail(BoardQpFailure::RetriesExceeded);
  go_back_to(unacked_);
  timeout_at_ = now + config_.timeout;
}

void BoardQueuePair::fail(BoardQpFailure failure) {
  failure_ = failure;
  timeout_at_ = rnr_until_ = kNever;
}

}  // namespace verbena::daq

// Converts packets to records and back.
#include "datapath/shm/link.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/exhaustion.h"
#include "os/no_cancel.h"
#include "wire/headers.h"
#include "wire/opcode.h"

namespace verbena::datapath {
namespace {

// A longer body is not copied into the batch, but directly to its destination.
constexpr uint32_t kShortBody = 32;

// The content of an Addresses record.
struct AddressesRecord {
  wire::Gid source;
  wire::Gid destination;
  uint8_t traffic_class;
  uint8_t hop_limit;
};
static_assert(sizeof(AddressesRecord) <= kFrontBytes);

constexpr size_t kLargestHeaders = [] {
  size_t largest = 0;
  for (unsigned op = 0; op < 256; ++op) {
    largest = std::max<size_t>(largest, wire::info_of(static_cast<uint8_t>(op)).header_bytes);
  }
  return largest;
}();
static_assert(kLargestHeaders <= kFrontBytes);

}  // namespace

Link::Link(uint8_t slot, os::UniqueFd socket, os::UniqueFd wake_fd, Segment segment,
           const RingMemory& written, const RingMemory& read, ShmCounters& counters)
    : slot_(slot),
      socket_(std::move(socket)),
      wake_fd_(std::move(wake_fd)),
      segment_(std::move(segment)),
      writer_(written),
      reader_(read),
      direct_copy_(&written.control->copy),
      copy_revoker_(&read.control->copy),
      counters_(counters) {
  known_.reserve(kMaxAddresses);
  announced_.reserve(kMaxAddresses);
}

std::optional<uint8_t> Link::number_of(const Addresses& addresses) {
  const auto found = std::ranges::find(announced_, addresses);
  const auto number = static_cast<size_t>(found - announced_.begin());
  if (found != announced_.end()) return static_cast<uint8_t>(number);
  if (number == kMaxAddresses) return std::nullopt;
  const AddressesRecord record{addresses.source, addresses.destination, addresses.traffic_class,
                               addresses.hop_limit};
  const RecordWord word{.kind = RecordKind::Addresses,
                        .address = static_cast<uint8_t>(number),
                        .header_bytes = sizeof record};
  if (!writer_.write(word, std::as_bytes(std::span(&record, 1)).data(), {})) return std::nullopt;
  announced_.push_back(addresses);
  return static_cast<uint8_t>(number);
}

void Link::push(const wire::TxPacket& packet, uint8_t address) {
  const uint32_t bytes = packet.payload_bytes + packet.pad;
  VERBENA_CHECK(bytes <= wire::kMaxPayloadBytes && packet.header_bytes <= kFrontBytes);
  const RecordWord word{
      .kind = RecordKind::Packet,
      .address = address,
      .header_bytes = packet.header_bytes,
      .payload_size_log2 = static_cast<uint8_t>(
          packet.packet_payload_bytes != 0 ? std::countr_zero(packet.packet_payload_bytes) : 0),
      .body_bytes = bytes};
  if (!writer_.write(word, packet.header.data(), packet.payload)) [[unlikely]] {
    ++counters_.dropped;
    return;
  }
  if (packet.last) writer_.publish_early();
  ++counters_.packets_sent;
  counters_.bytes_sent += packet.header_bytes + bytes;
}

void Link::send_short_ack(const wire::Ack& ack, uint8_t address) {
  const RecordWord word{.kind = RecordKind::Ack,
                        .address = address,
                        .ack_bits = uint64_t{ack.destination.value()} << 24 | ack.psn.value()};
  if (!writer_.write(word)) [[unlikely]] {
    ++counters_.dropped;
    return;
  }
  ++counters_.packets_sent;
  counters_.bytes_sent += kWordBytes;
}

void Link::flush() {
  if (!writer_.publish()) return;
  const std::byte byte{};
  const int fd = wake_fd_.valid() ? wake_fd_.get() : socket_.get();
  // If the socket's queue is full, it already contains wake-ups for the peer.
  (void)::syscall(SYS_sendto, fd, &byte, sizeof byte, MSG_DONTWAIT | MSG_NOSIGNAL, nullptr, 0);
  ++counters_.wakes_sent;
}

bool Link::access(const wire::OneSided& request, const Addresses& addresses) {
  if (!memory_.reachable()) return false;
  direct_copy_.begin();
  const bool done = memory_.copy(request, addresses.source, addresses.destination, direct_copy_);
  direct_copy_.end();
  if (done) ++counters_.copies;
  return done;
}

bool Link::retract(const wire::Unread& requests, uint8_t address) {
  if (!memory_.reachable() || is_corrupted()) return false;
  bool retracted = false;
  (void)try_allocating([&] { retracted = retract_unread(requests, address); });
  return retracted;
}

bool Link::retract_unread(const wire::Unread& requests, uint8_t address) {
  uint32_t found = 0;
  wire::Psn first{0};
  const auto matches = [&](const RecordWord& word, std::span<const std::byte> header) {
    if (word.kind != RecordKind::Packet || word.address != address ||
        header.size() < wire::kBthBytes) {
      return false;
    }
    const wire::Bth bth = wire::Bth::load(header.data());
    if (bth.destination != requests.destination ||
        wire::info_of(bth.opcode).direction != wire::Direction::Request) {
      return false;
    }
    if (found++ == 0) first = bth.psn;
    return true;
  };
  // Any other number means that some were read, or took another medium.
  const auto are_all_unread = [&] { return found == requests.packets && first == requests.first; };
  if (!writer_.reclaim(matches, are_all_unread)) return false;
  counters_.retracted += found;
  return true;
}

void Link::take(RxBatch& batch, IsOwnAddress is_own, uint32_t interface_index) {
  const size_t packets_before = batch.count;
  const size_t bytes_before = batch.bytes;
  RingReader::Record record;
  while (!batch.full() && !has_invalid_record_ && reader_.next(record)) {
    if (record.word.kind == RecordKind::Packet) [[likely]] {
      take_packet(record, batch);
    } else if (record.word.kind == RecordKind::Ack) {
      take_ack(record.word, batch);
    } else {
      take_addresses(record, is_own, interface_index);
    }
  }
  counters_.packets_received += batch.count - packets_before;
  counters_.bytes_received += batch.bytes - bytes_before;
  // One of the dropped ones: this takes several system calls.
  if (dropped_address_) [[unlikely]]
    check_addresses(*std::exchange(dropped_address_, std::nullopt), is_own, interface_index);
}

// Handles a record whose addresses were not announced, or were not of this host when they were
// checked. They may have been added to it since, so take() checks them again.
void Link::drop(const RecordWord& word) {
  if (word.address >= known_.size()) {
    has_invalid_record_ = true;
  } else {
    ++counters_.dropped;
    dropped_address_ = word.address;
  }
}

void Link::check_addresses(uint8_t number, IsOwnAddress is_own, uint32_t interface_index) {
  const os::NoCancel no_cancel;
  const wire::RxMeta& meta = known_[number];
  if (is_own(meta.source, interface_index) && is_own(meta.destination, interface_index)) {
    senders_[number] = &meta;
  }
}

[[gnu::always_inline]] inline void Link::take_ack(const RecordWord& word, RxBatch& batch) {
  const wire::RxMeta* const meta = senders_[word.address];
  if (meta == nullptr) [[unlikely]]
    return drop(word);
  wire::RxPacket& packet = batch.packets[batch.count++];
  packet.bytes = {};
  packet.separate_payload = {};
  packet.meta = meta;
  packet.packet_payload_bytes = 0;
  packet.ack = {wire::Qpn(static_cast<uint32_t>(word.ack_bits >> 24)),
                wire::Psn(static_cast<uint32_t>(word.ack_bits & 0xFFFFFF))};
  batch.bytes += kWordBytes;
}

[[gnu::always_inline]] inline void Link::take_packet(const RingReader::Record& record,
                                                     RxBatch& batch) {
  const RecordWord& word = record.word;
  const wire::RxMeta* const meta = senders_[word.address];
  if (meta == nullptr) [[unlikely]]
    return drop(word);
  if (word.header_bytes < wire::kBthBytes) [[unlikely]] {
    has_invalid_record_ = true;
    return;
  }
  // The peer may overwrite the ring at any time, so only this copy is parsed.
  std::byte* const front = batch.fronts[batch.count].data();
  const bool whole = word.is_small() && word.body_bytes <= kShortBody;
  const size_t front_bytes = word.header_bytes + (whole ? word.body_bytes : 0);
  copy_short(front, record.front, front_bytes);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  wire::RxPacket& packet = batch.packets[batch.count++];
  packet.bytes = {front, front_bytes};
  packet.meta = meta;
  packet.separate_payload = {record.body, whole ? 0 : word.body_bytes};
  packet.packet_payload_bytes = word.payload_size_log2 != 0 ? 1u << word.payload_size_log2 : 0;
  batch.bytes += word.header_bytes + word.body_bytes;
}

void Link::take_addresses(const RingReader::Record& record, IsOwnAddress is_own,
                          uint32_t interface_index) {
  AddressesRecord a;
  if (record.word.header_bytes != sizeof a || record.word.body_bytes != 0 ||
      record.word.address != known_.size()) {
    has_invalid_record_ = true;
    return;
  }
  std::memcpy(&a, record.front, sizeof a);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  known_.push_back({.source = a.source,
                    .destination = a.destination,
                    .traffic_class = a.traffic_class,
                    .hop_limit = a.hop_limit});
  check_addresses(record.word.address, is_own, interface_index);
}

void Link::wake() {
  if (!reader_.wake()) return;
  std::byte byte;
  if (::recv(socket_.get(), &byte, sizeof byte, MSG_DONTWAIT) == 1) ++counters_.wakes_received;
}

void Link::drain() {
  std::array<std::byte, 16> message;
  for (int i = 0; i < 64; ++i) {
    if (::recv(socket_.get(), message.data(), message.size(), MSG_DONTWAIT) <= 0) return;
    ++counters_.wakes_received;
  }
}

}  // namespace verbena::datapath

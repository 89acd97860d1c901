// Carries out the fault of each packet. Held packets are copies, because a datapath's
// packets are valid only until the next call.
#include "datapath/faulty_datapath.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

namespace verbena::datapath {
namespace {

using wire::PacketFault;

constexpr size_t kMaxHeld = 256;
constexpr size_t kMaxHeldOut = 16;
constexpr uint64_t kCallsPerHold = 16;

template <typename T>
bool parse_number(std::string_view text, T& to) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), to);
  return error == std::errc() && end == text.data() + text.size();
}

// Parses digits with a point. std::from_chars would add a dependency on libm, and strtod follows
// the program's locale.
bool parse_probability(std::string_view text, double& to) {
  double value = 0, scale = 0;
  bool digits = false;
  for (const char c : text) {
    if (c == '.' && scale == 0) {
      scale = 1;
    } else if (c >= '0' && c <= '9') {
      digits = true;
      if (scale != 0) scale /= 10;
      value = scale == 0 ? value * 10 + (c - '0') : value + scale * (c - '0');
    } else {
      return false;
    }
  }
  to = value;
  return digits && value <= 1;
}

// The error for a name that is not in the table.
constexpr auto kUnknownFault = [] {
  std::array<char, 200> text{};
  auto to = text.begin();
  const auto append = [&to](std::string_view part) { to = std::ranges::copy(part, to).out; };
  append("unknown fault; there are ");
  for (const wire::PacketFaultInfo& f : wire::kPacketFaults) {
    append(f.name);
    append(", ");
  }
  append("hold, send and seed");
  return text;
}();
static_assert(kUnknownFault.back() == '\0');

}  // namespace

Result<Faults> parse_faults(std::string_view text) {
  Faults f;
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    const size_t equals = item.find('=');
    if (equals == item.npos) return Error{EINVAL, "a fault must be written as name=value"};
    const std::string_view name = item.substr(0, equals);
    const std::string_view value = item.substr(equals + 1);
    const auto fault = std::ranges::find(wire::kPacketFaults, name, &wire::PacketFaultInfo::name);
    if (fault != std::end(wire::kPacketFaults)) {
      if (!parse_probability(value, f.packet.*fault->probability)) {
        return Error{EINVAL, "a fault's probability must be a number from 0 to 1"};
      }
    } else if (name == "hold") {
      if (!parse_number(value, f.hold) || f.hold < 1 || f.hold > 1000) {
        return Error{EINVAL, "hold must be a number from 1 to 1000"};
      }
    } else if (name == "send") {
      if (value != "0" && value != "1") return Error{EINVAL, "send must be 0 or 1"};
      f.on_send = value == "1";
    } else if (name == "seed") {
      if (!parse_number(value, f.seed)) return Error{EINVAL, "seed must be a number"};
    } else {
      return Error{EINVAL, kUnknownFault.data()};
    }
  }
  return f;
}

FaultyDatapath::FaultyDatapath(std::unique_ptr<Datapath> inner, const Faults& faults)
    : PacketSink(inner->sink().local_peer() != nullptr ? &local_peer_ : nullptr),
      inner_(std::move(inner)),
      local_peer_(inner_->sink().local_peer()),
      faults_(faults),
      prng_(faults.seed) {
  released_.reserve(kMaxHeld);  // packets_ points into its elements
  if (faults.packet.mark > 0) inner_->report_ip_headers();
}

FaultyDatapath::Held::Held(const wire::RxPacket& packet, uint32_t packets, uint32_t calls)
    : bytes(packet.bytes.begin(), packet.bytes.end()),
      packet_payload_bytes(packet.packet_payload_bytes),
      meta(*packet.meta),
      packets_left(packets),
      calls_left(calls) {
  bytes.insert(bytes.end(), packet.separate_payload.begin(), packet.separate_payload.end());
}

std::span<const wire::RxPacket> FaultyDatapath::receive() {
  packets_.clear();
  released_.clear();
  marked_.clear();
  const auto received = inner_->receive();
  for (Held& h : held_) h.calls_left -= h.calls_left > 0;
  for (const wire::RxPacket& p : received) receive_one(p);
  release_due(received.empty());
  return packets_;
}

void FaultyDatapath::receive_one(const wire::RxPacket& packet) {
  const PacketFault fault = faults_.packet.draw(prng_);
  const bool may_hold = held_.size() < kMaxHeld;
  switch (fault) {
    case PacketFault::None:
      return deliver(packet);
    case PacketFault::Loss:
    case PacketFault::Corrupt:  // the ICRC was checked already, so a flipped bit would be delivered
      break;
    case PacketFault::Duplicate:
      deliver(packet);
      deliver(packet);
      break;
    case PacketFault::Reorder:
      if (!may_hold) return deliver(packet);
      held_.emplace_back(packet, faults_.hold, 0);
      break;
    case PacketFault::Delay:
      if (!may_hold) return deliver(packet);
      held_.emplace_back(packet, 0,
                         static_cast<uint32_t>(1 + prng_.below(kCallsPerHold * faults_.hold)));
      break;
    case PacketFault::Mark:
      if (!wire::is_ecn_capable(packet.meta->traffic_class)) return deliver(packet);
      deliver(marked(packet));
      break;
  }
  counts_.add(fault);
}

// Packets of a batch share their addressing, so a marked one gets a copy.
wire::RxPacket FaultyDatapath::marked(const wire::RxPacket& packet) {
  wire::RxPacket copy = packet;
  wire::RxMeta& meta = marked_.emplace_back(*packet.meta);
  meta.traffic_class |= wire::kCe;
  copy.meta = &meta;
  return copy;
}

void FaultyDatapath::deliver(const wire::RxPacket& packet) {
  packets_.push_back(packet);
  for (Held& h : held_) {
    if (h.packets_left > 0 && --h.packets_left == 0) h.calls_left = 0;
  }
  release_due(false);
}

// Delivers the held packets that are due. Without received packets, none can overtake the held
// ones, so these become due.
void FaultyDatapath::release_due(bool received_none) {
  for (size_t i = 0; i < held_.size();) {
    Held& h = held_[i];
    const bool due = h.calls_left == 0 && (h.packets_left == 0 || received_none);
    if (!due || released_.size() == kMaxHeld) {
      ++i;
      continue;
    }
    released_.push_back(std::move(h));
    held_.erase(held_.begin() + static_cast<ptrdiff_t>(i));
    const Held& now_due = released_.back();
    packets_.push_back({.bytes = now_due.bytes,
                        .meta = &now_due.meta,
                        .packet_payload_bytes = now_due.packet_payload_bytes});
  }
}

// With faults on send, each packet may be sent twice, and the held packets must fit as well.
size_t FaultyDatapath::room() const {
  const size_t room = inner_->sink().room();
  if (!faults_.on_send) return room;
  return room > held_out_.size() ? (room - held_out_.size()) / 2 : 0;
}

void FaultyDatapath::push(const wire::TxPacket& packet) {
  if (!faults_.on_send) return inner_->sink().push(packet);
  const PacketFault fault = faults_.packet.draw(prng_);
  switch (fault) {
    case PacketFault::None:
    case PacketFault::Delay:  // of received packets only: the owner may not flush again soon
    case PacketFault::Mark:   // of received packets only: the kernel writes the IP header
      return send_now(packet, 1);
    case PacketFault::Loss:
    case PacketFault::Corrupt:  // the sender computes the ICRC later, over any flipped bit as well
      break;
    case PacketFault::Duplicate:
      send_now(packet, 2);
      break;
    case PacketFault::Reorder:
      if (held_out_.size() == kMaxHeldOut) return send_now(packet, 1);
      hold_out(packet);
      break;
  }
  counts_.add(fault);
}

void FaultyDatapath::hold_out(const wire::TxPacket& packet) {
  HeldOut& h = held_out_.emplace_back();
  h.packet = packet;
  h.packet.payload = {};
  for (const auto& p : packet.payload) h.payload.insert(h.payload.end(), p.begin(), p.end());
  h.packets_left = faults_.hold;
}

void FaultyDatapath::send_now(const wire::TxPacket& packet, int copies) {
  for (int i = 0; i < copies; ++i) push_inner(packet);
  for (HeldOut& h : held_out_) h.packets_left -= h.packets_left > 0;
  release_out(false);
}

void FaultyDatapath::push_inner(const wire::TxPacket& packet) {
  if (inner_->sink().room() > 0) inner_->sink().push(packet);
}

void FaultyDatapath::release_out(bool all) {
  std::erase_if(held_out_, [&](const HeldOut& h) {
    if (!all && h.packets_left > 0) return false;
    const std::span<const std::byte> payload(h.payload);
    wire::TxPacket packet = h.packet;
    packet.payload = {&payload, 1};
    push_inner(packet);
    return true;
  });
}

void FaultyDatapath::flush() {
  release_out(true);
  inner_->flush();
}

void FaultyDatapath::close_path(wire::PathId path) {
  release_out(true);
  inner_->close_path(path);
}

void FaultyDatapath::append_counters(std::vector<Counter>& to) const {
  inner_->append_counters(to);
  for (const wire::PacketFaultInfo& f : wire::kPacketFaults) {
    to.push_back({f.counter, counts_[f.fault], f.meaning});
  }
}

}  // namespace verbena::datapath

// Applies the faults of links to packets.
#include "sim/network.h"

#include <algorithm>

#include "base/bytes.h"
#include "wire/opcode.h"

namespace verbena::sim {
namespace {

using wire::PacketFault;

constexpr uint64_t kMaxDelays = 16;  // in link delays: the most that a delayed packet is late

}  // namespace

wire::Gid Network::gid_of(HostId host) {
  std::byte address[4] = {std::byte{10}, std::byte{0}};
  store_be16(address + 2, static_cast<uint16_t>(host + 1));
  return wire::Gid::from_ipv4(address);
}

wire::Gid Network::gid_of_group(uint32_t group) {
  std::byte address[4] = {std::byte{239}, std::byte{1}};
  store_be16(address + 2, static_cast<uint16_t>(group));
  return wire::Gid::from_ipv4(address);
}

Network::Link& Network::find(HostId from, HostId to) {
  const auto [it, fresh] = links_.try_emplace({from, to});
  if (fresh) it->second.faults = defaults_;
  return it->second;
}

void Network::heal() {
  const auto clean = [](LinkFaults& f) {
    f.packet = {};
    f.hostile = 0;
    f.partitioned = false;
    f.jitter = {};
  };
  clean(defaults_);
  for (auto& [ends, link] : links_) clean(link.faults);
}

std::vector<Network::Delivery> Network::send(HostId from, HostId to, Bytes packet, Instant now) {
  if (!tamper_rule_) return transmit(from, to, std::move(packet), now);
  std::vector<Delivery> all;
  for (Bytes& bytes : tamper_rule_(from, to, std::move(packet))) {
    for (Delivery& d : transmit(from, to, std::move(bytes), now)) all.push_back(std::move(d));
  }
  return all;
}

std::vector<Network::Delivery> Network::transmit(HostId from, HostId to, Bytes packet,
                                                 Instant now) {
  Link& link = find(from, to);
  ++counts_.sent;
  counts_.bytes += packet.size();
  trace_.add(uint64_t{from} << 32 | to);
  trace_.add(packet);

  std::vector<Delivery> out;
  const std::optional<Bottleneck::Passage> passage = leave_queue(link, to, packet, now);
  if (!passage || link.faults.partitioned) {
    ++counts_.lost;
    return out;
  }
  if (prng_.chance(link.faults.hostile)) {
    const Instant at = passage->leaves + travel_time(link.faults);
    out.push_back({at, mangle(packet)});
  }
  if (drop_rule_ && drop_rule_(from, to, packet)) {
    ++counts_.lost;
  } else {
    deliver(link.faults, std::move(packet), *passage, out);
  }
  counts_.delivered += out.size();
  return out;
}

std::optional<Bottleneck::Passage> Network::leave_queue(Link& link, HostId to, const Bytes& packet,
                                                        Instant now) {
  // IP, UDP, ICRC and Ethernet framing count on the wire as well.
  const uint64_t on_wire = packet.size() + 70;
  if (const auto found = bottlenecks_.find(to); found != bottlenecks_.end()) {
    return found->second->enqueue(on_wire, is_ecn_capable(packet), now);
  }
  const LinkFaults& f = link.faults;
  if (f.bits_per_second == 0) return Bottleneck::Passage{now};
  const Instant start = std::max(now, link.busy_until);
  const auto queued_bytes =
      static_cast<uint64_t>((start - now).ns) * f.bits_per_second / 8 / 1000000000u;
  if (queued_bytes > f.queue_bytes) return std::nullopt;
  const auto bits = static_cast<int64_t>(on_wire * 8);
  link.busy_until =
      start + nanoseconds(bits * 1000000000 / static_cast<int64_t>(f.bits_per_second));
  return Bottleneck::Passage{link.busy_until};
}

// Carries out the fault of a packet, if it has one.
void Network::deliver(const LinkFaults& link, Bytes packet, const Bottleneck::Passage& passage,
                      std::vector<Delivery>& out) {
  Instant leaves = passage.leaves;
  const PacketFault fault = link.packet.draw(prng_);
  counts_.faults.add(fault);
  const bool marked = passage.marked || (fault == PacketFault::Mark && is_ecn_capable(packet));
  switch (fault) {
    case PacketFault::None:
    case PacketFault::Mark:
      break;
    case PacketFault::Loss:
    case PacketFault::Corrupt:  // simulated packets have no ICRC that could be wrong
      ++counts_.lost;
      return;
    case PacketFault::Duplicate:
      out.push_back({leaves + travel_time(link), packet});
      break;
    case PacketFault::Reorder:  // behind all packets of the next `delay`
      leaves = leaves + link.delay;
      break;
    case PacketFault::Delay:
      leaves = leaves + nanoseconds(static_cast<int64_t>(
                            prng_.below(kMaxDelays * static_cast<uint64_t>(link.delay.ns) + 1)));
      break;
  }
  out.push_back({leaves + travel_time(link), std::move(packet), marked});
}

bool Network::is_ecn_capable(const Bytes& packet) {
  if (packet.empty()) return false;
  const wire::OpcodeInfo& op = wire::info_of(std::to_integer<uint8_t>(packet[0]));
  return op.valid() && op.transport != wire::Transport::Ud && op.transport != wire::Transport::Cnp;
}

Duration Network::travel_time(const LinkFaults& link) {
  if (link.jitter.ns == 0) return link.delay;
  const auto extra = static_cast<int64_t>(prng_.below(static_cast<uint64_t>(link.jitter.ns)));
  return link.delay + nanoseconds(extra);
}

Bytes Network::mangle(const Bytes& packet) {
  Bytes bad = packet;
  switch (prng_.below(5)) {
    case 0:  // truncated
      bad.resize(prng_.below(bad.size() + 1));
      break;
    case 1:  // bits flipped
      for (uint64_t i = 0, n = 1 + prng_.below(8); i < n; ++i) {
        const uint64_t at = prng_.below(bad.size());
        bad[at] ^= std::byte(1u << prng_.below(8));
      }
      break;
    case 2:  // another opcode, often of the same transport, same length
      bad[0] = prng_.below(2) == 0 ? std::byte(prng_.below(256))
                                   : (bad[0] & std::byte{0xE0}) | std::byte(prng_.below(32));
      break;
    case 3:  // noise behind a BTH with a valid QPN
      for (size_t i = 12; i < bad.size(); ++i) bad[i] = std::byte(prng_.below(256));
      break;
    default:  // extra bytes
      bad.resize(bad.size() + prng_.below(64) * 4, std::byte{0x5A});
      break;
  }
  return bad;
}

}  // namespace verbena::sim

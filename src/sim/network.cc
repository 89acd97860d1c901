// Applies the faults of links to packets.
#include "sim/network.h"

#include <algorithm>

#include "base/bytes.h"

namespace verbena::sim {

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
    f.loss = f.duplication = f.corruption = f.hostile = 0;
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
  const LinkFaults& f = link.faults;
  ++counts_.sent;
  counts_.bytes += packet.size();
  trace_.add(uint64_t{from} << 32 | to);
  trace_.add(packet);

  Instant leaves = now;
  if (f.bits_per_second != 0) {
    // IP, UDP, ICRC and Ethernet framing count on the wire as well.
    const auto bits = static_cast<int64_t>((packet.size() + 70) * 8);
    const Instant start = std::max(now, link.busy_until);
    const auto queued_bytes =
        static_cast<uint64_t>((start - now).ns) * f.bits_per_second / 8 / 1000000000u;
    if (queued_bytes > f.queue_bytes) {
      ++counts_.lost;
      return {};
    }
    leaves = start + nanoseconds(bits * 1000000000 / static_cast<int64_t>(f.bits_per_second));
    link.busy_until = leaves;
  }

  std::vector<Delivery> out;
  const auto arrival = [&] {
    const int64_t extra =
        f.jitter.ns == 0 ? 0
                         : static_cast<int64_t>(prng_.below(static_cast<uint64_t>(f.jitter.ns)));
    return leaves + f.delay + nanoseconds(extra);
  };
  const bool gone = f.partitioned || prng_.chance(f.loss) || prng_.chance(f.corruption) ||
                    (drop_rule_ && drop_rule_(from, to, packet));
  if (prng_.chance(f.hostile) && !f.partitioned) out.push_back({arrival(), mangle(packet)});
  if (!gone && prng_.chance(f.duplication)) out.push_back({arrival(), packet});
  if (gone) {
    ++counts_.lost;
  } else {
    out.push_back({arrival(), std::move(packet)});
  }
  counts_.delivered += out.size();
  return out;
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

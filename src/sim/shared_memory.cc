// Rings, and the memory behind them.
#include "sim/shared_memory.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "wire/headers.h"
#include "wire/opcode.h"

namespace verbena::sim {
namespace {

constexpr size_t kRecordBytes = 64;  // overhead of a record
constexpr size_t kSpareBytes = 2 * (wire::kMaxPayloadBytes + 2 * kRecordBytes);
constexpr uint64_t kAccess = 0xACCE55;  // in the trace

size_t ring_bytes_of(const SharedMemory::Record& r) { return r.bytes.size() + kRecordBytes; }

}  // namespace

std::byte* ExposedMemory::resolve(const wire::OneSided& r, const wire::Gid& source,
                                  const wire::Gid& destination) const {
  const auto qp = qps_.find(r.destination.value());
  const auto found = regions_.find(r.rkey);
  if (qp == qps_.end() || found == regions_.end()) return nullptr;
  const bool connected = qp->second.peer == r.source && qp->second.source == destination &&
                         qp->second.destination == source;
  const wire::ExposedRegion& region = found->second;
  const bool permitted = (qp->second.access & region.access & r.access) == r.access;
  const bool covered = r.remote_address >= region.iova && r.length <= region.length &&
                       r.remote_address - region.iova <= region.length - r.length;
  if (!connected || !permitted || !covered || region.pd != qp->second.pd) return nullptr;
  return reinterpret_cast<std::byte*>(region.base + (r.remote_address - region.iova) + r.offset);
}

MemoryLinkShape MemoryLinkShape::drawn(Prng& prng) {
  MemoryLinkShape link;
  link.large_packets = prng.below(3) != 0;
  link.reachable = prng.below(4) != 0;
  link.refusal = prng.below(2) == 0 ? 0 : 0.3;
  return link;
}

void SharedMemory::open(HostId a, HostId b, const MemoryLinkShape& shape) {
  links_[key(a, b)] = Link{.shape = shape, .rings = {}};
}

SharedMemory::Link* SharedMemory::find(HostId a, HostId b) {
  const auto found = links_.find(key(a, b));
  return found != links_.end() ? &found->second : nullptr;
}

const SharedMemory::Link* SharedMemory::find_open(HostId from, HostId to) const {
  const auto found = links_.find(key(from, to));
  const bool open = found != links_.end() && !found->second.ended[side(from, to)];
  return open ? &found->second : nullptr;
}

void SharedMemory::block(HostId from, HostId to, bool on) {
  if (Link* const link = find(from, to)) link->rings[side(from, to)].blocked = on;
}

void SharedMemory::end(HostId host, HostId peer) {
  if (Link* const link = find(host, peer)) link->ended[side(host, peer)] = true;
}

uint32_t SharedMemory::packet_bytes(HostId from, HostId to) const {
  const Link* const link = find_open(from, to);
  return link != nullptr && link->shape.large_packets ? wire::kMaxPayloadBytes : 0;
}

bool SharedMemory::is_full(HostId from, HostId to) const {
  const auto found = links_.find(key(from, to));
  if (found == links_.end()) return false;
  const Link* const link = &found->second;
  const size_t self = side(from, to);
  // As SelectingDatapath: an ended link takes no packets until the path is reverted to its MTU.
  if (link->ended[self]) return !link->removed[self];
  const Ring& ring = link->rings[self];
  return ring.blocked || ring.bytes + kSpareBytes > link->shape.ring_bytes;
}

bool SharedMemory::is_asleep(HostId from, HostId to) const {
  const Link* const link = find_open(from, to);
  return link != nullptr && link->shape.reachable && link->rings[side(from, to)].asleep;
}

void SharedMemory::append(Link& link, HostId from, HostId to, Record record) {
  Ring& ring = link.rings[side(from, to)];
  ++counts_.packets;
  trace_.add(uint64_t{from} << 32 | to);
  trace_.add(record.bytes);
  trace_.add(record.ack.psn.value());
  if (ring.closed || ring.bytes + ring_bytes_of(record) > link.shape.ring_bytes) {
    ++counts_.lost;
    return;
  }
  ring.bytes += ring_bytes_of(record);
  ring.records.push_back(std::move(record));
  ring.written = true;
}

void SharedMemory::push(HostId from, const wire::TxPacket& packet) {
  const auto to = static_cast<HostId>(packet.path);
  Link& link = *find_open(from, to);
  Record r;
  r.bytes.assign(packet.header.begin(), packet.header.begin() + packet.header_bytes);
  for (const auto& segment : packet.payload)
    r.bytes.insert(r.bytes.end(), segment.begin(), segment.end());
  r.bytes.resize(r.bytes.size() + packet.pad);
  r.header_bytes = packet.header_bytes;
  r.packet_payload_bytes = packet.packet_payload_bytes;
  if (!prng_.chance(link.shape.hostile)) return append(link, from, to, std::move(r));
  Record bad = r;
  bad.bytes = network_.mangle(r.bytes);
  bad.bytes.resize(
      std::max<size_t>(bad.bytes.size(), wire::kBthBytes));  // a link accepts no shorter packet
  bad.header_bytes = wire::kBthBytes + prng_.below(bad.bytes.size() - wire::kBthBytes + 1);
  bad.packet_payload_bytes = 1u << prng_.below(17);
  append(link, from, to, std::move(r));
  append(link, from, to, std::move(bad));
}

bool SharedMemory::send_short_ack(HostId from, wire::PathId path, const wire::Ack& ack) {
  const auto to = static_cast<HostId>(path);
  Link* const link = find_open(from, to);
  if (link == nullptr) return false;
  append(*link, from, to, {.bytes = {}, .ack = ack});
  return true;
}

bool SharedMemory::access(HostId from, const wire::OneSided& r) {
  const auto to = static_cast<HostId>(r.path);
  const Link* const link = find_open(from, to);
  if (link == nullptr || !link->shape.reachable) return false;
  const Exposed& exposed = exposed_.at(to);
  std::byte* at = exposed.memory->resolve(r, exposed_.at(from).gid, exposed.gid);
  if (at == nullptr) return false;
  // A failed access may have copied some bytes.
  const bool fails = prng_.chance(link->shape.refusal);
  uint64_t left = fails ? prng_.below(r.bytes + 1) : r.bytes;
  for (const auto& part : r.local) {
    const auto bytes = static_cast<size_t>(std::min<uint64_t>(part.size(), left));
    if (bytes == 0) continue;
    if (r.write) {
      std::memcpy(at, part.data(), bytes);
    } else {
      std::memcpy(const_cast<std::byte*>(part.data()), at, bytes);
    }
    at += bytes;
    left -= bytes;
  }
  trace_.add(kAccess << 32 | r.bytes);
  if (!fails) ++counts_.accesses;
  return !fails;
}

bool SharedMemory::retract(HostId from, const wire::Unread& requests) {
  const auto to = static_cast<HostId>(requests.path);
  Link* const link = find_open(from, to);
  if (link == nullptr || !link->shape.reachable || prng_.chance(link->shape.refusal)) return false;
  Ring& ring = link->rings[side(from, to)];
  if (ring.owned || ring.closed) return false;
  const auto is_wanted = [&](const Record& r) {
    if (r.bytes.empty()) return false;
    const wire::Bth bth = wire::Bth::load(r.bytes.data());
    return bth.destination == requests.destination &&
           wire::info_of(bth.opcode).direction == wire::Direction::Request;
  };
  const auto first = std::ranges::find_if(ring.records, is_wanted);
  const auto count = std::ranges::count_if(ring.records, is_wanted);
  if (count != requests.packets || first == ring.records.end() ||
      wire::Bth::load(first->bytes.data()).psn != requests.first) {
    return false;
  }
  std::erase_if(ring.records, is_wanted);
  ring.bytes = 0;
  for (const Record& r : ring.records) ring.bytes += ring_bytes_of(r);
  ring.written = true;
  counts_.retracted += requests.packets;
  return true;
}

std::vector<HostId> SharedMemory::take_written(HostId from) {
  std::vector<HostId> readers;
  for (auto& [ends, link] : links_) {
    if (from != ends.first && from != ends.second) continue;
    const HostId to = from == ends.first ? ends.second : ends.first;
    Ring& ring = link.rings[side(from, to)];
    if (!std::exchange(ring.written, false)) continue;
    ring.asleep = false;
    readers.push_back(to);
  }
  return readers;
}

// Calls visit(writer, link, ring) for each ring that the host reads.
template <typename Visit>
void SharedMemory::for_each_inbound(HostId to, Visit visit) {
  for (auto& [ends, link] : links_) {
    if (to != ends.first && to != ends.second) continue;
    const HostId from = to == ends.first ? ends.second : ends.first;
    visit(from, link, link.rings[side(from, to)]);
  }
}

void SharedMemory::take(HostId to, size_t max_records,
                        std::vector<std::pair<HostId, Record>>& records) {
  for_each_inbound(to, [&](HostId from, Link&, Ring& ring) {
    while (records.size() < max_records && !ring.records.empty()) {
      ring.bytes -= ring_bytes_of(ring.records.front());
      records.emplace_back(from, std::move(ring.records.front()));
      ring.records.pop_front();
    }
  });
}

bool SharedMemory::anything_for(HostId to) const {
  bool any = false;
  const_cast<SharedMemory*>(this)->for_each_inbound(
      to, [&](HostId, Link&, const Ring& ring) { any |= !ring.records.empty(); });
  return any;
}

void SharedMemory::set_asleep(HostId to, bool asleep) {
  for_each_inbound(to, [&](HostId, Link&, Ring& ring) { ring.asleep = asleep; });
}

void SharedMemory::set_stopped(HostId to, bool stopped) {
  for_each_inbound(to,
                   [&](HostId, Link&, Ring& ring) { ring.owned = stopped && prng_.below(2) == 0; });
}

bool SharedMemory::remove_ended(HostId host) {
  bool any = false;
  for_each_inbound(host, [&](HostId from, Link& link, Ring& ring) {
    const size_t self = side(host, from);
    if (!link.ended[self] || link.removed[self] || !ring.records.empty()) return;
    link.removed[self] = ring.closed = any = true;
  });
  return any;
}

}  // namespace verbena::sim

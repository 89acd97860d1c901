// Insertion in PSN order, and the pool of packets.
#include "core/reorder_buffer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/exhaustion.h"

namespace verbena::core {

std::unique_ptr<BufferedPacket> PacketPool::allocate(size_t payload_bytes) {
  const size_t units = (std::max<size_t>(payload_bytes, 1) - 1) / BufferedPacket::kUnitBytes + 1;
  if (in_use_ + units > kMaxInUse) return nullptr;
  std::unique_ptr<BufferedPacket> packet;
  if (spare_.empty() || spare_.back()->units != units) {
    packet = std::make_unique<BufferedPacket>(units);
  } else {
    packet = std::move(spare_.back());
    spare_.pop_back();
  }
  in_use_ += units;
  return packet;
}

void PacketPool::release(std::unique_ptr<BufferedPacket> packet) {
  in_use_ -= packet->units;
  if (!spare_.empty() && spare_.back()->units != packet->units) spare_.clear();
  if (spare_.size() == kMaxSpare) return;
  (void)try_allocating([&] { spare_.push_back(std::move(packet)); });
}

bool ReorderBuffer::put(wire::Psn missing, const wire::Packet& packet, int32_t reach) {
  const int32_t ahead = packet.bth.psn.distance_from(missing);
  if (ahead >= reach || packet.payload.size() > BufferedPacket::kMaxPayload) return false;
  // Most packets are in order and go to the end.
  auto at = packets_.end();
  while (at != packets_.begin() + static_cast<ptrdiff_t>(first_)) {
    const int32_t behind = (*std::prev(at))->packet.bth.psn.distance_from(packet.bth.psn);
    if (behind == 0) return true;
    if (behind < 0) break;
    --at;
  }
  const bool plenty = pool_.in_use() < PacketPool::kMaxInUse / 2;
  if (units_ >= (plenty ? kMaxBuffered : kMaxBufferedWhenScarce)) return false;
  std::unique_ptr<BufferedPacket> buffered;
  const bool possible = try_allocating([&] {
    const auto place = at - packets_.begin();
    reserve_ahead(packets_, packets_.size() + 1);
    at = packets_.begin() + place;
    buffered = pool_.allocate(packet.payload.size());
  });
  if (!possible || buffered == nullptr) return false;
  buffered->packet = packet;
  if (!packet.payload.empty()) {
    std::memcpy(buffered->payload.get(), packet.payload.data(), packet.payload.size());
  }
  buffered->packet.payload = {buffered->payload.get(), packet.payload.size()};
  units_ += buffered->units;
  packets_.insert(at, std::move(buffered));
  return true;
}

std::unique_ptr<BufferedPacket> ReorderBuffer::take_first() {
  auto packet = std::move(packets_[first_++]);
  units_ -= packet->units;
  // With repeated losses the buffer is never empty; its memory must not grow then.
  if (2 * first_ >= packets_.size()) {
    packets_.erase(packets_.begin(), packets_.begin() + static_cast<ptrdiff_t>(first_));
    first_ = 0;
  }
  return packet;
}

void ReorderBuffer::clear() {
  while (!empty()) release(take_first());
  packets_.shrink_to_fit();
}

}  // namespace verbena::core

// ReorderBuffer: packets that were received behind a gap. A responder buffers requests, a requester
// responses; both remove them in PSN order when the gap is filled. No memory is allocated without a
// loss, and its size is limited for each queue pair and, by the pool, for each engine.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "wire/packet.h"

namespace verbena::core {

// A packet with a copy of its payload.
struct BufferedPacket {
  static constexpr size_t kMaxPayload = 4096;
  // Memory is counted in units of this many payload bytes: one for a packet of an ordinary Ethernet
  // link.
  static constexpr size_t kUnitBytes = 1024;

  explicit BufferedPacket(size_t payload_units)
      : units(payload_units),
        payload(std::make_unique_for_overwrite<std::byte[]>(payload_units * kUnitBytes)) {}

  wire::Packet packet;
  size_t units;
  std::unique_ptr<std::byte[]> payload;
};

// The memory for buffered packets of all queue pairs of an engine.
class PacketPool {
 public:
  static constexpr size_t kMaxInUse = 32 * 1024;  // units: 38 MiB with the packets' headers
  static constexpr size_t kMaxSpare = 512;        // packets

  // Null if too many are in use.
  std::unique_ptr<BufferedPacket> allocate(size_t payload_bytes);
  void release(std::unique_ptr<BufferedPacket> packet);
  size_t in_use() const { return in_use_; }

 private:
  std::vector<std::unique_ptr<BufferedPacket>> spare_;
  size_t in_use_ = 0;  // units
};

class ReorderBuffer {
 public:
  // Packets further ahead of the missing one are not buffered: the packets of 10 ms at 6 Gb/s.
  static constexpr int32_t kReach = 8192;
  static constexpr size_t kMaxBuffered = 4096;  // units
  // If half of the pool is in use: a few queue pairs must not use up the pool.
  static constexpr size_t kMaxBufferedWhenScarce = 512;

  explicit ReorderBuffer(PacketPool& pool) : pool_(pool) {}
  ~ReorderBuffer() { clear(); }
  ReorderBuffer(const ReorderBuffer&) = delete;
  ReorderBuffer& operator=(const ReorderBuffer&) = delete;

  bool empty() const { return first_ == packets_.size(); }
  size_t size() const { return packets_.size() - first_; }
  size_t slots() const { return packets_.size(); }  // with those of packets already removed
  // The PSN of the i-th, in PSN order.
  wire::Psn psn(size_t i) const { return packets_[first_ + i]->packet.bth.psn; }

  // Buffers a copy of a packet ahead of `missing`, as are all others here, by less than `reach`.
  // False if that is not possible; true if the packet is buffered already.
  bool put(wire::Psn missing, const wire::Packet& packet, int32_t reach = kReach);
  // Removes the first packet; the caller passes it to release().
  std::unique_ptr<BufferedPacket> take_first();
  void release(std::unique_ptr<BufferedPacket> packet) { pool_.release(std::move(packet)); }
  void clear();

 private:
  PacketPool& pool_;
  std::vector<std::unique_ptr<BufferedPacket>> packets_;  // from first_ on, in PSN order
  size_t first_ = 0;
  size_t units_ = 0;
};

}  // namespace verbena::core

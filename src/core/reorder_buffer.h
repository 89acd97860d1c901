// ReorderBuffer: packets that came before one that is missing, kept until it is there. A responder
// keeps requests, a requester answers; both then take them in PSN order, as if nothing had been
// lost. Nothing is allocated while nothing is lost, and what may be allocated has limits: per queue
// pair and, by the pool, per engine.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "wire/packet.h"

namespace verbena::core {

// A packet with its payload, independent of whatever carried it.
struct BufferedPacket {
  static constexpr size_t kMaxPayload = 4096;
  wire::Packet packet;
  std::array<std::byte, kMaxPayload> payload;
};

// Where all queue pairs of an engine get the memory for packets that they hold.
class PacketPool {
 public:
  static constexpr size_t kMaxInUse = 4096;  // 17 MiB
  static constexpr size_t kMaxSpare = 128;

  // Null when too many are in use.
  std::unique_ptr<BufferedPacket> allocate();
  void release(std::unique_ptr<BufferedPacket> packet);
  size_t in_use() const { return in_use_; }

 private:
  std::vector<std::unique_ptr<BufferedPacket>> spare_;
  size_t in_use_ = 0;
};

class ReorderBuffer {
 public:
  // Packets further ahead of the missing one than this are not kept.
  static constexpr int32_t kReach = 1024;
  static constexpr size_t kMaxBuffered = 512;
  // Where half of the pool is in use: a few must not take all that the others need.
  static constexpr size_t kMaxBufferedWhenScarce = 64;

  explicit ReorderBuffer(PacketPool& pool) : pool_(pool) {}
  ~ReorderBuffer() { clear(); }
  ReorderBuffer(const ReorderBuffer&) = delete;
  ReorderBuffer& operator=(const ReorderBuffer&) = delete;

  bool empty() const { return first_ == packets_.size(); }
  size_t size() const { return packets_.size() - first_; }
  size_t slots() const {
    return packets_.size();
  }  // places in memory, those already taken included
  // The PSN of the i-th, in PSN order.
  wire::Psn psn(size_t i) const { return packets_[first_ + i]->packet.bth.psn; }

  // Keeps a copy of a packet that is ahead of `missing`, as all others here. False if it cannot be
  // kept; true if it was there already.
  bool put(wire::Psn missing, const wire::Packet& packet);
  // Takes the first one out; it goes to release() afterwards.
  std::unique_ptr<BufferedPacket> take_first();
  void release(std::unique_ptr<BufferedPacket> packet) { pool_.release(std::move(packet)); }
  void clear();

 private:
  PacketPool& pool_;
  std::vector<std::unique_ptr<BufferedPacket>> packets_;  // from first_ on, in PSN order
  size_t first_ = 0;
};

}  // namespace verbena::core

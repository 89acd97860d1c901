// ZeroCopyRing: memory whose pages the kernel sends without copying them.
//
// The kernel does not report when it has sent a page. So each lane of a peer has a ring of its own,
// several times larger than the congestion window (TxPacket::in_window): when a position is reused,
// the packet that was sent from it has been acknowledged, or received by the peer that requested
// it. If a packet of an abandoned queue pair is still queued in the kernel, its ICRC no longer
// matches, and the new content is for the same lane.
#pragma once

#include <cstddef>
#include <cstdint>

namespace verbena::datapath {

class ZeroCopyRing {
 public:
  static constexpr size_t kBytes = 4u << 20;  // huge pages, if available

  ZeroCopyRing();
  ~ZeroCopyRing();
  ZeroCopyRing(const ZeroCopyRing&) = delete;
  ZeroCopyRing& operator=(const ZeroCopyRing&) = delete;

  bool valid() const { return base_ != nullptr; }
  // Returns the start of a page, followed by at least `max_bytes` bytes of the ring.
  std::byte* begin_batch(size_t max_bytes);
  // The end of the bytes used last.
  const std::byte* end() const { return base_ + next_; }
  // Advances the end.
  void use(size_t bytes) { next_ += bytes; }

 private:
  std::byte* base_ = nullptr;
  size_t next_ = 0;
};

}  // namespace verbena::datapath

// ReceiveRing: positions of the peer's bytes in the receive ring, and the times at which to
// announce free buffers and receives to the peer. It handles positions only, not memory.
//
// The ring has two halves. One half at a time is announced to the peer, which fills it from front
// to back before it uses the next. So the stream has no gaps in the ring. A half is announced again
// when the application has read it.
//
// Credits count receives. Each message consumes a receive of the queue pair; its credit is returned
// as soon as the receive is posted again, even if the bytes are unread, because the halves alone
// limit the bytes. Updates are batched: half a ring, or half a receive queue.
#pragma once

#include <algorithm>
#include <cstdint>

namespace verbena::rsocket {

class ReceiveRing {
 public:
  // The connection data announces the first half.
  ReceiveRing(uint32_t half_bytes, uint16_t receives)
      : half_(half_bytes),
        announced_(half_bytes),
        receives_(receives),
        due_(receives / 2u & 0xffff) {}

  uint64_t capacity() const { return uint64_t{half_} * 2; }
  uint32_t half_bytes() const { return half_; }

  // --- the peer writes --------------------------------------------------------------------------
  // The peer has written `bytes` more. Returns false if that exceeds the announced space.
  [[nodiscard]] bool on_data(uint32_t bytes) {
    if (bytes > announced_ - written_) return false;
    written_ += bytes;
    ++reposted_;
    return true;
  }

  // --- the application reads --------------------------------------------------------------------
  uint64_t readable() const { return written_ - read_; }
  // The contiguous bytes that begin `skip` bytes after the read position.
  struct Range {
    uint64_t offset;
    uint64_t length;
  };
  Range range(uint64_t skip = 0) const {
    const uint64_t offset = (read_ + skip) % capacity();
    return {offset, std::min(readable() - skip, capacity() - offset)};
  }
  void consume(uint64_t bytes) { read_ += bytes; }

  // --- updates for the peer ---------------------------------------------------------------------
  bool half_free() const { return announced_ - read_ <= half_; }
  bool update_due() const { return half_free() || static_cast<int16_t>(reposted_ - due_) >= 0; }
  // The limit for the peer's count of messages.
  uint16_t credit_limit() {
    due_ = static_cast<uint16_t>(reposted_ + receives_ / 2u);
    return static_cast<uint16_t>(reposted_ + receives_);
  }
  // Returns the offset of the free half, which now belongs to the peer.
  uint64_t announce_half() {
    const uint64_t offset = announced_ % capacity();
    announced_ += half_;
    return offset;
  }

 private:
  uint32_t half_;
  uint64_t announced_;    // total bytes that the peer may write
  uint64_t written_ = 0;  // total bytes that it has written
  uint64_t read_ = 0;     // total bytes that the application has read
  uint16_t receives_;
  uint16_t reposted_ = 0;  // data messages whose receive is posted again; modulo 2^16
  uint16_t due_;           // the count at which an update is due
};

}  // namespace verbena::rsocket

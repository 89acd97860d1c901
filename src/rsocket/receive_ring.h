// ReceiveRing: where the peer's bytes lie, and when to tell it about free buffers and free
// receives. Pure bookkeeping: it knows positions, not memory.
//
// The ring has two halves. The peer is told one half at a time and fills it from front to back
// before it goes on with the next, so that the stream lies in the ring without gaps. A half is told
// again once the application has read it.
//
// Credits count receives: each message takes one from the queue pair, and each is given back as
// soon as it is posted again, read or not, because bytes are held back by the halves alone. News
// are batched: half a ring, or half a receive queue.
#pragma once

#include <algorithm>
#include <cstdint>

namespace verbena::rsocket {

class ReceiveRing {
 public:
  // The first half counts as told: the connection data did it.
  ReceiveRing(uint32_t half_bytes, uint16_t receives)
      : half_(half_bytes), told_(half_bytes), receives_(receives), due_(receives / 2u & 0xffff) {}

  uint64_t capacity() const { return uint64_t{half_} * 2; }
  uint32_t half_bytes() const { return half_; }

  // --- the peer writes --------------------------------------------------------------------------
  // A message says that `bytes` more were written. False: more than the peer had room for.
  [[nodiscard]] bool on_data(uint32_t bytes) {
    if (bytes > told_ - written_) return false;
    written_ += bytes;
    ++posted_again_;
    return true;
  }

  // --- the application reads --------------------------------------------------------------------
  uint64_t readable() const { return written_ - read_; }
  // Bytes that lie together `skip` bytes behind the reading position, and where.
  struct Piece {
    uint64_t offset;
    uint64_t length;
  };
  Piece piece(uint64_t skip = 0) const {
    const uint64_t offset = (read_ + skip) % capacity();
    return {offset, std::min(readable() - skip, capacity() - offset)};
  }
  void consume(uint64_t bytes) { read_ += bytes; }

  // --- what the peer is told --------------------------------------------------------------------
  bool half_free() const { return told_ - read_ <= half_; }
  bool news_due() const { return half_free() || static_cast<int16_t>(posted_again_ - due_) >= 0; }
  // The limit for the peer's count of messages.
  uint16_t credit_limit() {
    due_ = static_cast<uint16_t>(posted_again_ + receives_ / 2u);
    return static_cast<uint16_t>(posted_again_ + receives_);
  }
  // Where the free half begins; from now on it is the peer's.
  uint64_t tell_half() {
    const uint64_t offset = told_ % capacity();
    told_ += half_;
    return offset;
  }

 private:
  uint32_t half_;
  uint64_t told_;         // bytes the peer may have written in all
  uint64_t written_ = 0;  // that it has written
  uint64_t read_ = 0;     // that the application took
  uint16_t receives_;
  uint16_t posted_again_ = 0;  // data messages whose receive is back; on the circle of 16 bits
  uint16_t due_;               // at this count it is time for news
};

}  // namespace verbena::rsocket

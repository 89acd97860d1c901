// SendWindow: what a stream may send right now, and what becomes free when it completes. Pure
// bookkeeping: it knows positions in the send ring, not memory.
//
// Four things limit a write with data: a place in the send queue, bytes in the send ring, a credit,
// and room in the peer's current buffer. Few places of the send queue are set aside for control
// messages, so that they can always go.
//
// Only some writes ask for a completion; its work request id tells how much it sets free, together
// with those before it. What is not asked for is always less than a quarter of ring and queue, so
// nobody waits for a completion that does not come.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "rsocket/wire.h"

namespace verbena::rsocket {

class SendWindow {
 public:
  static constexpr uint32_t kControlSlots = 4;
  // Less room than this is not worth a write.
  static constexpr uint32_t kLowWater = 2048;
  static constexpr uint32_t kMinRing = 2 * kLowWater;
  // Of a long send, the first bytes are on their way while the next are copied. Shorter writes take
  // more packets that are alone of their size, and each its own system call on the wire.
  static constexpr uint32_t kMaxWrite = 64 * 1024;

  SendWindow(uint16_t queue_slots, uint32_t ring_bytes, uint32_t inline_bytes)
      : slots_(queue_slots - kControlSlots),
        free_slots_(slots_),
        ring_(ring_bytes),
        free_bytes_(ring_bytes),
        inline_(inline_bytes) {}

  // --- from the peer ----------------------------------------------------------------------------
  void connected(uint16_t credits, const RemoteBuffer& first) {
    peer_receives_ = limit_ = credits;
    buffers_[0] = first;
    buffer_count_ = first.length ? 1 : 0;
  }
  // False: it grants more than its receive queue can hold.
  [[nodiscard]] bool on_credit_limit(uint16_t limit) {
    if (static_cast<uint16_t>(limit - sent_) > peer_receives_) return false;
    limit_ = limit;
    return true;
  }
  // False: there is no room for another, or it is none.
  [[nodiscard]] bool on_buffer(const RemoteBuffer& buffer) {
    if (buffer_count_ == buffers_.size() || buffer.length == 0) return false;
    buffers_[(first_buffer_ + buffer_count_++) % buffers_.size()] = buffer;
    return true;
  }

  // --- sending ----------------------------------------------------------------------------------
  bool can_write() const { return free_slots_ > 0 && free_bytes_ >= kLowWater; }
  bool can_send() const { return can_write() && sent_ != limit_ && buffer_count_ > 0; }
  // What poll() means by writable: a short send goes as a whole. A peer that has read everything
  // has told both of its halves, so this comes true again.
  bool writable() const {
    if (!can_send()) return false;
    return buffer_count_ == buffers_.size() || buffers_[first_buffer_].length >= kLowWater;
  }

  // One write: where it goes, where in the ring its bytes are to be put, and its work request id.
  struct Write {
    uint64_t remote_address = 0;
    uint32_t remote_key = 0;
    uint32_t length = 0;
    uint32_t ring_offset = 0;    // may run over the end: the rest is at the beginning
    bool inlined = false;        // then it takes no bytes of the ring
    uint64_t completion_id = 0;  // 0: asks for no completion
  };

  // Data, as much of `want` as may go at once. Needs can_send().
  Write take_data(uint64_t want) {
    RemoteBuffer& buffer = buffers_[first_buffer_];
    Write write = take(std::min<uint64_t>(want, buffer.length));
    write.remote_address = buffer.address;
    write.remote_key = buffer.key;
    buffer.address += write.length;
    buffer.length -= write.length;
    if (buffer.length == 0) {
      first_buffer_ = (first_buffer_ + 1) % buffers_.size();
      --buffer_count_;
    }
    ++sent_;
    return write;
  }

  // Bytes for a place that the caller names; they take no credit. Needs can_write().
  Write take_direct(uint64_t want, uint64_t remote_address, uint32_t remote_key) {
    Write write = take(want);
    write.remote_address = remote_address;
    write.remote_key = remote_key;
    return write;
  }

  // --- completions ------------------------------------------------------------------------------
  void on_completion(uint64_t completion_id) {
    free_slots_ += static_cast<uint32_t>(completion_id >> 32 & 0xffff);
    free_bytes_ += static_cast<uint32_t>(completion_id);
  }

  bool control_free() const { return control_in_flight_ < kControlSlots; }
  // Which of the places for control messages.
  uint32_t take_control() {
    ++control_in_flight_;
    return control_count_++ % kControlSlots;
  }
  void on_control_completion() { --control_in_flight_; }
  bool control_idle() const { return control_in_flight_ == 0; }

 private:
  Write take(uint64_t want) {
    const auto length =
        static_cast<uint32_t>(std::min<uint64_t>({want, kMaxWrite, uint64_t{free_bytes_}}));
    Write write{.length = length, .ring_offset = ring_end_, .inlined = length <= inline_};
    --free_slots_;
    ++unasked_slots_;
    if (!write.inlined) {
      free_bytes_ -= length;
      unasked_bytes_ += length;
      ring_end_ = static_cast<uint32_t>((uint64_t{ring_end_} + length) % ring_);
    }
    if (unasked_slots_ * 4 >= slots_ || unasked_bytes_ >= ring_ / 4) {
      write.completion_id = uint64_t{unasked_slots_} << 32 | unasked_bytes_;
      unasked_slots_ = unasked_bytes_ = 0;
    }
    return write;
  }

  uint32_t slots_;
  uint32_t free_slots_;
  uint32_t ring_;
  uint32_t free_bytes_;
  uint32_t inline_;
  uint32_t ring_end_ = 0;
  uint32_t unasked_slots_ = 0;
  uint32_t unasked_bytes_ = 0;
  uint32_t control_in_flight_ = 0;
  uint32_t control_count_ = 0;

  uint16_t sent_ = 0;   // data messages, on the circle of 16 bits
  uint16_t limit_ = 0;  // the count at which to stop
  uint16_t peer_receives_ = 0;
  std::array<RemoteBuffer, 2> buffers_;  // of the peer, in the order in which to fill them
  size_t first_buffer_ = 0;
  size_t buffer_count_ = 0;
};

}  // namespace verbena::rsocket

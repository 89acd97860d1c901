// SendWindow: computes what a stream may send now, and what a completion frees. It handles
// positions in the send ring only, not memory.
//
// Four things limit a write with data: slots of the send queue, bytes in the send ring, credits,
// and space in the peer's current buffer. A few slots of the send queue are reserved for control
// messages, so that they can always be sent.
//
// Only some writes are signalled. The work request ID of a signalled write encodes what its
// completion frees, including the unsignalled writes before it. Unsignalled writes always use less
// than a quarter of ring and queue, so a waiting sender always has an outstanding signalled write.
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
  // A write with less free space than this is not worthwhile.
  static constexpr uint32_t kLowWater = 2048;
  static constexpr uint32_t kMinRing = 2 * kLowWater;
  // Limits a write so that the first bytes of a long send leave while the next are copied. Shorter
  // writes would cause more packets of odd sizes, each with its own system call over UDP.
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
  // Returns false if it grants more than the peer's receive queue holds.
  [[nodiscard]] bool on_credit_limit(uint16_t limit) {
    if (static_cast<uint16_t>(limit - sent_) > peer_receives_) return false;
    limit_ = limit;
    return true;
  }
  // Returns false if there is no free entry, or if the buffer is empty.
  [[nodiscard]] bool on_buffer(const RemoteBuffer& buffer) {
    if (buffer_count_ == buffers_.size() || buffer.length == 0) return false;
    buffers_[(first_buffer_ + buffer_count_++) % buffers_.size()] = buffer;
    return true;
  }

  // --- sending ----------------------------------------------------------------------------------
  bool can_write() const { return free_slots_ > 0 && free_bytes_ >= kLowWater; }
  bool can_send() const { return can_write() && sent_ != limit_ && buffer_count_ > 0; }
  // The meaning of POLLOUT: a short send fits completely. A peer that has read everything has
  // announced both halves, so this becomes true again.
  bool writable() const {
    if (!can_send()) return false;
    return buffer_count_ == buffers_.size() || buffers_[first_buffer_].length >= kLowWater;
  }

  // One write: its destination, its bytes' position in the ring, and its work request ID.
  struct Write {
    uint64_t remote_address = 0;
    uint32_t remote_key = 0;
    uint32_t length = 0;
    uint32_t ring_offset = 0;    // the bytes may wrap to the beginning of the ring
    bool inlined = false;        // uses no bytes of the ring
    uint64_t completion_id = 0;  // 0: not signalled
  };

  // A data write of as much of `want` as possible. Requires can_send().
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

  // A write to an address that the caller names; it uses no credit. Requires can_write().
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
  // Returns the slot for a control message.
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
    ++unsignalled_slots_;
    if (!write.inlined) {
      free_bytes_ -= length;
      unsignalled_bytes_ += length;
      ring_end_ = static_cast<uint32_t>((uint64_t{ring_end_} + length) % ring_);
    }
    if (unsignalled_slots_ * 4 >= slots_ || unsignalled_bytes_ >= ring_ / 4) {
      write.completion_id = uint64_t{unsignalled_slots_} << 32 | unsignalled_bytes_;
      unsignalled_slots_ = unsignalled_bytes_ = 0;
    }
    return write;
  }

  uint32_t slots_;
  uint32_t free_slots_;
  uint32_t ring_;
  uint32_t free_bytes_;
  uint32_t inline_;
  uint32_t ring_end_ = 0;
  uint32_t unsignalled_slots_ = 0;
  uint32_t unsignalled_bytes_ = 0;
  uint32_t control_in_flight_ = 0;
  uint32_t control_count_ = 0;

  uint16_t sent_ = 0;   // data messages, modulo 2^16
  uint16_t limit_ = 0;  // the count at which to stop
  uint16_t peer_receives_ = 0;
  std::array<RemoteBuffer, 2> buffers_;  // of the peer, in the order of use
  size_t first_buffer_ = 0;
  size_t buffer_count_ = 0;
};

}  // namespace verbena::rsocket

// One direction of a link: a ring of records in shared memory with one writer and one reader, each
// in a process of its own. The other process may be faulty or malicious: its data is copied and
// checked before use, and each side keeps its position in private memory.
//
// A record starts with a word that contains its kind and sizes. The writer publishes several
// records at once: it clears the word after the last one, then stores the first record's word,
// which it had held back. So the ring needs no shared tail: the reader polls the next word until it
// is not zero. The next published record begins on a new cache line, which the reader polls. A
// short message followed by an ACK costs one cache line, and one miss.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>

#include "base/bytes.h"
#include "base/check.h"
#include "datapath/copy_choice.h"
#include "datapath/shm/direct_copy.h"
#include "wire/packet_io.h"

namespace verbena::datapath {

inline constexpr size_t kLineBytes = 64;
inline constexpr size_t kWordBytes = 8;
// The distance of the prefetch while records follow each other.
inline constexpr size_t kAheadBytes = 4 * kLineBytes;
// The bytes of a record that the reader copies at once: the headers, and a short payload.
inline constexpr size_t kFrontBytes = 120;

constexpr uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) & ~(to - 1); }

// The owner of the published, unread records: the reader while it reads a batch, the writer while
// it reclaims some. Appending records requires no ownership.
enum class RingOwner : uint32_t { None = 0, Reader = 1, Writer = 2 };

// The part of a ring's memory that is not records. Initially zero.
struct RingControl {
  alignas(kLineBytes) std::atomic<uint64_t> freed{0};   // by the reader: its position
  std::atomic<RingOwner> owner{RingOwner::None};        // of the unread records
  alignas(kLineBytes) std::atomic<uint32_t> asleep{0};  // by the reader: it requests a wake-up
  alignas(kLineBytes) CopyControl copy;  // direct copies by the writer in the reader's memory
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

enum class RecordKind : uint8_t {
  Nothing = 0,
  Packet = 1,
  Addresses = 2,
  NextLine = 3,
  Ack = 4  // consists of the word only
};

// The word before a record.
struct RecordWord {
  RecordKind kind = RecordKind::Nothing;
  uint8_t address = 0;            // number of the packet's, or the announced, addresses
  uint8_t header_bytes = 0;       // follow the word
  uint8_t payload_size_log2 = 0;  // of wire::TxPacket::packet_payload_bytes; 0: none
  uint32_t body_bytes = 0;        // follow the headers; on the next cache line unless is_small()
  uint64_t ack_bits = 0;          // Ack: QPN and PSN, 48 bits in place of the sizes

  constexpr uint64_t pack() const {
    return static_cast<uint64_t>(kind) | uint64_t{address} << 8 | uint64_t{header_bytes} << 16 |
           uint64_t{payload_size_log2} << 24 | uint64_t{body_bytes} << 32 | ack_bits << 16;
  }
  static constexpr RecordWord unpack(uint64_t word) {
    const auto kind = static_cast<RecordKind>(word & 0xFF);
    const auto address = static_cast<uint8_t>(word >> 8);
    if (kind == RecordKind::Ack) {
      return {.kind = kind, .address = address, .ack_bits = word >> 16};
    }
    return {.kind = kind,
            .address = address,
            .header_bytes = static_cast<uint8_t>(word >> 16),
            .payload_size_log2 = static_cast<uint8_t>(word >> 24),
            .body_bytes = static_cast<uint32_t>(word >> 32)};
  }
  static constexpr uint8_t kMinPayloadSizeLog2 = 8;  // no path MTU is below 256
  constexpr bool is_valid() const {
    return (kind == RecordKind::Packet || kind == RecordKind::Addresses ||
            kind == RecordKind::Ack) &&
           header_bytes <= kFrontBytes && body_bytes <= wire::kMaxPayloadBytes &&
           (payload_size_log2 == 0 || (payload_size_log2 >= kMinPayloadSizeLog2 &&
                                       payload_size_log2 < std::bit_width(wire::kMaxPayloadBytes)));
  }

  bool is_small() const { return header_bytes + body_bytes <= kFrontBytes; }
  // The positions of the body and of the next record, for a record at `position`.
  uint64_t body_at(uint64_t position) const {
    const uint64_t behind = position + kWordBytes + header_bytes;
    return is_small() ? behind : round_up(behind, kLineBytes);
  }
  uint64_t end(uint64_t position) const {
    return round_up(body_at(position) + body_bytes, kWordBytes);
  }
};
// The word that makes the reader jump to the next cache line.
inline constexpr uint64_t kNextLine = RecordWord{.kind = RecordKind::NextLine}.pack();
inline constexpr size_t kLargestRecord =
    kWordBytes + kFrontBytes + kLineBytes + wire::kMaxPayloadBytes;

// The memory of a ring: `bytes`, a multiple of the page size, mapped twice in a row.
struct RingMemory {
  RingControl* control = nullptr;
  std::byte* base = nullptr;
  size_t bytes = 0;

  std::byte* at(uint64_t position) const { return base + (position & (bytes - 1)); }
  std::atomic_ref<uint64_t> word(uint64_t position) const {
    return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(at(position)));
  }
};

// Prefetches a line for writing, so that the later store does not wait for it.
inline void expect_store(std::byte* at) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" ::"m"(*at));
#else
  __builtin_prefetch(at, 1);
#endif
}

class RingWriter {
 public:
  explicit RingWriter(const RingMemory& memory) : memory_(memory) {}

  // Whether this many bytes of records fit now.
  bool has_room(size_t bytes) { return fits(position_ + bytes); }
  // Writes a record; the body is padded to the word's size. The record is published by the next
  // publish(), or earlier. False: the ring lacks the space now.
  [[nodiscard]] bool write(RecordWord word, const std::byte* header,
                           std::span<const std::span<const std::byte>> body);
  // Writes a record that consists of a word.
  [[nodiscard]] bool write(RecordWord word);
  // Publishes all records but wakes no reader; publish() must follow.
  void publish_early();
  // Publishes all records. True: the reader requested a wake-up, which the caller must send.
  bool publish();
  bool is_publish_due() const { return publish_due_; }
  // Removes the unread records for which `matches` is true, if `confirm` then returns true. Changes
  // nothing otherwise, or while the reader reads a batch. publish() must follow.
  bool reclaim(
      const std::function<bool(const RecordWord& word, std::span<const std::byte> header)>& matches,
      const std::function<bool()>& confirm);
  // The reader does not poll until it is woken.
  bool reader_sleeps() const {
    return memory_.control->asleep.load(std::memory_order_relaxed) != 0;
  }
  // The reader's position is invalid. The writer accepts no more records.
  bool is_corrupted() const { return is_corrupted_; }

 private:
  struct Unread;
  bool fits(uint64_t end) {
    if (end + kEndBytes - freed_ <= memory_.bytes) [[likely]]
      return !is_corrupted_;
    return load_freed() && end + kEndBytes - freed_ <= memory_.bytes;
  }
  bool load_freed();
  bool copy_unread(Unread& unread);
  void rewrite(const Unread& unread);
  void publish_held();
  void append(uint64_t word, uint64_t end);

  // Space after the last record: a NextLine word, the first word of the next line, and that of the
  // line after it, which is cleared in advance.
  static constexpr size_t kEndBytes = 3 * kLineBytes;
  // Records of this size are published at once, so that the reader can begin to copy.
  static constexpr size_t kPublishBytes = 4096;
  // Larger bodies may be written past the writer's caches. For smaller ones the detour through
  // memory takes longer than fetching the lines from the other core's cache.
  static constexpr size_t kLargeCopy = 4096;
  // The payload is padded to a multiple of four bytes.
  static constexpr size_t kMaxPadding = 3;

  RingMemory memory_;
  uint64_t position_ = 0;     // of the next record
  uint64_t freed_ = 0;        // as last loaded
  uint64_t cleared_at_ = 0;   // position of a word that is already 0: the end of a one-line record
  uint64_t held_at_ = 0;      // the first unpublished record
  uint64_t held_word_ = 0;    // its word; 0: all are published
  bool publish_due_ = false;  // records were written since the last publish()
  bool is_corrupted_ = false;
  CopyChoice large_copies_;
};

class RingReader {
 public:
  explicit RingReader(const RingMemory& memory) : memory_(memory) {}

  struct Record {
    RecordWord word;
    const std::byte* front;  // the headers
    const std::byte* body;
  };
  // Returns the next published record. Until release() it stays valid, and the writer reclaims
  // nothing.
  bool next(Record& record);
  bool empty() const;
  // Polls this many times for a next record.
  bool poll(uint32_t times) const;
  // The records of next() may be overwritten.
  void release();
  // The writer wrote an invalid record. next() returns no more records.
  bool is_corrupted() const { return is_corrupted_; }

  // Requests a wake-up for the next record. Check empty() after this call, not before.
  void sleep() { memory_.control->asleep.store(1, std::memory_order_seq_cst); }
  // True: the writer took the request; it has sent or is sending the wake-up.
  bool wake() { return memory_.control->asleep.exchange(0, std::memory_order_seq_cst) == 0; }

 private:
  static constexpr uint32_t kRun = 4;  // records in a row that start the prefetch

  bool acquire();

  RingMemory memory_;
  uint64_t position_ = 0;
  uint64_t released_ = 0;
  bool owns_ = false;
  bool is_corrupted_ = false;
  // A poll of the next line is a cache miss, which is wasted if no more records were published. The
  // previous polls predict whether there are more.
  bool runs_on_ = false;
  bool at_line_start_ = false;  // the line was not polled yet
  uint32_t run_ = 0;            // records in a row
};

// The functions below run for every record and are inline.

// Called when the bytes after the word are written.
inline void RingWriter::append(uint64_t word, uint64_t end) {
  if (held_word_ == 0) {
    held_at_ = position_;
    held_word_ = word;
  } else {
    // The reader does not reach this word before the held one is stored.
    memory_.word(position_).store(word, std::memory_order_relaxed);
    expect_store(memory_.at(end + kAheadBytes));
  }
  position_ = end;
  publish_due_ = true;
  if (end - held_at_ >= kPublishBytes) [[unlikely]]
    publish_held();
}

inline void RingWriter::publish_held() {
  if (held_word_ == 0) return;
  if (position_ != cleared_at_) memory_.word(position_).store(0, std::memory_order_relaxed);
  memory_.word(held_at_).store(held_word_, std::memory_order_release);
  held_word_ = 0;
}

inline void RingWriter::publish_early() {
  if (held_word_ == 0) return;
  const uint64_t line = round_up(position_, kLineBytes);
  if (line != position_) {
    memory_.word(position_).store(kNextLine, std::memory_order_relaxed);
    position_ = line;
  }
  publish_held();
}

[[gnu::always_inline]] inline bool RingWriter::write(
    RecordWord word, const std::byte* header, std::span<const std::span<const std::byte>> body) {
  const uint64_t end = word.end(position_);
  if (!fits(end)) [[unlikely]]
    return false;
  std::byte* const at = memory_.at(position_);
  std::byte* to = at + (word.body_at(position_) - position_);
  copy_words(at + kWordBytes, header, word.header_bytes);
  size_t left = word.body_bytes;
  for (const auto part : body) {
    VERBENA_CHECK(part.size() <= left);
    left -= part.size();
    if (word.is_small()) {
      copy_short(to, part.data(), part.size());
    } else if (part.size() >= kLargeCopy) {
      large_copies_.copy(to, part.data(), part.size());
    } else {
      std::memcpy(to, part.data(), part.size());
    }
    to += part.size();
  }
  VERBENA_CHECK(left <= kMaxPadding);
  // Not a loop: the compiler would call memset.
  if ((left & 2) != 0) {
    std::fill_n(to, 2, std::byte{});
    to += 2;
  }
  if ((left & 1) != 0) *to = std::byte{};
  append(word.pack(), end);
  return true;
}

[[gnu::always_inline]] inline bool RingWriter::write(RecordWord word) {
  VERBENA_CHECK(word.header_bytes == 0 && word.body_bytes == 0);
  const uint64_t end = position_ + kWordBytes;
  if (!fits(end)) [[unlikely]]
    return false;
  append(word.pack(), end);
  return true;
}

[[gnu::always_inline]] inline bool RingReader::next(Record& record) {
  uint64_t word = memory_.word(position_).load(std::memory_order_acquire);
  if (word != 0 && !owns_) {
    if (!acquire()) return false;
    word = memory_.word(position_).load(std::memory_order_acquire);  // it may have been reclaimed
  }
  if (at_line_start_) {
    at_line_start_ = false;
    runs_on_ = word != 0;
  }
  if (word == kNextLine) {
    position_ = round_up(position_ + 1, kLineBytes);
    at_line_start_ = !runs_on_;
    if (at_line_start_) return false;
    word = memory_.word(position_).load(std::memory_order_acquire);
    runs_on_ = word != 0;
  }
  if (word == 0 || is_corrupted_) {
    run_ = 0;
    return false;
  }
  record.word = RecordWord::unpack(word);
  // A correct writer is never a whole ring ahead of the released position.
  const uint64_t end = record.word.end(position_);
  if (!record.word.is_valid() || end - released_ >= memory_.bytes) [[unlikely]] {
    is_corrupted_ = true;
    return false;
  }
  record.front = memory_.at(position_) + kWordBytes;
  record.body = memory_.at(position_) + (record.word.body_at(position_) - position_);
  position_ = end;
  if (++run_ >= kRun) __builtin_prefetch(memory_.at(end + kAheadBytes));
  return true;
}

}  // namespace verbena::datapath

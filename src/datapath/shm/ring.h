// One direction of a link: a ring of records in shared memory with one writer and one reader, each
// in a process of its own. The other side may be broken or worse: nothing it writes is used before
// it was copied out and checked, and positions are private to each side.
//
// A record starts with a word that says what it is. What is shown together lies together: the
// writer clears the word behind it, then stores the first record's word, which it had held back. So
// the reader needs no shared tail: it looks at the next word until that is not zero. What comes
// next begins on a cache line of its own, where the reader waits for it. A short message with an
// acknowledgement behind it is one cache line, and one miss.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>

#include "base/bytes.h"
#include "base/check.h"
#include "base/past_caches.h"
#include "datapath/shm/direct_copy.h"
#include "wire/packet_io.h"

namespace verbena::datapath {

inline constexpr size_t kLineBytes = 64;
inline constexpr size_t kWordBytes = 8;
// Where records follow each other, both sides fetch lines so far ahead.
inline constexpr size_t kAheadBytes = 4 * kLineBytes;
// What is copied out of the ring at once: headers always are, and with them short payload.
inline constexpr size_t kFrontBytes = 120;

constexpr uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) & ~(to - 1); }

// Whoever changes what is shown and not read owns it meanwhile: the reader while it reads a batch,
// the writer while it takes something back. To write what comes next needs no owner.
enum class RingOwner : uint32_t { None = 0, Reader = 1, Writer = 2 };

// The part of the segment that is not records. Zero is how both begin.
struct RingControl {
  alignas(kLineBytes) std::atomic<uint64_t> freed{0};   // by the reader: all before it is read
  std::atomic<RingOwner> owner{RingOwner::None};        // who is at work on what is not read
  alignas(kLineBytes) std::atomic<uint32_t> asleep{0};  // by the reader: it wants to be woken
  alignas(kLineBytes) CopyControl copy;                 // of the writer in the reader's memory
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

enum class RecordKind : uint8_t {
  Nothing = 0,
  Packet = 1,
  Addresses = 2,
  NextLine = 3,
  Ack = 4  // the word is all of it
};

// The word before a record.
struct RecordWord {
  RecordKind kind = RecordKind::Nothing;
  uint8_t address = 0;            // which pair of addresses: of the packet, or announced now
  uint8_t header_bytes = 0;       // behind the word
  uint8_t payload_size_log2 = 0;  // log2 of wire::TxPacket::packet_payload_bytes; 0: not ack_bits
  uint32_t body_bytes = 0;        // behind the headers; where both are no front, on the next line
  uint64_t ack_bits = 0;          // Ack: 48 bits in place of the sizes

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
  // Whether a writer writes such words.
  constexpr bool sane() const {
    return (kind == RecordKind::Packet || kind == RecordKind::Addresses ||
            kind == RecordKind::Ack) &&
           header_bytes <= kFrontBytes && body_bytes <= wire::kMaxPayloadBytes &&
           (payload_size_log2 == 0 || (payload_size_log2 >= kMinPayloadSizeLog2 &&
                                       payload_size_log2 < std::bit_width(wire::kMaxPayloadBytes)));
  }

  bool is_small() const { return header_bytes + body_bytes <= kFrontBytes; }
  // Of a record at `position`: where its body lies, and where the next one does.
  uint64_t body_at(uint64_t position) const {
    const uint64_t behind = position + kWordBytes + header_bytes;
    return is_small() ? behind : round_up(behind, kLineBytes);
  }
  uint64_t end(uint64_t position) const {
    return round_up(body_at(position) + body_bytes, kWordBytes);
  }
};
// The word that sends the reader to the next line.
inline constexpr uint64_t kNextLine = RecordWord{.kind = RecordKind::NextLine}.pack();
inline constexpr size_t kLargestRecord =
    kWordBytes + kFrontBytes + kLineBytes + wire::kMaxPayloadBytes;

// The memory of a ring: `bytes` of it, a multiple of the page size, mapped twice in a row.
struct RingMemory {
  RingControl* control = nullptr;
  std::byte* base = nullptr;
  size_t bytes = 0;

  std::byte* at(uint64_t position) const { return base + (position & (bytes - 1)); }
  std::atomic_ref<uint64_t> word(uint64_t position) const {
    return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(at(position)));
  }
};

// The writer will store there next; until then the line is better its own than the reader's.
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

  // Whether so many bytes of records fit now.
  bool has_room(size_t bytes) { return fits(position_ + bytes); }
  // Writes a record; what the body lacks of the word's bytes is padding. It shows with the next
  // publish(), or before. False: there is no room for it now.
  [[nodiscard]] bool write(RecordWord word, const std::byte* header,
                           std::span<const std::span<const std::byte>> body);
  // The same of a record that is a word.
  [[nodiscard]] bool write(RecordWord word);
  // Lets the reader see all that was written, if it looks. publish() comes later all the same.
  void publish_early();
  // Lets the reader see all that was written. True: the reader asked to be woken, by us alone.
  bool publish();
  bool is_publish_due() const { return publish_due_; }
  // Takes records back that were not read: those for which `mine` holds, if `wanted` then agrees.
  // Nothing changes otherwise, nor while the reader is at work on a batch. publish() comes next.
  bool reclaim(
      const std::function<bool(const RecordWord& word, std::span<const std::byte> header)>& mine,
      const std::function<bool()>& wanted);
  // Nobody looks until it is woken.
  bool reader_sleeps() const {
    return memory_.control->asleep.load(std::memory_order_relaxed) != 0;
  }
  // The reader claims to have read what was not written. Nothing fits any more.
  bool broken() const { return broken_; }

 private:
  struct Unread;
  bool fits(uint64_t end) {
    if (end + kEndBytes - freed_ <= memory_.bytes) [[likely]]
      return !broken_;
    return see_freed() && end + kEndBytes - freed_ <= memory_.bytes;
  }
  bool see_freed();
  bool look_at_unread(Unread& unread);
  void write_again(const Unread& unread);
  void publish_held();
  void append(uint64_t word, uint64_t end);

  // Behind the last record: a word that sends the reader to the next line, the one there, and the
  // one of the line that follows, which is cleared ahead of time.
  static constexpr size_t kEndBytes = 3 * kLineBytes;
  // So much is not held back to be shown together: the reader may begin to copy.
  static constexpr size_t kShowBytes = 4096;
  // From here on the lines of a body are not kept in the writer's caches: below, the way to memory
  // and back takes longer than asking the reader for its lines does.
  static constexpr size_t kPastCaches = 4096;
  // Behind payload, to whole words of four bytes.
  static constexpr size_t kMostPadding = 3;

  RingMemory memory_;
  uint64_t position_ = 0;     // of the next record
  uint64_t freed_ = 0;        // as last seen
  uint64_t cleared_at_ = 0;   // the word there is 0: where a record of one line would end
  uint64_t held_at_ = 0;      // the first record that does not show yet
  uint64_t held_word_ = 0;    // its word; 0: all show
  bool publish_due_ = false;  // written since the last publish()
  bool broken_ = false;
};

class RingReader {
 public:
  explicit RingReader(const RingMemory& memory) : memory_(memory) {}

  struct Record {
    RecordWord word;
    const std::byte* front;  // headers, beside the word
    const std::byte* body;
  };
  // The next one, if it shows. It stays, and the writer takes nothing back, until release().
  bool next(Record& record);
  bool empty() const;
  // Looks so many times whether there is a next one.
  bool await(uint32_t looks) const;
  // What next() gave so far may be overwritten.
  void release();
  // The writer wrote what is no record. There is no next() any more.
  bool broken() const { return broken_; }

  // Asks to be woken for what comes. Look whether it is empty afterwards, not before.
  void sleep() { memory_.control->asleep.store(1, std::memory_order_seq_cst); }
  // True: the writer took the request, and wakes or has woken us.
  bool wake() { return memory_.control->asleep.exchange(0, std::memory_order_seq_cst) == 0; }

 private:
  static constexpr uint32_t kRun = 4;  // so many make a row

  bool own();

  RingMemory memory_;
  uint64_t position_ = 0;
  uint64_t released_ = 0;
  bool owns_ = false;
  bool broken_ = false;
  // A look at the next line is a miss, for nothing if what was shown is all there is. Whether there
  // is more shows in what was found the last times.
  bool runs_on_ = false;
  bool at_line_start_ = false;  // did not look there yet
  uint32_t run_ = 0;            // records in a row
};

// What follows is done for every record, in place where packets are pushed and taken.

// What lies behind the word is written.
inline void RingWriter::append(uint64_t word, uint64_t end) {
  if (held_word_ == 0) {
    held_at_ = position_;
    held_word_ = word;
  } else {
    // Nobody gets there before the one that is held back.
    memory_.word(position_).store(word, std::memory_order_relaxed);
    expect_store(memory_.at(end + kAheadBytes));
  }
  position_ = end;
  publish_due_ = true;
  if (end - held_at_ >= kShowBytes) [[unlikely]]
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
    } else if (part.size() >= kPastCaches) {
      copy_past_caches(to, part.data(), part.size());
    } else {
      std::memcpy(to, part.data(), part.size());
    }
    to += part.size();
  }
  VERBENA_CHECK(left <= kMostPadding);
  while (left-- > 0) *to++ = std::byte{};
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
    if (!own()) return false;
    word = memory_.word(position_).load(std::memory_order_acquire);  // it may have been taken back
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
  if (word == 0 || broken_) {
    run_ = 0;
    return false;
  }
  record.word = RecordWord::unpack(word);
  // A writer never gets a whole ring ahead of what was released.
  const uint64_t end = record.word.end(position_);
  if (!record.word.sane() || end - released_ >= memory_.bytes) [[unlikely]] {
    broken_ = true;
    return false;
  }
  record.front = memory_.at(position_) + kWordBytes;
  record.body = memory_.at(position_) + (record.word.body_at(position_) - position_);
  position_ = end;
  if (++run_ >= kRun) __builtin_prefetch(memory_.at(end + kAheadBytes));
  return true;
}

}  // namespace verbena::datapath

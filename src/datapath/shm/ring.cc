// Writing, showing and reading records.
#include "datapath/shm/ring.h"

#include <cstring>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "base/past_caches.h"

namespace verbena::datapath {
namespace {

// So much is not held back to be shown together: the reader may begin to copy.
constexpr size_t kShowBytes = 4096;
// From here on the lines of a body are not kept in the writer's caches: below, the way to memory
// and back takes longer than asking the reader for its lines does.
constexpr size_t kPastCaches = 4096;
// Where records follow each other, both sides fetch lines so far ahead; the reader once it has
// found so many.
constexpr size_t kAheadBytes = 4 * kLineBytes;
constexpr uint32_t kRun = 4;

std::atomic_ref<uint64_t> word_at(std::byte* at) {
  return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(at));
}

// The writer will store there next; until then the line is better ours than the reader's.
void expect_store(std::byte* at) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" ::"m"(*at));
#else
  __builtin_prefetch(at, 1);
#endif
}

}  // namespace

bool RingWriter::has_room(size_t bytes) {
  const uint64_t end = position_ + bytes + kEndBytes;
  if (end - freed_ <= memory_.bytes) [[likely]]
    return !broken_;
  return see_freed() && end - freed_ <= memory_.bytes;
}

bool RingWriter::see_freed() {
  const uint64_t freed = memory_.control->freed.load(std::memory_order_acquire);
  // It only goes forward, from word to word, and never beyond what was written.
  broken_ |= freed - freed_ > position_ - freed_ || freed % kWordBytes != 0;
  if (!broken_) freed_ = freed;
  return !broken_;
}

void RingWriter::write(const RecordWord& word, std::span<const std::byte> header,
                       std::span<const std::span<const std::byte>> body, uint8_t pad) {
  const uint64_t end = word.end(position_);
  VERBENA_CHECK(header.size() == word.header_bytes && end + kEndBytes - freed_ <= memory_.bytes);
  std::byte* const at = memory_.at(position_);
  copy_words(at + kWordBytes, header.data(), header.size());
  const bool small = word.is_small();
  std::byte* to = at + (word.body_at(position_) - position_);
  size_t left = word.body_bytes;
  for (const auto& part : body) {
    VERBENA_CHECK(part.size() <= left);
    left -= part.size();
    if (small) {
      copy_short(to, part.data(), part.size());
    } else if (part.size() >= kPastCaches) {
      copy_past_caches(to, part.data(), part.size());
    } else {
      std::memcpy(to, part.data(), part.size());
    }
    to += part.size();
  }
  VERBENA_CHECK(pad == left);
  for (uint8_t i = 0; i < pad; ++i) to[i] = std::byte{};
  append(word.pack(), end);
}

void RingWriter::write(const RecordWord& word) {
  const uint64_t end = position_ + kWordBytes;
  VERBENA_CHECK(word.end(position_) == end && end + kEndBytes - freed_ <= memory_.bytes);
  append(word.pack(), end);
}

// What lies behind the word is written.
void RingWriter::append(uint64_t word, uint64_t end) {
  if (held_word_ == 0) {
    held_at_ = position_;
    held_word_ = word;
  } else {
    // Nobody gets there before the one that is held back.
    word_at(memory_.at(position_)).store(word, std::memory_order_relaxed);
    expect_store(memory_.at(end + kAheadBytes));
  }
  position_ = end;
  unannounced_ = true;
  if (end - held_at_ >= kShowBytes) show_held();
}

void RingWriter::show_held() {
  if (held_word_ == 0) return;
  word_at(memory_.at(position_)).store(0, std::memory_order_relaxed);
  word_at(memory_.at(held_at_)).store(held_word_, std::memory_order_release);
  held_word_ = 0;
}

void RingWriter::show_early() {
  if (held_word_ == 0) return;
  constexpr RecordWord kNextLine{.kind = RecordKind::NextLine};
  const uint64_t line = round_up(position_, kLineBytes);
  if (line != position_) {
    word_at(memory_.at(position_)).store(kNextLine.pack(), std::memory_order_relaxed);
    position_ = line;
  }
  show_held();
}

bool RingWriter::show() {
  if (!unannounced_) return false;
  unannounced_ = false;
  show_early();
  // What is shown next goes into the line that follows, and clears the one behind it.
  expect_store(memory_.at(position_ + kLineBytes));
  // Either we see that the reader sleeps, or it sees the records when it looks once more.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  std::atomic<uint32_t>& asleep = memory_.control->asleep;
  return asleep.load(std::memory_order_relaxed) != 0 &&
         asleep.exchange(0, std::memory_order_relaxed) != 0;
}

// Either we see that something is no longer permitted, or the reader sees that we are there.
void RingWriter::begin_visit() {
  memory_.control->visits.store(++visits_, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void RingWriter::end_visit() {
  memory_.control->visits.store(++visits_, std::memory_order_release);
}

bool RingReader::next(Record& record) {
  std::byte* at = memory_.at(position_);
  uint64_t word = word_at(at).load(std::memory_order_acquire);
  if (word != 0 && !owns_) {
    if (!own()) return false;
    word = word_at(at).load(std::memory_order_acquire);  // it may have been taken back
  }
  if (at_line_start_) {
    at_line_start_ = false;
    runs_on_ = word != 0;
  }
  constexpr uint64_t kNextLine = RecordWord{.kind = RecordKind::NextLine}.pack();
  if (word == kNextLine) {
    position_ = round_up(position_ + 1, kLineBytes);
    at_line_start_ = !runs_on_;
    if (at_line_start_) return false;
    at = memory_.at(position_);
    word = word_at(at).load(std::memory_order_acquire);
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
  record.front = at + kWordBytes;
  record.body = at + (record.word.body_at(position_) - position_);
  position_ = end;
  if (++run_ >= kRun) __builtin_prefetch(memory_.at(end + kAheadBytes));
  return true;
}

bool RingReader::own() {
  RingOwner before = RingOwner::Nobody;
  owns_ = memory_.control->owner.compare_exchange_strong(
      before, RingOwner::Reader, std::memory_order_acquire, std::memory_order_relaxed);
  broken_ |= !owns_ && before != RingOwner::Writer;  // only these two ever are
  return owns_;
}

// What the writer is about to take back, or to show again, it will wake us for.
bool RingReader::empty() const {
  return broken_ || word_at(memory_.at(position_)).load(std::memory_order_seq_cst) == 0 ||
         memory_.control->owner.load(std::memory_order_seq_cst) == RingOwner::Writer;
}

bool RingReader::await(uint32_t looks) const {
  const auto word = word_at(memory_.at(position_));
  while (looks-- > 0) {
    if (word.load(std::memory_order_acquire) != 0) return !broken_;
  }
  return false;
}

void RingReader::release() {
  if (released_ != position_) {
    released_ = position_;
    memory_.control->freed.store(position_, std::memory_order_release);
  }
  if (!owns_) return;
  owns_ = false;
  memory_.control->owner.store(RingOwner::Nobody, std::memory_order_release);
}

// --- taking back ---------------------------------------------------------------------------------

// Copies of what was shown and not read: the reader's process could change it under us.
struct RingWriter::Unread {
  struct Record {
    RecordWord word;
    std::span<const std::byte> header;
    std::span<const std::byte> body;
    bool kept = true;
  };
  uint64_t from = 0;
  std::vector<std::byte> bytes;
  std::vector<Record> records;
};

bool RingWriter::look_at_unread(Unread& unread) {
  if (!see_freed()) return false;
  unread.from = freed_;
  const std::byte* const at = memory_.at(freed_);
  unread.bytes.assign(at, at + (position_ - freed_));
  const auto part = [&](uint64_t from, size_t bytes) {
    return std::span<const std::byte>(unread.bytes).subspan(from - unread.from, bytes);
  };
  for (uint64_t at_record = freed_; at_record != position_;) {
    uint64_t word;
    std::memcpy(&word, part(at_record, kWordBytes).data(), kWordBytes);
    if (word == RecordWord{.kind = RecordKind::NextLine}.pack()) {
      at_record = round_up(at_record + 1, kLineBytes);
    } else {
      const RecordWord w = RecordWord::unpack(word);
      const uint64_t end = w.end(at_record);
      broken_ = !w.sane() || end > position_;
      if (broken_) return false;
      unread.records.push_back({w, part(at_record + kWordBytes, w.header_bytes),
                                part(w.body_at(at_record), w.body_bytes)});
      at_record = end;
    }
    broken_ = at_record > position_;
    if (broken_) return false;
  }
  return true;
}

void RingWriter::write_again(const Unread& unread) {
  position_ = unread.from;
  word_at(memory_.at(position_)).store(0, std::memory_order_relaxed);
  for (const Unread::Record& r : unread.records) {
    if (r.kept) write(r.word, r.header, {&r.body, 1}, 0);
  }
}

bool RingWriter::take_back(
    const std::function<bool(const RecordWord& word, std::span<const std::byte> header)>& mine,
    const std::function<bool()>& wanted) {
  show_held();
  unannounced_ = true;  // whoever found us at it fell asleep, perhaps
  std::atomic<RingOwner>& owner = memory_.control->owner;
  RingOwner nobody = RingOwner::Nobody;
  if (!owner.compare_exchange_strong(nobody, RingOwner::Writer, std::memory_order_acquire)) {
    return false;
  }
  Unread unread;
  bool taken = look_at_unread(unread);
  if (taken) {
    for (Unread::Record& r : unread.records) r.kept = !mine(r.word, r.header);
    taken = wanted();
  }
  if (taken) write_again(unread);
  show_held();
  owner.store(RingOwner::Nobody, std::memory_order_release);
  return taken;
}

}  // namespace verbena::datapath

// Of a ring what is not done for every record: see ring.h for the rest.
#include "datapath/shm/ring.h"

#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/exhaustion.h"

namespace verbena::datapath {

bool RingWriter::see_freed() {
  const uint64_t freed = memory_.control->freed.load(std::memory_order_acquire);
  // It only goes forward, from word to word, and never beyond what was written.
  broken_ |= freed - freed_ > position_ - freed_ || freed % kWordBytes != 0;
  if (!broken_) freed_ = freed;
  return !broken_;
}

bool RingWriter::publish() {
  if (!publish_due_) return false;
  publish_due_ = false;
  publish_early();
  // Either we see that the reader sleeps, or it sees the records when it looks once more.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  std::atomic<uint32_t>& asleep = memory_.control->asleep;
  const bool wakes = asleep.load(std::memory_order_relaxed) != 0 &&
                     asleep.exchange(0, std::memory_order_relaxed) != 0;
  // What is shown next goes into the line that follows, and waits until the one behind that is
  // cleared; the reader's core may have fetched it, since it follows the one that is looked at.
  cleared_at_ = position_ + kLineBytes;
  memory_.word(cleared_at_).store(0, std::memory_order_relaxed);
  return wakes;
}

bool RingReader::own() {
  RingOwner before = RingOwner::None;
  owns_ = memory_.control->owner.compare_exchange_strong(
      before, RingOwner::Reader, std::memory_order_acquire, std::memory_order_relaxed);
  broken_ |= !owns_ && before != RingOwner::Writer;  // only these two ever are
  return owns_;
}

// What the writer is about to take back, or to show again, it will wake us for.
bool RingReader::empty() const {
  return broken_ || memory_.word(position_).load(std::memory_order_seq_cst) == 0 ||
         memory_.control->owner.load(std::memory_order_seq_cst) == RingOwner::Writer;
}

bool RingReader::await(uint32_t looks) const {
  const auto word = memory_.word(position_);
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
  memory_.control->owner.store(RingOwner::None, std::memory_order_release);
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
    if (word == kNextLine) {
      at_record = round_up(at_record + 1, kLineBytes);
    } else {
      const RecordWord w = RecordWord::unpack(word);
      const uint64_t end = w.end(at_record);
      // Written again it lies here or before, so it still fits then if it fits here.
      broken_ = !w.sane() || end > position_ || end + kEndBytes - freed_ > memory_.bytes;
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
  cleared_at_ = UINT64_MAX;  // it may have been written over
  memory_.word(position_).store(0, std::memory_order_relaxed);
  for (const Unread::Record& r : unread.records) {
    if (!r.kept) continue;
    const bool written = write(r.word, r.header.data(), {&r.body, 1});
    VERBENA_CHECK(written);
  }
}

bool RingWriter::reclaim(
    const std::function<bool(const RecordWord& word, std::span<const std::byte> header)>& mine,
    const std::function<bool()>& wanted) {
  publish_held();
  publish_due_ = true;  // whoever found us at it fell asleep, perhaps
  std::atomic<RingOwner>& owner = memory_.control->owner;
  RingOwner nobody = RingOwner::None;
  if (!owner.compare_exchange_strong(nobody, RingOwner::Writer, std::memory_order_acquire)) {
    return false;
  }
  Unread unread;
  bool taken = false;
  // Without memory for a copy all stays as it is.
  (void)try_allocating([&] { taken = look_at_unread(unread); });
  if (taken) {
    for (Unread::Record& r : unread.records) r.kept = !mine(r.word, r.header);
    taken = wanted();
  }
  if (taken) write_again(unread);
  publish_held();
  owner.store(RingOwner::None, std::memory_order_release);
  return taken;
}

}  // namespace verbena::datapath

// The functions of a ring that do not run for every record; ring.h has the others.
#include "datapath/shm/ring.h"

#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/exhaustion.h"

namespace verbena::datapath {

bool RingWriter::load_freed() {
  const uint64_t freed = memory_.control->freed.load(std::memory_order_acquire);
  // The position only advances, by whole words, and never beyond the written records.
  is_corrupted_ |= freed - freed_ > position_ - freed_ || freed % kWordBytes != 0;
  if (!is_corrupted_) freed_ = freed;
  return !is_corrupted_;
}

bool RingWriter::publish() {
  if (!publish_due_) return false;
  publish_due_ = false;
  publish_early();
  // Either this thread sees that the reader sleeps, or the reader sees the records in its last
  // check.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  std::atomic<uint32_t>& asleep = memory_.control->asleep;
  const bool wakes = asleep.load(std::memory_order_relaxed) != 0 &&
                     asleep.exchange(0, std::memory_order_relaxed) != 0;
  // The next record is published in the following line, after the line behind it has been cleared.
  // That store is slow if the reader's core has prefetched the line, so it happens here in advance.
  cleared_at_ = position_ + kLineBytes;
  memory_.word(cleared_at_).store(0, std::memory_order_relaxed);
  return wakes;
}

bool RingReader::acquire() {
  RingOwner before = RingOwner::None;
  owns_ = memory_.control->owner.compare_exchange_strong(
      before, RingOwner::Reader, std::memory_order_acquire, std::memory_order_relaxed);
  is_corrupted_ |= !owns_ && before != RingOwner::Writer;  // no other value is valid
  return owns_;
}

// While the writer reclaims, the ring counts as empty: the writer sends a wake-up afterwards.
bool RingReader::empty() const {
  return is_corrupted_ || memory_.word(position_).load(std::memory_order_seq_cst) == 0 ||
         memory_.control->owner.load(std::memory_order_seq_cst) == RingOwner::Writer;
}

bool RingReader::poll(uint32_t times) const {
  const auto word = memory_.word(position_);
  while (times-- > 0) {
    if (word.load(std::memory_order_acquire) != 0) return !is_corrupted_;
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

// --- reclaiming ----------------------------------------------------------------------------------

// A private copy of the unread records, because the reader's process could change the ring.
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

bool RingWriter::copy_unread(Unread& unread) {
  if (!load_freed()) return false;
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
      // rewrite() places the record here or earlier, so it fits then if it fits here.
      is_corrupted_ = !w.is_valid() || end > position_ || end + kEndBytes - freed_ > memory_.bytes;
      if (is_corrupted_) return false;
      unread.records.push_back({w, part(at_record + kWordBytes, w.header_bytes),
                                part(w.body_at(at_record), w.body_bytes)});
      at_record = end;
    }
    is_corrupted_ = at_record > position_;
    if (is_corrupted_) return false;
  }
  return true;
}

void RingWriter::rewrite(const Unread& unread) {
  position_ = unread.from;
  cleared_at_ = UINT64_MAX;  // the word may have been overwritten
  memory_.word(position_).store(0, std::memory_order_relaxed);
  for (const Unread::Record& r : unread.records) {
    if (!r.kept) continue;
    const bool written = write(r.word, r.header.data(), {&r.body, 1});
    VERBENA_CHECK(written);
  }
}

bool RingWriter::reclaim(
    const std::function<bool(const RecordWord& word, std::span<const std::byte> header)>& matches,
    const std::function<bool()>& confirm) {
  publish_held();
  publish_due_ = true;  // a reader that found the ring owned may have gone to sleep
  std::atomic<RingOwner>& owner = memory_.control->owner;
  RingOwner none = RingOwner::None;
  if (!owner.compare_exchange_strong(none, RingOwner::Writer, std::memory_order_acquire)) {
    return false;
  }
  Unread unread;
  bool reclaimed = false;
  // Without memory for the copy nothing changes.
  (void)try_allocating([&] { reclaimed = copy_unread(unread); });
  if (reclaimed) {
    for (Unread::Record& r : unread.records) r.kept = !matches(r.word, r.header);
    reclaimed = confirm();
  }
  if (reclaimed) rewrite(unread);
  publish_held();
  owner.store(RingOwner::None, std::memory_order_release);
  return reclaimed;
}

}  // namespace verbena::datapath

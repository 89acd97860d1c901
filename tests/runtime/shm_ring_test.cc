// The ring of a link, with a writer and a reader in separate threads (for the thread sanitizer),
// and with a hostile writer or reader.
#include "datapath/shm/ring.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstring>
#include <thread>
#include <vector>

#include "datapath/shm/segment.h"

namespace verbena::datapath {
namespace {

class ShmRing : public ::testing::Test {
 protected:
  ShmRing() {
    auto made = Segment::create(descriptor_);
    EXPECT_TRUE(made.ok());
    segment_ = std::move(made.value());
    memory_ = segment_.written_by(LinkEnd::Connecting);
  }

  // Bytes that identify their record.
  static std::vector<std::byte> body_of(uint32_t number, size_t bytes) {
    std::vector<std::byte> body(bytes);
    for (size_t i = 0; i < bytes; ++i) body[i] = static_cast<std::byte>(number * 31 + i);
    return body;
  }

  static bool write(RingWriter& writer, uint32_t number, size_t bytes) {
    const RecordWord word{.kind = RecordKind::Packet,
                          .header_bytes = sizeof number,
                          .body_bytes = static_cast<uint32_t>(bytes)};
    const auto body = body_of(number, bytes);
    const std::span<const std::byte> parts[1] = {body};
    return writer.write(word, std::as_bytes(std::span(&number, 1)).data(), parts);
  }

  static void expect_record(const RingReader::Record& record, uint32_t number, size_t bytes) {
    uint32_t got = 0;
    std::memcpy(&got, record.front, sizeof got);
    ASSERT_EQ(got, number);
    ASSERT_EQ(record.word.body_bytes, bytes);
    const auto body = body_of(number, bytes);
    ASSERT_EQ(std::memcmp(record.body, body.data(), bytes), 0) << "record " << number;
  }

  void store_word(uint64_t position, uint64_t word) {
    std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(memory_.at(position))).store(word);
  }

  os::UniqueFd descriptor_;
  Segment segment_;
  RingMemory memory_;
};

TEST_F(ShmRing, RecordsAreInvisibleUntilPublished) {
  RingWriter writer(memory_);
  RingReader reader(memory_);
  RingReader::Record record;
  ASSERT_TRUE(write(writer, 1, 8));
  ASSERT_TRUE(write(writer, 2, 8));
  EXPECT_TRUE(reader.empty());
  EXPECT_FALSE(reader.next(record));
  EXPECT_FALSE(writer.publish());
  ASSERT_TRUE(reader.next(record));
  expect_record(record, 1, 8);
  ASSERT_TRUE(reader.next(record));
  expect_record(record, 2, 8);
  EXPECT_FALSE(reader.next(record));
}

TEST_F(ShmRing, PublishingEarlyDelaysTheWakeUp) {
  RingWriter writer(memory_);
  RingReader reader(memory_);
  RingReader::Record record;
  reader.sleep();
  ASSERT_TRUE(write(writer, 1, 8));
  writer.publish_early();
  ASSERT_TRUE(write(writer, 2, 8));
  int polls = 0;
  while (!reader.next(record)) ASSERT_LT(++polls, 10);
  expect_record(record, 1, 8);
  EXPECT_FALSE(reader.next(record) || reader.next(record)) << "the second record is not published";
  EXPECT_TRUE(writer.is_publish_due());
  EXPECT_TRUE(writer.publish()) << "a sleeping reader is woken once, for both";
  polls = 0;
  while (!reader.next(record)) ASSERT_LT(++polls, 10);
  expect_record(record, 2, 8);
  EXPECT_FALSE(writer.publish());
}

// Sizes on both sides of every boundary, often enough to wrap many times.
TEST_F(ShmRing, WrapsAround) {
  RingWriter writer(memory_);
  RingReader reader(memory_);
  const size_t sizes[] = {0, 1, 7, 8, 63, 64, 65, 115, 116, 117, 120, 121, 4096, 65535, 65536};
  uint32_t number = 0;
  for (int round = 0; round < 400; ++round) {
    for (const size_t bytes : sizes) {
      ASSERT_TRUE(write(writer, ++number, bytes));
      if (number % 3 != 0) continue;  // some are published together
      writer.publish();
    }
    writer.publish();
    RingReader::Record record;
    uint32_t expected = number - static_cast<uint32_t>(std::size(sizes));
    // A reader that stops at the end of a line tries again.
    for (int polls = 0; polls < 64 && expected < number; ++polls) {
      while (reader.next(record)) {
        const size_t bytes = sizes[expected % std::size(sizes)];
        ++expected;
        expect_record(record, expected, bytes);
      }
    }
    ASSERT_EQ(expected, number);
    reader.release();
    ASSERT_FALSE(reader.is_corrupted() || writer.is_corrupted());
  }
}

TEST_F(ShmRing, IsFullUntilTheReaderReleases) {
  RingWriter writer(memory_);
  RingReader reader(memory_);
  uint32_t written = 0;
  while (write(writer, written, 60'000)) ++written;
  EXPECT_GT(written, 10u);
  writer.publish();
  RingReader::Record record;
  ASSERT_TRUE(reader.next(record));
  EXPECT_FALSE(write(writer, written, 60'000)) << "the reader has not released its records";
  reader.release();
  EXPECT_TRUE(write(writer, written, 60'000));
  EXPECT_FALSE(writer.is_corrupted());
}

TEST_F(ShmRing, WakesTheReaderOnceForEachSleep) {
  RingWriter writer(memory_);
  RingReader reader(memory_);
  ASSERT_TRUE(write(writer, 1, 8));
  EXPECT_FALSE(writer.publish());
  reader.sleep();
  ASSERT_TRUE(write(writer, 2, 8));
  EXPECT_TRUE(writer.publish());
  ASSERT_TRUE(write(writer, 3, 8));
  EXPECT_FALSE(writer.publish()) << "the reader has been woken";
  EXPECT_TRUE(reader.wake());
  reader.sleep();
  EXPECT_FALSE(reader.wake()) << "the writer did not take the request";
}

// --- retraction -----------------------------------------------------------------------------

uint32_t number_in(std::span<const std::byte> header) {
  uint32_t number = 0;
  std::memcpy(&number, header.data(), sizeof number);
  return number;
}

TEST_F(ShmRing, RetractsUnreadRecordsAndKeepsTheOrderOfTheRest) {
  RingWriter writer(memory_);
  RingReader reader(memory_);
  RingReader::Record record;
  const size_t sizes[] = {0, 8, 100, 121, 4096, 65536};
  uint32_t number = 0;
  for (int round = 0; round < 300; ++round) {
    const uint32_t begin = number;
    for (; number < begin + 12; ++number) {
      ASSERT_TRUE(write(writer, number, sizes[number % 6]));
      if (number % 5 == 0) writer.publish();
    }
    writer.publish();
    uint32_t read = begin;
    while (read < begin + 3) {
      if (reader.next(record)) expect_record(record, read, sizes[read % 6]), ++read;
    }
    reader.release();
    uint32_t found = 0;
    ASSERT_TRUE(writer.reclaim(
        [&](const RecordWord&, std::span<const std::byte> header) {
          const bool odd = number_in(header) % 2 == 1;
          EXPECT_GE(number_in(header), read);
          found += odd ? 1 : 0;
          return odd;
        },
        [&] { return found != 0; }));
    writer.publish();
    for (uint32_t expected = read + read % 2; expected < number; expected += 2) {
      int polls = 0;
      while (!reader.next(record)) ASSERT_LT(++polls, 10);
      expect_record(record, expected, sizes[expected % 6]);
    }
    EXPECT_FALSE(reader.next(record) || reader.next(record));
    reader.release();
    ASSERT_FALSE(reader.is_corrupted() || writer.is_corrupted());
  }
}

// The word that was cleared in advance is in the place of a retracted record, and the rest ends
// exactly there.
TEST_F(ShmRing, RetractedRecordLeavesNoStaleWordAfterTheRest) {
  RingWriter writer(memory_);
  RingReader reader(memory_);
  RingReader::Record record;
  ASSERT_TRUE(write(writer, 1, 12));
  writer.publish();
  ASSERT_TRUE(write(writer, 2, 108));
  ASSERT_TRUE(write(writer, 3, 92));
  const auto second = [n = 0](const RecordWord&, std::span<const std::byte>) mutable {
    return ++n == 2;
  };
  ASSERT_TRUE(writer.reclaim(second, [] { return true; }));
  writer.publish();
  ASSERT_TRUE(reader.next(record));
  expect_record(record, 1, 12);
  ASSERT_TRUE(reader.next(record));
  expect_record(record, 3, 92);
  EXPECT_FALSE(reader.next(record) || reader.next(record));
  EXPECT_FALSE(reader.is_corrupted());
}

TEST_F(ShmRing, AckIsOneWordAndKeepsItsPlace) {
  RingWriter writer(memory_);
  RingReader reader(memory_);
  RingReader::Record record;
  const auto acknowledge = [&](uint64_t ack_bits) {
    ASSERT_TRUE(writer.write({.kind = RecordKind::Ack, .address = 3, .ack_bits = ack_bits}));
  };
  const auto expect_ack = [&](uint64_t ack_bits) {
    ASSERT_TRUE(reader.next(record));
    EXPECT_EQ(record.word.kind, RecordKind::Ack);
    EXPECT_EQ(record.word.address, 3);
    EXPECT_EQ(record.word.ack_bits, ack_bits);
  };
  constexpr uint64_t kMaxAckBits = (uint64_t{1} << 48) - 1;
  acknowledge(kMaxAckBits);  // invisible until published, as every record
  EXPECT_FALSE(reader.next(record));
  ASSERT_TRUE(write(writer, 1, 8));
  acknowledge(0);
  ASSERT_TRUE(write(writer, 2, 65536));
  acknowledge(7);
  writer.publish();
  ASSERT_TRUE(writer.reclaim(
      [](const RecordWord& word, std::span<const std::byte> header) {
        return word.kind == RecordKind::Packet && number_in(header) == 1;
      },
      [] { return true; }));
  writer.publish();
  expect_ack(kMaxAckBits);
  expect_ack(0);
  ASSERT_TRUE(reader.next(record));
  expect_record(record, 2, 65536);
  expect_ack(7);
  EXPECT_FALSE(reader.next(record) || reader.next(record) || reader.is_corrupted());
}

TEST_F(ShmRing, RetractsNothingDuringAReadOrWithoutConfirmation) {
  RingWriter writer(memory_);
  RingReader reader(memory_);
  RingReader::Record record;
  const auto all = [](const RecordWord&, std::span<const std::byte>) { return true; };
  const auto yes = [] { return true; };
  const auto no = [] { return false; };
  ASSERT_TRUE(write(writer, 1, 8));
  ASSERT_TRUE(write(writer, 2, 8));
  writer.publish();
  ASSERT_TRUE(reader.next(record));
  EXPECT_FALSE(writer.reclaim(all, yes)) << "the reader has read one record";
  reader.release();
  EXPECT_FALSE(writer.reclaim(all, no));
  ASSERT_TRUE(reader.next(record));
  expect_record(record, 2, 8);
  reader.release();
  EXPECT_TRUE(writer.reclaim(all, yes)) << "no record is left, which is allowed";
  ASSERT_TRUE(write(writer, 3, 8));
  EXPECT_TRUE(writer.reclaim(all, yes)) << "a record that is not published yet";
  writer.publish();
  EXPECT_TRUE(reader.empty());
}

TEST_F(ShmRing, WakesAReaderThatFellAsleepDuringRetraction) {
  RingWriter writer(memory_);
  RingReader reader(memory_);
  RingReader::Record record;
  ASSERT_TRUE(write(writer, 1, 8));
  writer.publish();
  EXPECT_FALSE(writer.reclaim(
      [&](const RecordWord&, std::span<const std::byte>) {
        EXPECT_FALSE(reader.next(record));
        reader.sleep();
        EXPECT_TRUE(reader.empty()) << "the reader may sleep";
        return true;
      },
      [] { return false; }));
  EXPECT_TRUE(writer.publish());
  EXPECT_FALSE(reader.empty());
}

TEST_F(ShmRing, RecordOverwrittenByTheReaderBreaksTheRing) {
  RingWriter writer(memory_);
  ASSERT_TRUE(write(writer, 1, 8));
  ASSERT_TRUE(write(writer, 2, 8));
  writer.publish();
  store_word(0, RecordWord{.kind = RecordKind::Packet, .body_bytes = 60'000}.pack());
  EXPECT_FALSE(writer.reclaim([](const RecordWord&, std::span<const std::byte>) { return true; },
                              [] { return true; }));
  EXPECT_TRUE(writer.is_corrupted());
}

// Retraction writes the remaining records again. A reader that enlarged a record, up to the end of
// the last line, must not make it larger than the free space of the ring.
TEST_F(ShmRing, RecordEnlargedByTheReaderBreaksTheRing) {
  constexpr uint64_t kShortRecord = 24;  // a word, its number and 8 bytes
  RingWriter writer(memory_);
  RingReader reader(memory_);
  RingReader::Record record;
  ASSERT_TRUE(write(writer, 1, 8) && write(writer, 2, 8));
  writer.publish();
  ASSERT_TRUE(reader.next(record));
  reader.release();  // in the middle of a line
  const uint64_t end = memory_.bytes - 3 * kLineBytes;
  for (uint64_t at = kLineBytes; at < end; at += kLineBytes) ASSERT_TRUE(write(writer, 3, 52));
  ASSERT_TRUE(write(writer, 4, 8));
  EXPECT_FALSE(write(writer, 5, 8)) << "the ring is full";
  writer.publish();
  const RecordWord longer{
      .kind = RecordKind::Packet, .header_bytes = 4, .body_bytes = 8 + kLineBytes - kShortRecord};
  store_word(end, longer.pack());
  EXPECT_FALSE(writer.reclaim([](const RecordWord&, std::span<const std::byte>) { return false; },
                              [] { return true; }));
  EXPECT_TRUE(writer.is_corrupted());
}

// Each record is read or retracted, never both, and the records are read in order.
TEST_F(ShmRing, RetractionRacesWithReading) {
  constexpr uint32_t kRecords = 60'000;
  std::vector<uint8_t> read(kRecords), retracted(kRecords);
  std::atomic<bool> done{false};
  std::thread reading([&] {
    RingReader reader(memory_);
    RingReader::Record record;
    uint32_t last = 0;
    for (bool end = false; !end;) {
      end = done.load(std::memory_order_acquire);
      for (int polls = 0; polls < 3; ++polls) {
        while (reader.next(record)) {
          const uint32_t number = number_in({record.front, sizeof number});
          ASSERT_TRUE(number == 0 || number > last) << number;
          last = number;
          ASSERT_EQ(std::memcmp(record.body, body_of(number, number % 300).data(), number % 300),
                    0);
          ++read[number];
        }
        reader.release();
      }
      std::this_thread::yield();
    }
    EXPECT_FALSE(reader.is_corrupted());
  });
  RingWriter writer(memory_);
  uint32_t claims = 0;
  for (uint32_t number = 0; number < kRecords; ++number) {
    while (!write(writer, number, number % 300)) std::this_thread::yield();
    if (number % 7 == 0) writer.publish();
    if (number % 50 != 0) continue;
    std::vector<uint32_t> mine;
    const bool took = writer.reclaim(
        [&](const RecordWord&, std::span<const std::byte> header) {
          if (number_in(header) % 3 == 0) return false;
          mine.push_back(number_in(header));
          return true;
        },
        [&] { return !mine.empty(); });
    writer.publish();
    if (!took) continue;
    ++claims;
    for (const uint32_t m : mine) ++retracted[m];
  }
  writer.publish();
  done.store(true, std::memory_order_release);
  reading.join();
  EXPECT_FALSE(writer.is_corrupted());
  EXPECT_GT(claims, 0u);
  for (uint32_t i = 0; i < kRecords; ++i) ASSERT_EQ(read[i] + retracted[i], 1) << "record " << i;
}

// Either side may be ahead; the reader sleeps as a background thread does, and must not miss a
// wake-up.
TEST_F(ShmRing, LosesNoRecordBetweenTwoThreads) {
  constexpr uint32_t kRecords = 60'000;
  std::atomic<int> wakeups{0};
  std::thread producer([&] {
    RingWriter writer(memory_);
    for (uint32_t number = 0; number < kRecords;) {
      if (!write(writer, number, number % 700)) {
        if (writer.publish()) wakeups.fetch_add(1);
        std::this_thread::yield();
        continue;
      }
      if (++number % 5 == 0 && writer.publish()) wakeups.fetch_add(1);
    }
    if (writer.publish()) wakeups.fetch_add(1);
  });
  RingReader reader(memory_);
  int seen = 0;
  for (uint32_t number = 0; number < kRecords;) {
    RingReader::Record record;
    bool any = false;
    while (reader.next(record)) {
      any = true;
      expect_record(record, number, number % 700);
      if (HasFatalFailure()) break;
      ++number;
    }
    if (HasFatalFailure()) break;
    reader.release();
    if (any || number == kRecords) continue;
    reader.sleep();
    if (!reader.empty()) {
      if (reader.wake()) ++seen;
      continue;
    }
    // Only the writer can wake the reader now. A lost wake-up would hang here.
    while (wakeups.load() == seen) std::this_thread::yield();
    ++seen;
    reader.wake();
  }
  producer.join();
}

// --- a hostile peer -------------------------------------------------------------------------

TEST_F(ShmRing, InvalidWordBreaksTheReader) {
  const uint64_t words[] = {
      UINT64_MAX,
      5,                                                                   // unknown kind
      RecordWord{.kind = RecordKind::Packet, .header_bytes = 121}.pack(),  // header too long
      RecordWord{.kind = RecordKind::Packet, .payload_size_log2 = 40}.pack(),
      RecordWord{.kind = RecordKind::Packet, .body_bytes = UINT32_MAX}.pack(),
      RecordWord{.kind = RecordKind::Packet, .body_bytes = 65537}.pack(),
      RecordWord{.kind = RecordKind::NextLine, .body_bytes = 1}.pack(),
  };
  for (const uint64_t word : words) {
    RingReader reader(memory_);
    store_word(0, word);
    RingReader::Record record;
    EXPECT_FALSE(reader.next(record)) << std::hex << word;
    EXPECT_TRUE(reader.is_corrupted()) << std::hex << word;
    EXPECT_TRUE(reader.empty()) << "a broken ring does not keep the reader awake";
    reader.release();
  }
}

TEST_F(ShmRing, InvalidOwnerBreaksTheReader) {
  RingWriter writer(memory_);
  RingReader reader(memory_);
  RingReader::Record record;
  ASSERT_TRUE(write(writer, 1, 8));
  writer.publish();
  memory_.control->owner.store(static_cast<RingOwner>(0xA5A5A5A5));
  EXPECT_FALSE(reader.next(record));
  EXPECT_TRUE(reader.is_corrupted());
  EXPECT_TRUE(reader.empty());
}

TEST_F(ShmRing, RingFullOfRecordsBreaksTheReader) {
  // Records everywhere: a valid writer never gets that far ahead of the released position.
  const RecordWord word{.kind = RecordKind::Packet, .header_bytes = 16};
  for (uint64_t at = 0; at < memory_.bytes; at += kWordBytes) store_word(at, word.pack());
  RingReader reader(memory_);
  RingReader::Record record;
  size_t read = 0;
  while (reader.next(record)) ++read;
  EXPECT_TRUE(reader.is_corrupted());
  EXPECT_LE(read, memory_.bytes / kWordBytes);
}

TEST_F(ShmRing, LinesWithoutRecordsDoNotBlockTheReader) {
  const uint64_t next = RecordWord{.kind = RecordKind::NextLine}.pack();
  for (uint64_t at = 0; at < memory_.bytes; at += kWordBytes) store_word(at, next);
  RingReader reader(memory_);
  RingReader::Record record;
  for (int i = 0; i < 100'000 && !reader.is_corrupted(); ++i) EXPECT_FALSE(reader.next(record));
}

TEST_F(ShmRing, InvalidPositionBreaksTheWriter) {
  for (const uint64_t position :
       {uint64_t{1} << 40, UINT64_MAX, uint64_t{2} << 20, kWordBytes / 2}) {
    RingWriter writer(memory_);
    memory_.control->freed = 0;
    while (write(writer, 1, 60'000)) {
    }
    EXPECT_FALSE(writer.is_corrupted());
    memory_.control->freed = position;
    EXPECT_FALSE(writer.has_room(kLargestRecord));
    EXPECT_TRUE(writer.is_corrupted());
    memory_.control->freed = 0;
    EXPECT_FALSE(writer.has_room(kLargestRecord)) << "the ring stays broken";
  }
}

// --- segments -------------------------------------------------------------------------------

TEST(ShmSegment, AcceptsOnlySealedMemoryOfTheRightSize) {
  os::UniqueFd good;
  ASSERT_TRUE(Segment::create(good).ok());
  EXPECT_TRUE(Segment::adopt(good.get()).ok());
  EXPECT_NE(::ftruncate(good.get(), 4096), 0);

  struct stat file {};
  ASSERT_EQ(::fstat(good.get(), &file), 0);
  const os::UniqueFd unsealed(::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(unsealed.get(), file.st_size), 0);
  EXPECT_FALSE(Segment::adopt(unsealed.get()).ok());

  const os::UniqueFd small(::memfd_create("small", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(small.get(), 4096), 0);
  ASSERT_EQ(::fcntl(small.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  EXPECT_FALSE(Segment::adopt(small.get()).ok());

  const os::UniqueFd other(::open("/dev/zero", O_RDWR | O_CLOEXEC));
  EXPECT_FALSE(Segment::adopt(other.get()).ok());
  EXPECT_FALSE(Segment::adopt(-1).ok());
}

}  // namespace
}  // namespace verbena::datapath

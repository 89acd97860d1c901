// The state of both directions of a stream: a sender against a receiver with random steps, and
// peers that violate the protocol.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <vector>

#include "base/prng.h"
#include "rsocket/buffers.h"
#include "rsocket/receive_ring.h"
#include "rsocket/send_window.h"
#include "rsocket/settings.h"

namespace verbena::rsocket {
namespace {

constexpr RemoteBuffer kBuffer{0x10000, 7, 65536};

SendWindow window(uint16_t credits = 100, RemoteBuffer first = kBuffer) {
  SendWindow made(64, 65536, 64);
  made.connected(credits, first);
  return made;
}

TEST(SendWindow, FillsABufferFromFrontToBackThenTheNext) {
  SendWindow sending = window(100, {1000, 7, 3000});
  ASSERT_TRUE(sending.on_buffer({90000, 8, 5000}));
  auto write = sending.take_data(2000);
  EXPECT_EQ(write.remote_address, 1000u);
  EXPECT_EQ(write.length, 2000u);
  write = sending.take_data(2000);
  EXPECT_EQ(write.remote_address, 3000u);
  EXPECT_EQ(write.remote_key, 7u);
  EXPECT_EQ(write.length, 1000u);
  write = sending.take_data(2000);
  EXPECT_EQ(write.remote_address, 90000u);
  EXPECT_EQ(write.remote_key, 8u);
}

TEST(SendWindow, StopsWithoutACredit) {
  SendWindow sending = window(2);
  sending.take_data(10);
  EXPECT_TRUE(sending.can_send());
  sending.take_data(10);
  EXPECT_FALSE(sending.can_send());
  EXPECT_TRUE(sending.can_write());
  EXPECT_TRUE(sending.on_credit_limit(3));
  EXPECT_TRUE(sending.can_send());
}

TEST(SendWindow, RejectsCreditsBeyondThePeersQueue) {
  SendWindow sending = window(100);
  EXPECT_FALSE(sending.on_credit_limit(101));
  EXPECT_FALSE(sending.on_credit_limit(0xffff));
  EXPECT_TRUE(sending.on_credit_limit(100));
  sending.take_data(1);
  EXPECT_TRUE(sending.on_credit_limit(101));
  EXPECT_FALSE(sending.on_credit_limit(102));
  EXPECT_FALSE(sending.on_credit_limit(0));  // below the number of sent messages
}

TEST(SendWindow, CreditsWrap) {
  SendWindow sending = window(10, {0, 0, 0xffffffff});
  for (uint32_t sent = 0; sent < 200000; ++sent) {
    ASSERT_TRUE(sending.can_send()) << sent;
    const auto write = sending.take_data(1);
    if (write.completion_id) sending.on_completion(write.completion_id);
    ASSERT_TRUE(sending.on_credit_limit(static_cast<uint16_t>(sent + 11)));
  }
}

TEST(SendWindow, RejectsAThirdBufferAndAnEmptyOne) {
  SendWindow sending = window();
  EXPECT_FALSE(sending.on_buffer({1, 1, 0}));
  EXPECT_TRUE(sending.on_buffer(kBuffer));
  EXPECT_FALSE(sending.on_buffer(kBuffer));
}

TEST(SendWindow, IgnoresAnEmptyFirstBuffer) {
  SendWindow sending = window(100, {1, 1, 0});
  EXPECT_FALSE(sending.can_send());
  EXPECT_TRUE(sending.on_buffer(kBuffer));
  EXPECT_TRUE(sending.can_send());
}

TEST(SendWindow, LimitsTheLengthOfAWrite) {
  SendWindow sending(64, 1u << 30, 64);
  sending.connected(100, {~uint64_t{0} - 10, 1, 0xffffffff});
  EXPECT_EQ(sending.take_data(~uint64_t{0}).length, SendWindow::kMaxWrite);
}

TEST(SendWindow, ControlMessagesHaveTheirOwnSlots) {
  SendWindow sending = window();
  for (uint32_t i = 0; i < SendWindow::kControlSlots; ++i) {
    ASSERT_TRUE(sending.control_free());
    EXPECT_EQ(sending.take_control(), i);
  }
  EXPECT_FALSE(sending.control_free());
  sending.on_control_completion();
  EXPECT_EQ(sending.take_control(), 0u);
}

TEST(SendWindow, IsWritableIfAShortSendFitsWhole) {
  SendWindow sending = window(100, {0, 0, 3000});
  EXPECT_TRUE(sending.writable());
  sending.take_data(1000);
  EXPECT_FALSE(sending.writable());
  EXPECT_TRUE(sending.can_send());
  EXPECT_TRUE(sending.on_buffer(kBuffer));
  EXPECT_TRUE(sending.writable());
}

// Bytes of the ring that are in flight are not reused, and the requested completions always free
// enough space.
TEST(SendWindow, RingBytesInFlightNeverOverlap) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    Prng prng(seed);
    const auto ring = static_cast<uint32_t>(SendWindow::kMinRing + prng.below(20000));
    SendWindow sending(static_cast<uint16_t>(16 + prng.below(100)), ring,
                       static_cast<uint32_t>(prng.below(100)));
    sending.connected(0xfffe, {0, 0, 0xffffffff});
    struct Flight {
      std::vector<uint32_t> bytes;
      uint64_t completion_id;
    };
    std::deque<Flight> flights;
    std::vector<bool> used(ring);
    const auto complete_one = [&] {
      // In order, up to the first with a completion.
      while (!flights.empty()) {
        const Flight done = std::move(flights.front());
        flights.pop_front();
        for (const uint32_t at : done.bytes) used[at] = false;
        if (!done.completion_id) continue;
        sending.on_completion(done.completion_id);
        return true;
      }
      return false;
    };
    for (int step = 0; step < 600; ++step) {
      if (!sending.can_write()) {
        ASSERT_TRUE(std::any_of(flights.begin(), flights.end(),
                                [](const Flight& f) { return f.completion_id != 0; }))
            << "nothing to wait for, seed " << seed;
        complete_one();
        continue;
      }
      const auto write = sending.take_direct(1 + prng.below(4000), 0, 0);
      ASSERT_GT(write.length, 0u);
      Flight flight{{}, write.completion_id};
      for (uint32_t i = 0; !write.inlined && i < write.length; ++i) {
        const uint32_t at = (write.ring_offset + i) % ring;
        ASSERT_FALSE(used[at]) << "seed " << seed;
        used[at] = true;
        flight.bytes.push_back(at);
      }
      flights.push_back(std::move(flight));
      if (prng.chance(0.2)) complete_one();
    }
  }
}

TEST(ReceiveRing, RejectsMoreThanItHasGranted) {
  ReceiveRing ring(1000, 16);
  EXPECT_FALSE(ring.on_data(1001));
  EXPECT_TRUE(ring.on_data(1000));
  EXPECT_FALSE(ring.on_data(1));
  EXPECT_TRUE(ring.on_data(0));
  EXPECT_FALSE(ring.on_data(Message::kMaxValue));
  EXPECT_EQ(ring.announce_half(), 1000u);
  EXPECT_TRUE(ring.on_data(999));
  EXPECT_FALSE(ring.on_data(2));
  EXPECT_EQ(ring.readable(), 1999u);
}

TEST(ReceiveRing, GrantsAHalfAfterItIsRead) {
  ReceiveRing ring(1000, 16);
  EXPECT_TRUE(ring.half_free());  // the second half, at the start
  EXPECT_EQ(ring.announce_half(), 1000u);
  EXPECT_FALSE(ring.half_free());
  ASSERT_TRUE(ring.on_data(1000));
  ring.consume(999);
  EXPECT_FALSE(ring.half_free());
  ring.consume(1);
  EXPECT_TRUE(ring.half_free());
  EXPECT_EQ(ring.announce_half(), 0u);
}

TEST(ReceiveRing, PartsEndAtTheEndOfTheRing) {
  ReceiveRing ring(1000, 16);
  ring.announce_half();
  ASSERT_TRUE(ring.on_data(1000));
  ASSERT_TRUE(ring.on_data(900));
  ring.consume(1000);
  ring.announce_half();
  ASSERT_TRUE(ring.on_data(100));
  ASSERT_TRUE(ring.on_data(50));
  EXPECT_EQ(ring.readable(), 1050u);
  EXPECT_EQ(ring.range().offset, 1000u);
  EXPECT_EQ(ring.range().length, 1000u);
  EXPECT_EQ(ring.range(1000).offset, 0u);
  EXPECT_EQ(ring.range(1000).length, 50u);
}

TEST(ReceiveRing, CreditsAreDueAfterHalfAQueueOfMessages) {
  ReceiveRing ring(1u << 20, 16);
  ring.announce_half();
  EXPECT_EQ(ring.credit_limit(), 16);
  for (int i = 0; i < 7; ++i) ASSERT_TRUE(ring.on_data(1));
  EXPECT_FALSE(ring.update_due());
  ASSERT_TRUE(ring.on_data(1));
  EXPECT_TRUE(ring.update_due());
  EXPECT_EQ(ring.credit_limit(), 24);
  EXPECT_FALSE(ring.update_due());
}

// A sender and a receiver with random delays between them: no data is lost, and both sides make
// progress.
TEST(Windows, SenderAndReceiverTransferAllData) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Prng prng(seed);
    const auto half = static_cast<uint32_t>(2048 + prng.below(20000));
    const auto receives = static_cast<uint16_t>(16 + prng.below(40));
    ReceiveRing ring(half, receives);
    SendWindow sending(static_cast<uint16_t>(16 + prng.below(40)),
                       static_cast<uint32_t>(SendWindow::kMinRing + prng.below(20000)), 64);
    sending.connected(receives, {0, 1, half});

    struct Write {
      uint64_t offset;
      uint32_t length;
      uint64_t completion_id;
    };
    struct Update {
      uint16_t limit;
      bool has_half;
      RemoteBuffer half;
    };
    std::deque<Write> to_receiver;
    std::deque<Update> to_sender;
    std::deque<uint64_t> completions;
    const uint64_t total = 1'000'000;
    uint64_t sent = 0, received = 0, expected_offset = 0;
    int idle = 0;
    while (received < total) {
      ASSERT_LT(idle, 10000) << "no progress, seed " << seed << " at " << received;
      ++idle;
      switch (prng.below(5)) {
        case 0:
          if (sent == total || !sending.can_send()) break;
          {
            const auto write = sending.take_data(std::min(total - sent, 1 + prng.below(30000)));
            ASSERT_GT(write.length, 0u);
            to_receiver.push_back({write.remote_address, write.length, write.completion_id});
            ASSERT_LE(to_receiver.size(), receives) << "more messages than receives";
            sent += write.length;
            idle = 0;
          }
          break;
        case 1:
          if (to_receiver.empty()) break;
          // The data must be where the reader expects it.
          EXPECT_EQ(to_receiver.front().offset, expected_offset);
          expected_offset = (expected_offset + to_receiver.front().length) % ring.capacity();
          ASSERT_TRUE(ring.on_data(to_receiver.front().length)) << "seed " << seed;
          if (to_receiver.front().completion_id) {
            completions.push_back(to_receiver.front().completion_id);
          }
          to_receiver.pop_front();
          idle = 0;
          break;
        case 2: {
          const uint64_t size = std::min<uint64_t>(ring.range().length, 1 + prng.below(20000));
          ring.consume(size);
          received += size;
          if (size) idle = 0;
          break;
        }
        case 3:
          if (!ring.update_due()) break;
          {
            Update update{ring.credit_limit(), ring.half_free(), {}};
            if (update.has_half) update.half = {ring.announce_half(), 1, half};
            to_sender.push_back(update);
            idle = 0;
          }
          break;
        default:
          if (!completions.empty()) {
            sending.on_completion(completions.front());
            completions.pop_front();
          }
          if (to_sender.empty()) break;
          ASSERT_TRUE(sending.on_credit_limit(to_sender.front().limit)) << "seed " << seed;
          if (to_sender.front().has_half) {
            ASSERT_TRUE(sending.on_buffer(to_sender.front().half)) << "seed " << seed;
          }
          to_sender.pop_front();
          idle = 0;
      }
    }
    EXPECT_EQ(sent, received);
  }
}

TEST(Settings, LimitValuesToUsableOnes) {
  Sizes sizes;
  sizes.set_send_bytes(0);
  EXPECT_EQ(sizes.send_bytes, SendWindow::kMinRing);
  sizes.set_receive_bytes(5001);
  EXPECT_EQ(sizes.receive_bytes, 5000u);
  sizes.set_receive_bytes(~uint64_t{0});
  EXPECT_LE(sizes.receive_bytes, 1u << 30);
  sizes.set_send_slots(1);
  EXPECT_EQ(sizes.send_slots, 16);
  sizes.set_receive_slots(1000000);
  EXPECT_EQ(sizes.receive_slots, 0xfffe);
  sizes.limit_slots(100);
  EXPECT_EQ(sizes.receive_slots, 100);
  sizes.set_iomap_count(300);
  EXPECT_EQ(sizes.iomap_count, 256u);
}

TEST(Buffers, FormOneStream) {
  char a[3] = {'a', 'b', 'c'}, b[4] = {'d', 'e', 'f', 'g'};
  const iovec vectors[] = {{nullptr, 0}, {a, 3}, {nullptr, 0}, {b, 4}};
  Buffers from = Buffers::from(vectors, 4).value();
  EXPECT_EQ(from.left(), 7u);
  EXPECT_EQ(from.contiguous(3), a);
  EXPECT_EQ(from.contiguous(4), nullptr);
  char out[8] = {};
  from.copy_out(reinterpret_cast<std::byte*>(out), 5);
  EXPECT_STREQ(out, "abcde");
  EXPECT_EQ(from.left(), 2u);
  EXPECT_EQ(from.contiguous(2), b + 2);
  from.advance(2);
  EXPECT_EQ(from.left(), 0u);
}

TEST(Buffers, RejectInvalidVectors) {
  const iovec huge[] = {{nullptr, SIZE_MAX / 2}, {nullptr, SIZE_MAX / 2}};
  EXPECT_EQ(Buffers::from(huge, 2).error().code, EINVAL);
  EXPECT_EQ(Buffers::from(nullptr, 1).error().code, EFAULT);
  EXPECT_EQ(Buffers::from(huge, IOV_MAX + 1u).error().code, EMSGSIZE);
  EXPECT_EQ(Buffers::from(nullptr, 0).value().left(), 0u);
}

}  // namespace
}  // namespace verbena::rsocket

// The responder executes ATOMIC WRITE and FLUSH once and in order.
#include <cstring>

#include "tests/unit/core/engine_support.h"

namespace verbena::core {
namespace {

using wire::NakCode;
using wire::Opcode;
using Opcodes = std::vector<Opcode>;

constexpr uint32_t kFlushes = kFlushGlobal | kFlushPersistent;
constexpr uint32_t kEverything = kLocalWrite | kRemoteWrite | kRemoteRead | kRemoteAtomic;

class AtomicWriteTest : public EngineTest {
 public:
  wire::Packet write(uint32_t psn, uint64_t offset = 0) {
    wire::Packet p = request(Opcode::RcAtomicWrite, psn);
    p.reth = {kIova + offset, key_, 8};
    return p;
  }
  uint64_t word(size_t offset = 0) const {
    uint64_t v;
    std::memcpy(&v, memory_.data() + offset, 8);
    return v;
  }
};

class FlushTest : public AtomicWriteTest {
 public:
  FlushTest() {
    persisted_.clear();
    persist_works_ = true;
    key_ = add(kEverything | kFlushes);
    connect({.access = kRemoteWrite | kRemoteRead | kFlushes});
  }
  uint32_t add(uint32_t access) {
    RegionInfo region{kPd, memory_.data(), memory_.size(), kIova, access, {}};
    static MemoryBacking backing;  // the region outlives this call
    region.backing = &backing;
    backing.persist = [](std::byte* at, uint64_t bytes) {
      persisted_.emplace_back(at, bytes);
      return persist_works_;
    };
    return engine_.memory().add_region(region).value();
  }
  wire::Packet flush(uint32_t psn, uint8_t placement, uint8_t selectivity = wire::kSelectRange,
                     uint64_t offset = 64, uint32_t length = 128) {
    wire::Packet p = request(Opcode::RcFlush, psn);
    p.flush = {placement, selectivity};
    p.reth = {kIova + offset, key_, length};
    return p;
  }
  void expect_refused(const wire::Packet& p, NakCode code) {
    receive(p);
    const auto sent = transmit();
    ASSERT_EQ(sent.size(), 1u);
    EXPECT_EQ(sent[0].packet.aeth.kind, wire::AckKind::Nak);
    EXPECT_EQ(sent[0].packet.aeth.value, static_cast<uint8_t>(code));
    EXPECT_TRUE(persisted_.empty());
  }
  static inline std::vector<std::pair<std::byte*, uint64_t>> persisted_;
  static inline bool persist_works_ = true;
};

TEST_F(AtomicWriteTest, RespondsWithAnEmptyReadResponse) {
  connect();
  receive(write(500, 16), pattern(8, 5));
  uint64_t expected;
  std::memcpy(&expected, pattern(8, 5).data(), 8);
  EXPECT_EQ(word(16), expected);
  const auto sent = transmit();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].opcode(), Opcode::RcReadResponseOnly);
  EXPECT_EQ(sent[0].psn(), 500u);
  EXPECT_TRUE(sent[0].packet.payload.empty());
  EXPECT_EQ(sent[0].packet.aeth.kind, wire::AckKind::Ack);
  EXPECT_EQ(sent[0].packet.aeth.msn, 1u);
}

TEST_F(AtomicWriteTest, ReplaysTheResponseOfADuplicateWithoutWriting) {
  connect();
  receive(write(500), pattern(8, 5));
  transmit();
  memory_[0] = std::byte{0x99};
  receive(write(500), pattern(8, 5));
  EXPECT_EQ(memory_[0], std::byte{0x99});
  const auto sent = transmit();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].opcode(), Opcode::RcReadResponseOnly);
  EXPECT_EQ(sent[0].psn(), 500u);
}

TEST_F(AtomicWriteTest, DropsADuplicateWithAnotherOpcode) {
  connect();
  receive(write(500), pattern(8, 5));
  transmit();
  wire::Packet read = request(Opcode::RcReadRequest, 500);
  read.reth.length = 8;
  receive(read);
  EXPECT_TRUE(transmit().empty());
  EXPECT_EQ(counter(CounterId::duplicate_dropped), 1u);
}

TEST_F(AtomicWriteTest, RespondsInOrder) {
  connect();
  receive(write(500), pattern(8));
  wire::Packet read = request(Opcode::RcReadRequest, 501);
  read.reth.length = 8;
  receive(read);
  receive(request(Opcode::RcWriteOnly, 502));
  EXPECT_EQ(transmit_opcodes(),
            (Opcodes{Opcode::RcReadResponseOnly, Opcode::RcReadResponseOnly, Opcode::RcAck}));
}

TEST_F(AtomicWriteTest, RefusedRequestsWriteNothing) {
  const auto expect = [&](const wire::Packet& p, size_t bytes, NakCode code) {
    receive(p, pattern(bytes, 9));
    const auto sent = transmit();
    ASSERT_EQ(sent.size(), 1u);
    EXPECT_EQ(sent[0].packet.aeth.kind, wire::AckKind::Nak);
    EXPECT_EQ(sent[0].packet.aeth.value, static_cast<uint8_t>(code));
    EXPECT_EQ(word(), 0u);
    EXPECT_EQ(qp().state(), QpState::Error);
  };
  connect();
  expect(write(500, 4), 8, NakCode::InvalidRequest);  // not aligned
  connect();
  expect(write(500), 4, NakCode::InvalidRequest);  // not eight bytes
  connect();
  expect(write(500), 16, NakCode::InvalidRequest);
  connect();
  wire::Packet longer = write(500);
  longer.reth.length = 16;
  expect(longer, 8, NakCode::InvalidRequest);
  connect();
  wire::Packet wrong_key = write(500);
  wrong_key.reth.rkey ^= 1;
  expect(wrong_key, 8, NakCode::RemoteAccess);
  connect();
  expect(write(500, kRegionBytes), 8, NakCode::RemoteAccess);
  connect({.access = kRemoteRead | kRemoteAtomic});
  expect(write(500), 8, NakCode::RemoteAccess);
  connect({.max_dest_read_atomic = 0});
  expect(write(500), 8, NakCode::InvalidRequest);
}

TEST_F(FlushTest, GlobalFlushRespondsAndPersistsNothing) {
  receive(flush(500, wire::kPlaceGlobal));
  EXPECT_EQ(transmit_opcodes(), (Opcodes{Opcode::RcReadResponseOnly}));
  EXPECT_TRUE(persisted_.empty());
}

TEST_F(FlushTest, PersistentFlushPersistsTheRangeAfterEarlierWrites) {
  wire::Packet write = request(Opcode::RcWriteOnly, 500);
  write.reth = {kIova + 64, key_, 8};
  receive(write, pattern(8, 7));
  receive(flush(501, wire::kPlacePersistent | wire::kPlaceGlobal));
  ASSERT_EQ(persisted_.size(), 1u);
  EXPECT_EQ(persisted_[0].first, memory_.data() + 64);
  EXPECT_EQ(persisted_[0].second, 128u);
  EXPECT_EQ(memory_[64], pattern(8, 7)[0]);
  const auto sent = transmit();
  ASSERT_EQ(sent.size(), 2u);  // the response, then the ACK that the WRITE requested
  EXPECT_EQ(sent[0].opcode(), Opcode::RcReadResponseOnly);
  EXPECT_EQ(sent[0].psn(), 501u);
}

TEST_F(FlushTest, RegionFlushIgnoresTheRange) {
  receive(flush(500, wire::kPlacePersistent, wire::kSelectRegion, kRegionBytes * 4, 1));
  ASSERT_EQ(persisted_.size(), 1u);
  EXPECT_EQ(persisted_[0].first, memory_.data());
  EXPECT_EQ(persisted_[0].second, kRegionBytes);
}

TEST_F(FlushTest, ReplaysTheResponseOfADuplicateWithoutPersisting) {
  receive(flush(500, wire::kPlacePersistent));
  transmit();
  receive(flush(500, wire::kPlacePersistent));
  EXPECT_EQ(transmit_opcodes(), (Opcodes{Opcode::RcReadResponseOnly}));
  EXPECT_EQ(persisted_.size(), 1u);
}

// Soft-RoCE does not count FLUSH against max_rd_atomic.
TEST_F(FlushTest, AcceptsRetransmittedFlushesBeyondMaxDestRdAtomic) {
  for (uint32_t i = 0; i < 6; ++i) receive(flush(500 + i, wire::kPlaceGlobal));
  const auto sent = transmit();
  ASSERT_EQ(sent.size(), 5u);  // four responses and one sequence NAK
  EXPECT_EQ(sent[4].packet.aeth.kind, wire::AckKind::Nak);
  EXPECT_EQ(sent[4].packet.aeth.value, static_cast<uint8_t>(NakCode::SequenceError));
  EXPECT_EQ(sent[4].psn(), 504u);
  receive(flush(504, wire::kPlaceGlobal));
  receive(flush(505, wire::kPlaceGlobal));
  EXPECT_EQ(transmit().size(), 2u);
  EXPECT_EQ(qp().state(), QpState::Rts);
}

TEST_F(FlushTest, RejectsFlushWithoutAccessToTheRegion) {
  key_ = add(kEverything | kFlushGlobal);
  expect_refused(flush(500, wire::kPlacePersistent), NakCode::RemoteAccess);
}

TEST_F(FlushTest, RejectsFlushThatTheQueuePairDoesNotAllow) {
  connect({.access = kRemoteWrite | kFlushGlobal});
  expect_refused(flush(500, wire::kPlacePersistent), NakCode::RemoteAccess);
}

TEST_F(FlushTest, RejectsARangeBeyondTheRegion) {
  expect_refused(flush(500, wire::kPlacePersistent, wire::kSelectRange, kRegionBytes - 8, 9),
                 NakCode::RemoteAccess);
}

TEST_F(FlushTest, RejectsUnknownPlacementAndSelectivity) {
  expect_refused(flush(500, 0), NakCode::InvalidRequest);
  connect({.access = kFlushes});
  expect_refused(flush(500, 8), NakCode::InvalidRequest);
  connect({.access = kFlushes});
  expect_refused(flush(500, wire::kPlaceGlobal, 3), NakCode::InvalidRequest);
}

TEST_F(FlushTest, ReportsAFailureToPersist) {
  persist_works_ = false;
  receive(flush(500, wire::kPlacePersistent));
  const auto sent = transmit();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].packet.aeth.value, static_cast<uint8_t>(NakCode::RemoteOperational));
}

}  // namespace
}  // namespace verbena::core

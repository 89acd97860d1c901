// Small cases that were wrong once, each by its name.
#include "tests/unit/core/engine_support.h"

namespace verbena::core {
namespace {

using namespace qp_attr;
using wire::AckKind;
using wire::Opcode;

class ModifyTest : public EngineTest {
 protected:
  void change(uint32_t mask, const QpAttributes& attr) {
    ASSERT_TRUE(qp().check_modify(attr, mask).ok());
    engine_.modify_qp(qp(), attr, mask, now_);
  }
  void read_request(uint32_t psn) {
    wire::Packet p = request(Opcode::RcReadRequest, psn);
    p.reth = {kIova, key_, 8};
    receive(p);
  }
};

TEST_F(ModifyTest, MoreReadsAreTakenAfterMaxDestRdAtomicGrewInSqd) {
  connect({.max_dest_read_atomic = 1});
  to_state(qp(), QpState::Sqd);
  QpAttributes attr;
  attr.max_dest_read_atomic = 4;
  change(kMaxDestRdAtomic, attr);
  for (uint32_t i = 0; i < 4; ++i) read_request(500 + i);
  EXPECT_EQ(transmit_opcodes(), std::vector<Opcode>(4, Opcode::RcReadResponseOnly));
}

TEST_F(ModifyTest, AnswersSurviveAChangeOfTheirNumber) {
  connect({.max_dest_read_atomic = 4});
  read_request(500);
  read_request(501);
  transmit();
  to_state(qp(), QpState::Sqd);
  QpAttributes attr;
  attr.max_dest_read_atomic = 2;
  change(kMaxDestRdAtomic, attr);
  read_request(501);  // again
  EXPECT_EQ(transmit_opcodes(), std::vector<Opcode>{Opcode::RcReadResponseOnly});
}

TEST_F(ModifyTest, MaxRdAtomicCannotBecomeZeroUnderQueuedReads) {
  connect();
  to_state(qp(), QpState::Sqd);
  ASSERT_TRUE(post(SendOp::Read, 1, 8).ok());
  QpAttributes attr;
  attr.max_read_atomic = 0;
  EXPECT_EQ(qp().check_modify(attr, kMaxRdAtomic).error().code, EINVAL);
}

TEST_F(ModifyTest, SqdNotifyCountsForOneTransitionOnly) {
  connect();
  QpAttributes attr;
  attr.state = QpState::Sqd;
  attr.sqd_notify = true;
  change(kState | kEnSqdAsyncNotify, attr);
  EXPECT_EQ(events(), std::vector<EventKind>{EventKind::SqDrained});
  to_state(qp(), QpState::Rts);
  to_state(qp(), QpState::Sqd);
  EXPECT_TRUE(events().empty());
}

TEST_F(ModifyTest, ARepeatedAtomicGetsTheNewestAnswerOfItsPsn) {
  connect({.rq_psn = 500, .max_dest_read_atomic = 2});
  wire::Packet p = request(Opcode::RcFetchAdd, 500);
  p.atomic = {.address = kIova, .rkey = key_, .swap_or_add = 1, .compare = 0};
  receive(p);
  transmit();
  // All other PSNs pass as WRITEs without data; then the same PSN is an atomic again.
  for (uint32_t i = 1; i < (1u << 24); ++i) {
    receive(request(Opcode::RcWriteOnly, 500 + i));
    if (i % 4096 == 0) transmit();
  }
  transmit();
  receive(p);
  transmit();
  receive(p);  // a copy
  const auto again = transmit();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].packet.original, 1u);
}

TEST_F(EngineTest, QueuePairNumbersOfTwoEnginesDoNotStartAlike) {
  Engine other({.slot = 1, .secret = 43});
  QpConfig config{.pd = kPd,
                  .send_cq = &cq_,
                  .receive_cq = &cq_,
                  .max_send_wr = 1,
                  .max_recv_wr = 1,
                  .max_send_sge = 1,
                  .max_recv_sge = 1};
  auto a = engine_.create_qp(config);
  auto b = other.create_qp(config);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_NE(a.value()->qpn(), b.value()->qpn());
}

TEST_F(EngineTest, RnrRoundsDoNotPileUpDeadlines) {
  connect({.timeout = 31, .rnr_retry = 7});
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  for (int i = 0; i < 10'000; ++i) {
    ASSERT_EQ(transmit().size(), 1u);
    receive_nak(100, AckKind::RnrNak, 1);
    ASSERT_TRUE(next_deadline());
  }
  EXPECT_LT(engine_.pending_deadlines(), 200u);
}

TEST(MemoryWindow, AFlushedBindLeavesTheWindowUsable) {
  MemoryRegistry registry(7);
  std::array<std::byte, 64> memory{};
  const auto iova = reinterpret_cast<uint64_t>(memory.data());
  const uint32_t region =
      registry.add_region(1, memory.data(), 64, iova, kLocalWrite | kWindowBind).value();
  const uint32_t window = registry.add_window(1, WindowType::Type2).value();
  // The program moved on to key + 1, but that bind never ran; then it binds with key + 2.
  const wire::Qpn qpn(0x10005);
  const WindowBinding binding{region, iova, 64, kRemoteWrite,
                              (window & ~0xFFu) | ((window + 2) & 0xFF)};
  ASSERT_TRUE(registry.bind_window(1, qpn, (window & ~0xFFu) | ((window + 1) & 0xFF), binding));
  EXPECT_NE(registry.resolve(binding.new_rkey, 1, qpn, iova, 64, kRemoteWrite), nullptr);
  EXPECT_EQ(registry.resolve(window, 1, qpn, iova, 64, kRemoteWrite), nullptr);
}

}  // namespace
}  // namespace verbena::core

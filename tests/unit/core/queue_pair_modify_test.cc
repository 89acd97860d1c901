// Changes of attributes of a queue pair in use.
#include "tests/unit/core/engine_support.h"

namespace verbena::core {
namespace {

using namespace qp_attr;
using wire::Opcode;

class QueuePairModifyTest : public EngineTest {
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

TEST_F(QueuePairModifyTest, AcceptsMoreReadsAfterMaxDestRdAtomicGrowsInSqd) {
  connect({.max_dest_read_atomic = 1});
  to_state(qp(), QpState::Sqd);
  QpAttributes attr;
  attr.max_dest_read_atomic = 4;
  change(kMaxDestRdAtomic, attr);
  for (uint32_t i = 0; i < 4; ++i) read_request(500 + i);
  EXPECT_EQ(transmit_opcodes(), std::vector<Opcode>(4, Opcode::RcReadResponseOnly));
}

TEST_F(QueuePairModifyTest, ReplaysReadResponsesAfterMaxDestRdAtomicChanges) {
  connect({.max_dest_read_atomic = 4});
  read_request(500);
  read_request(501);
  transmit();
  to_state(qp(), QpState::Sqd);
  QpAttributes attr;
  attr.max_dest_read_atomic = 2;
  change(kMaxDestRdAtomic, attr);
  read_request(501);  // a duplicate
  EXPECT_EQ(transmit_opcodes(), std::vector<Opcode>{Opcode::RcReadResponseOnly});
}

TEST_F(QueuePairModifyTest, RejectsMaxRdAtomicZeroWhileReadsAreQueued) {
  connect();
  to_state(qp(), QpState::Sqd);
  ASSERT_TRUE(post(SendOp::Read, 1, 8).ok());
  QpAttributes attr;
  attr.max_read_atomic = 0;
  EXPECT_EQ(qp().check_modify(attr, kMaxRdAtomic).error().code, EINVAL);
}

TEST_F(QueuePairModifyTest, SqdNotifyAppliesToOneTransitionOnly) {
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

TEST_F(QueuePairModifyTest, ADuplicateAtomicGetsTheNewestResponseOfItsPsn) {
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
  receive(p);  // a duplicate
  const auto replayed = transmit();
  ASSERT_EQ(replayed.size(), 1u);
  EXPECT_EQ(replayed[0].packet.original, 1u);
}

}  // namespace
}  // namespace verbena::core

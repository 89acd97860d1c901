// The modify_qp table: every pair of states, with each required attribute missing and each other
// attribute added.
#include <gtest/gtest.h>

#include <map>

#include "core/qp_attributes.h"
#include "tests/unit/core/engine_support.h"

namespace verbena::core {
namespace {

using namespace qp_attr;
using enum QpState;

constexpr QpState kStates[] = {Reset, Init, Rtr, Rts, Sqd, Sqe, QpState::Error};
constexpr uint32_t kBits = 26;

struct Row {
  uint32_t required = 0;
  uint32_t optional = 0;
};

using Table = std::map<std::pair<QpState, QpState>, Row>;

// Taken from the specification and the manual of ibv_modify_qp, not from the code.
const std::map<QpType, Table> kTables = {
    {QpType::Rc,
     {
         {{Reset, Init}, {kPkeyIndex | kPort | kAccessFlags, 0}},
         {{Init, Init}, {0, kPkeyIndex | kPort | kAccessFlags}},
         {{Init, Rtr},
          {kAddressVector | kPathMtu | kDestQpn | kRqPsn | kMaxDestRdAtomic | kMinRnrTimer,
           kAccessFlags | kPkeyIndex | kAlternatePath}},
         {{Rtr, Rts},
          {kTimeout | kRetryCount | kRnrRetry | kSqPsn | kMaxRdAtomic,
           kCurState | kAccessFlags | kMinRnrTimer | kAlternatePath | kPathMigState | kRateLimit}},
         {{Rts, Rts},
          {0,
           kCurState | kAccessFlags | kMinRnrTimer | kAlternatePath | kPathMigState | kRateLimit}},
         {{Rts, Sqd}, {0, kEnSqdAsyncNotify}},
         {{Sqd, Rts},
          {0,
           kCurState | kAccessFlags | kMinRnrTimer | kAlternatePath | kPathMigState | kRateLimit}},
         {{Sqd, Sqd},
          {0, kPort | kAddressVector | kTimeout | kRetryCount | kRnrRetry | kMaxRdAtomic |
                  kMaxDestRdAtomic | kAlternatePath | kAccessFlags | kPkeyIndex | kMinRnrTimer |
                  kPathMigState}},
         {{Sqe, Rts}, {0, kCurState | kAccessFlags | kMinRnrTimer}},
     }},
    {QpType::Uc,
     {
         {{Reset, Init}, {kPkeyIndex | kPort | kAccessFlags, 0}},
         {{Init, Init}, {0, kPkeyIndex | kPort | kAccessFlags}},
         {{Init, Rtr},
          {kAddressVector | kPathMtu | kDestQpn | kRqPsn,
           kAccessFlags | kPkeyIndex | kAlternatePath}},
         {{Rtr, Rts},
          {kSqPsn, kCurState | kAccessFlags | kAlternatePath | kPathMigState | kRateLimit}},
         {{Rts, Rts}, {0, kCurState | kAccessFlags | kAlternatePath | kPathMigState | kRateLimit}},
         {{Rts, Sqd}, {0, kEnSqdAsyncNotify}},
         {{Sqd, Rts}, {0, kCurState | kAccessFlags | kAlternatePath | kPathMigState | kRateLimit}},
         {{Sqd, Sqd},
          {0, kAddressVector | kAlternatePath | kAccessFlags | kPkeyIndex | kPathMigState}},
         {{Sqe, Rts}, {0, kCurState | kAccessFlags}},
     }},
    {QpType::Ud,
     {
         {{Reset, Init}, {kPkeyIndex | kPort | kQkey, 0}},
         {{Init, Init}, {0, kPkeyIndex | kPort | kQkey}},
         {{Init, Rtr}, {0, kPkeyIndex | kQkey}},
         {{Rtr, Rts}, {kSqPsn, kCurState | kQkey | kRateLimit}},
         {{Rts, Rts}, {0, kCurState | kQkey | kRateLimit}},
         {{Rts, Sqd}, {0, kEnSqdAsyncNotify}},
         {{Sqd, Rts}, {0, kCurState | kQkey | kRateLimit}},
         {{Sqd, Sqd}, {0, kPkeyIndex | kQkey}},
         {{Sqe, Rts}, {0, kCurState | kQkey}},
     }},
    {QpType::XrcSend,
     {
         {{Reset, Init}, {kPkeyIndex | kPort | kAccessFlags, 0}},
         {{Init, Init}, {0, kPkeyIndex | kPort | kAccessFlags}},
         {{Init, Rtr},
          {kAddressVector | kPathMtu | kDestQpn | kRqPsn,
           kAccessFlags | kPkeyIndex | kAlternatePath}},
         {{Rtr, Rts},
          {kTimeout | kRetryCount | kRnrRetry | kSqPsn | kMaxRdAtomic,
           kCurState | kAccessFlags | kAlternatePath | kPathMigState | kRateLimit}},
         {{Rts, Rts}, {0, kCurState | kAccessFlags | kAlternatePath | kPathMigState | kRateLimit}},
         {{Rts, Sqd}, {0, kEnSqdAsyncNotify}},
         {{Sqd, Rts}, {0, kCurState | kAccessFlags | kAlternatePath | kPathMigState | kRateLimit}},
         {{Sqd, Sqd},
          {0, kPort | kAddressVector | kTimeout | kRetryCount | kRnrRetry | kMaxRdAtomic |
                  kAlternatePath | kAccessFlags | kPkeyIndex | kPathMigState}},
     }},
    {QpType::XrcReceive,
     {
         {{Reset, Init}, {kPkeyIndex | kPort | kAccessFlags, 0}},
         {{Init, Init}, {0, kPkeyIndex | kPort | kAccessFlags}},
         {{Init, Rtr},
          {kAddressVector | kPathMtu | kDestQpn | kRqPsn | kMaxDestRdAtomic | kMinRnrTimer,
           kAccessFlags | kPkeyIndex | kAlternatePath}},
         {{Rtr, Rts},
          {kTimeout | kSqPsn,
           kCurState | kAccessFlags | kMinRnrTimer | kAlternatePath | kPathMigState}},
         {{Rts, Rts},
          {0, kCurState | kAccessFlags | kMinRnrTimer | kAlternatePath | kPathMigState}},
         {{Rts, Sqd}, {0, kEnSqdAsyncNotify}},
         {{Sqd, Rts},
          {0, kCurState | kAccessFlags | kMinRnrTimer | kAlternatePath | kPathMigState}},
         {{Sqd, Sqd},
          {0, kPort | kAddressVector | kTimeout | kMaxDestRdAtomic | kAlternatePath | kAccessFlags |
                  kPkeyIndex | kMinRnrTimer | kPathMigState}},
     }},
};

void check_pair(QpType type, QpState from, QpState to, const Row& r) {
  EXPECT_TRUE(check_transition(type, from, to, kState | r.required).ok());
  EXPECT_TRUE(check_transition(type, from, to, kState | r.required | r.optional).ok());
  for (uint32_t bit = 1; bit < kBits; ++bit) {
    const uint32_t attr = 1u << bit;
    if ((r.required & attr) != 0) {
      EXPECT_EQ(check_transition(type, from, to, kState | (r.required & ~attr)).error().code,
                EINVAL)
          << "without bit " << bit;
    } else {
      EXPECT_EQ(check_transition(type, from, to, kState | r.required | attr).ok(),
                (r.optional & attr) != 0)
          << "with bit " << bit;
    }
  }
}

TEST(QpTransitions, RequiresAndAllowsTheSpecifiedAttributes) {
  for (const auto& [type, table] : kTables) {
    for (const QpState from : kStates) {
      for (const QpState to : kStates) {
        SCOPED_TRACE(testing::Message()
                     << "type " << static_cast<int>(type) << ": " << static_cast<int>(from)
                     << " to " << static_cast<int>(to));
        const auto row = table.find({from, to});
        if (to == Reset || to == QpState::Error) {
          check_pair(type, from, to, {});
        } else if (row != table.end()) {
          check_pair(type, from, to, row->second);
        } else {
          EXPECT_EQ(check_transition(type, from, to, kState).error().code, EINVAL);
        }
      }
    }
  }
}

class CheckModifyTest : public EngineTest {
 public:
  CheckModifyTest() { connect(); }
  int check(const QpAttributes& attr, uint32_t mask) {
    return qp().check_modify(attr, mask).error().code;
  }
};

TEST_F(CheckModifyTest, RejectsValuesOutOfRange) {
  to_state(qp(), Sqd);
  QpAttributes a = qp().attributes();
  EXPECT_EQ(check(a, kTimeout | kRetryCount | kRnrRetry | kMaxRdAtomic | kAddressVector), 0);
  const auto refused = [&](uint32_t mask, auto change) {
    QpAttributes bad = a;
    change(bad);
    EXPECT_EQ(check(bad, mask), EINVAL) << "mask " << mask;
  };
  refused(kTimeout, [](auto& x) { x.timeout = 32; });
  refused(kRetryCount, [](auto& x) { x.retry_count = 8; });
  refused(kRnrRetry, [](auto& x) { x.rnr_retry = 8; });
  refused(kMinRnrTimer, [](auto& x) { x.min_rnr_timer = 32; });
  refused(kMaxRdAtomic, [](auto& x) { x.max_read_atomic = kMaxReadAtomic + 1; });
  refused(kMaxDestRdAtomic, [](auto& x) { x.max_dest_read_atomic = kMaxReadAtomic + 1; });
  refused(kPort, [](auto& x) { x.port = 2; });
  refused(kPkeyIndex, [](auto& x) { x.pkey_index = 1; });
  refused(kAddressVector, [](auto& x) { x.address.is_global = false; });
  refused(kAlternatePath, [](auto&) {});
}

TEST_F(CheckModifyTest, RejectsAWrongCurrentState) {
  QpAttributes a;
  a.state = Rts;
  a.current_state = Sqd;
  EXPECT_EQ(check(a, kState | kCurState), EINVAL);
  a.current_state = Rts;
  EXPECT_EQ(check(a, kState | kCurState), 0);
}

TEST_F(CheckModifyTest, RejectsAnUnknownState) {
  QpAttributes a;
  a.state = static_cast<QpState>(7);
  EXPECT_EQ(check(a, kState), EINVAL);
}

TEST_F(CheckModifyTest, ARejectedTransitionChangesNothing) {
  QpAttributes a;
  a.state = Init;
  ASSERT_EQ(check(a, kState), EINVAL);
  EXPECT_EQ(qp().state(), Rts);
}

TEST_F(CheckModifyTest, ResetClearsAllState) {
  ASSERT_TRUE(post(SendOp::Send, 1, 8).ok());
  ASSERT_TRUE(post_receive(2, 8).ok());
  transmit();
  to_state(qp(), Reset);
  EXPECT_TRUE(completions().empty());
  EXPECT_EQ(engine_.next_deadline(), kNever);
  EXPECT_EQ(qp().peer(), nullptr);
  EXPECT_EQ(qp().query().path_mtu, QpAttributes{}.path_mtu);
}

TEST_F(CheckModifyTest, QueryReportsTheNextPsns) {
  EXPECT_EQ(qp().query().sq_psn, 100u);
  EXPECT_EQ(qp().query().rq_psn, 500u);
  ASSERT_TRUE(post(SendOp::Write, 1, 600).ok());
  transmit();
  receive(request(wire::Opcode::RcWriteOnly, 500));
  EXPECT_EQ(qp().query().sq_psn, 103u);
  EXPECT_EQ(qp().query().rq_psn, 501u);
}

}  // namespace
}  // namespace verbena::core

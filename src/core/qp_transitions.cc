// The table of modify_qp for reliable connections (IBA 11.2.5.2, table "QP state transition
// properties").
#include "core/qp_attributes.h"

namespace verbena::core {
namespace {

using namespace qp_attr;

struct Transition {
  QpState from;
  QpState to;
  uint32_t required;
  uint32_t optional;
};

constexpr Transition kRcTransitions[] = {
    {QpState::Reset, QpState::Init, kPkeyIndex | kPort | kAccessFlags, 0},
    {QpState::Init, QpState::Init, 0, kPkeyIndex | kPort | kAccessFlags},
    {QpState::Init, QpState::Rtr,
     kAddressVector | kPathMtu | kDestQpn | kRqPsn | kMaxDestRdAtomic | kMinRnrTimer,
     kAlternatePath | kAccessFlags | kPkeyIndex},
    {QpState::Rtr, QpState::Rts, kTimeout | kRetryCount | kRnrRetry | kSqPsn | kMaxRdAtomic,
     kCurState | kAlternatePath | kAccessFlags | kMinRnrTimer | kPathMigState | kRateLimit},
    {QpState::Rts, QpState::Rts, 0,
     kCurState | kAccessFlags | kAlternatePath | kPathMigState | kMinRnrTimer | kRateLimit},
    {QpState::Rts, QpState::Sqd, 0, kEnSqdAsyncNotify},
    {QpState::Sqd, QpState::Rts, 0,
     kCurState | kAlternatePath | kAccessFlags | kMinRnrTimer | kPathMigState | kRateLimit},
    {QpState::Sqd, QpState::Sqd, 0,
     kPort | kAddressVector | kTimeout | kRetryCount | kRnrRetry | kMaxRdAtomic | kMaxDestRdAtomic |
         kAlternatePath | kAccessFlags | kPkeyIndex | kMinRnrTimer | kPathMigState},
    {QpState::Sqe, QpState::Rts, 0, kCurState | kAccessFlags | kMinRnrTimer},
};

}  // namespace

Status check_rc_transition(QpState from, QpState to, uint32_t mask) {
  const uint32_t given = mask & ~kState;
  if (to == QpState::Reset || to == QpState::Error) {  // from anywhere, with nothing else
    if (given != 0) return Error{EINVAL, "a change to RESET or ERR takes no other attributes"};
    return {};
  }
  for (const Transition& t : kRcTransitions) {
    if (t.from != from || t.to != to) continue;
    if ((given & t.required) != t.required) {
      return Error{EINVAL, "an attribute that this state change requires is missing from the mask"};
    }
    if ((given & ~(t.required | t.optional)) != 0) {
      return Error{EINVAL, "an attribute in the mask is not allowed in this state change"};
    }
    return {};
  }
  return Error{EINVAL, "no such state change: an RC QP goes RESET, INIT, RTR, RTS (then SQD, ERR)"};
}

}  // namespace verbena::core

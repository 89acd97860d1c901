// The tables of modify_qp, one per kind of queue pair (IBA 11.2.5.2, table "QP state transition
// properties").
#include <span>

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

constexpr uint32_t kBasics = kPkeyIndex | kPort | kAccessFlags;
constexpr uint32_t kPath = kAddressVector | kPathMtu | kDestQpn | kRqPsn;
constexpr uint32_t kRetries = kTimeout | kRetryCount | kRnrRetry;
// The attributes that a connected queue pair may change whenever it enters RTS.
constexpr uint32_t kAnyTime = kCurState | kAlternatePath | kAccessFlags | kPathMigState;

constexpr Transition kRc[] = {
    {QpState::Reset, QpState::Init, kBasics, 0},
    {QpState::Init, QpState::Init, 0, kBasics},
    {QpState::Init, QpState::Rtr, kPath | kMaxDestRdAtomic | kMinRnrTimer,
     kAlternatePath | kAccessFlags | kPkeyIndex},
    {QpState::Rtr, QpState::Rts, kRetries | kSqPsn | kMaxRdAtomic,
     kAnyTime | kMinRnrTimer | kRateLimit},
    {QpState::Rts, QpState::Rts, 0, kAnyTime | kMinRnrTimer | kRateLimit},
    {QpState::Rts, QpState::Sqd, 0, kEnSqdAsyncNotify},
    {QpState::Sqd, QpState::Rts, 0, kAnyTime | kMinRnrTimer | kRateLimit},
    {QpState::Sqd, QpState::Sqd, 0,
     kBasics | kAddressVector | kRetries | kMaxRdAtomic | kMaxDestRdAtomic | kAlternatePath |
         kMinRnrTimer | kPathMigState},
    {QpState::Sqe, QpState::Rts, 0, kCurState | kAccessFlags | kMinRnrTimer},
};

constexpr Transition kUc[] = {
    {QpState::Reset, QpState::Init, kBasics, 0},
    {QpState::Init, QpState::Init, 0, kBasics},
    {QpState::Init, QpState::Rtr, kPath, kAlternatePath | kAccessFlags | kPkeyIndex},
    {QpState::Rtr, QpState::Rts, kSqPsn, kAnyTime | kRateLimit},
    {QpState::Rts, QpState::Rts, 0, kAnyTime | kRateLimit},
    {QpState::Rts, QpState::Sqd, 0, kEnSqdAsyncNotify},
    {QpState::Sqd, QpState::Rts, 0, kAnyTime | kRateLimit},
    {QpState::Sqd, QpState::Sqd, 0,
     kAddressVector | kAlternatePath | kAccessFlags | kPkeyIndex | kPathMigState},
    {QpState::Sqe, QpState::Rts, 0, kCurState | kAccessFlags},
};

constexpr Transition kUd[] = {
    {QpState::Reset, QpState::Init, kPkeyIndex | kPort | kQkey, 0},
    {QpState::Init, QpState::Init, 0, kPkeyIndex | kPort | kQkey},
    {QpState::Init, QpState::Rtr, 0, kPkeyIndex | kQkey},
    {QpState::Rtr, QpState::Rts, kSqPsn, kCurState | kQkey | kRateLimit},
    {QpState::Rts, QpState::Rts, 0, kCurState | kQkey | kRateLimit},
    {QpState::Rts, QpState::Sqd, 0, kEnSqdAsyncNotify},
    {QpState::Sqd, QpState::Rts, 0, kCurState | kQkey | kRateLimit},
    {QpState::Sqd, QpState::Sqd, 0, kPkeyIndex | kQkey},
    {QpState::Sqe, QpState::Rts, 0, kCurState | kQkey},
};

// XRC's initiator has RC's sending half, its target RC's receiving half.
constexpr Transition kXrcSend[] = {
    {QpState::Reset, QpState::Init, kBasics, 0},
    {QpState::Init, QpState::Init, 0, kBasics},
    {QpState::Init, QpState::Rtr, kPath, kAlternatePath | kAccessFlags | kPkeyIndex},
    {QpState::Rtr, QpState::Rts, kRetries | kSqPsn | kMaxRdAtomic, kAnyTime | kRateLimit},
    {QpState::Rts, QpState::Rts, 0, kAnyTime | kRateLimit},
    {QpState::Rts, QpState::Sqd, 0, kEnSqdAsyncNotify},
    {QpState::Sqd, QpState::Rts, 0, kAnyTime | kRateLimit},
    {QpState::Sqd, QpState::Sqd, 0,
     kBasics | kAddressVector | kRetries | kMaxRdAtomic | kAlternatePath | kPathMigState},
};

constexpr Transition kXrcReceive[] = {
    {QpState::Reset, QpState::Init, kBasics, 0},
    {QpState::Init, QpState::Init, 0, kBasics},
    {QpState::Init, QpState::Rtr, kPath | kMaxDestRdAtomic | kMinRnrTimer,
     kAlternatePath | kAccessFlags | kPkeyIndex},
    {QpState::Rtr, QpState::Rts, kTimeout | kSqPsn, kAnyTime | kMinRnrTimer},
    {QpState::Rts, QpState::Rts, 0, kAnyTime | kMinRnrTimer},
    {QpState::Rts, QpState::Sqd, 0, kEnSqdAsyncNotify},
    {QpState::Sqd, QpState::Rts, 0, kAnyTime | kMinRnrTimer},
    {QpState::Sqd, QpState::Sqd, 0,
     kBasics | kAddressVector | kTimeout | kMaxDestRdAtomic | kAlternatePath | kMinRnrTimer |
         kPathMigState},
};

std::span<const Transition> transitions_of(QpType type) {
  switch (type) {
    case QpType::Uc:
      return kUc;
    case QpType::Ud:
      return kUd;
    case QpType::XrcSend:
      return kXrcSend;
    case QpType::XrcReceive:
      return kXrcReceive;
    default:
      return kRc;
  }
}

}  // namespace

Status check_transition(QpType type, QpState from, QpState to, uint32_t mask) {
  const uint32_t given = mask & ~kState;
  if (to == QpState::Reset || to == QpState::Error) {  // from any state, without other attributes
    if (given != 0) return Error{EINVAL, "a change to RESET or ERR takes no other attributes"};
    return {};
  }
  for (const Transition& t : transitions_of(type)) {
    if (t.from != from || t.to != to) continue;
    if ((given & t.required) != t.required) {
      return Error{EINVAL, "an attribute that this state change requires is missing from the mask"};
    }
    if ((given & ~(t.required | t.optional)) != 0) {
      return Error{EINVAL, "an attribute in the mask is not allowed in this state change"};
    }
    return {};
  }
  return Error{EINVAL, "no such state change: a QP goes RESET, INIT, RTR, RTS (then SQD, ERR)"};
}

}  // namespace verbena::core

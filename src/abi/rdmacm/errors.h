// Results of librdmacm's calls: 0, or -1 with errno and one log line with the reason.
#pragma once

#include "abi/verbs/errors.h"
#include "os/no_cancel.h"

// The version script exports these symbols. All others are hidden.
#define VERBENA_EXPORT __attribute__((visibility("default")))

namespace verbena::rdmacm {

inline constexpr Error kForked{
    EIO, "created before fork(); the child must create its own channels and identifiers"};
inline constexpr Error kRemoved{ENXIO,
                                "the device's network interface is gone: destroy the identifier"};
inline constexpr Error kNotBound{
    EINVAL, "the identifier has no device yet: bind it, or resolve an address"};

// Runs the body of a call that returns 0 or -1. The thread is not cancelled during it.
template <typename Body>
int outcome_of(const char* call, Body body) {
  const os::NoCancel no_cancel;
  return abi::status_of(call, body) == 0 ? 0 : -1;
}

// The same for a call that returns a pointer.
template <typename T, typename Body>
T* object_of(const char* call, Body body) {
  const os::NoCancel no_cancel;
  return abi::object_of<T>(call, body);
}

// Converts the return code of a verbs call, with a reason.
inline Status verbs_status(int code, const char* why) {
  return code == 0 ? Status{} : Status{Error{code, why}};
}

}  // namespace verbena::rdmacm

// Ends of calls at the library's boundary: an errno value, or a null pointer with errno; one log
// line with the reason; never an exception.
#pragma once

#include <cxxabi.h>

#include <cerrno>
#include <new>
#include <utility>

#include "base/result.h"
#include "runtime/log.h"

namespace verbena::abi {

// Logs why `call` fails and returns the errno value. The caller gets only the number; the log line
// is for the user.
inline int refuse(const char* call, const Error& error) {
  runtime::log(runtime::LogLevel::Info, "%s: %s", call, error.why);
  errno = error.code;
  return error.code;
}

inline constexpr Error kDead{
    EIO, "the device was opened before fork(); for traffic the child must open its own"};
inline constexpr Error kNoMemory{ENOMEM, "out of memory"};

// Runs the body of a hot call. The body reports errors itself; this catches exceptions, which cost
// nothing unless thrown.
template <typename Body>
int without_exceptions(Body body) {
  try {
    return body();
  } catch (::abi::__forced_unwind&) {  // pthread_cancel: the unwinding must continue
    throw;
  } catch (const std::bad_alloc&) {
    return ENOMEM;
  } catch (...) {
    return EIO;
  }
}

// Runs the body of a call that returns an errno value.
template <typename Body>
int status_of(const char* call, Body body) {
  try {
    const Status status = body();
    return status.ok() ? 0 : refuse(call, status.error());
  } catch (::abi::__forced_unwind&) {
    throw;
  } catch (const std::bad_alloc&) {
    return refuse(call, kNoMemory);
  } catch (...) {
    return refuse(call, Error{EIO, "internal error in the library"});
  }
}

// Runs the body of a call that returns a pointer; body() returns a Result.
template <typename T, typename Body>
T* object_of(const char* call, Body body) {
  T* object = nullptr;
  const int code = status_of(call, [&]() -> Status {
    Result<T*> result = body();
    if (!result.ok()) return result.error();
    object = result.value();
    return {};
  });
  if (code != 0) errno = code;
  return object;
}

}  // namespace verbena::abi

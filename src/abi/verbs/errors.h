// How a call ends at the boundary: an errno value or a null pointer with errno, one log line that
// says why, and never an exception.
#pragma once

#include <cxxabi.h>

#include <cerrno>
#include <new>
#include <utility>

#include "base/result.h"
#include "runtime/log.h"

namespace verbena::abi {

// Says why `call` is refused, and returns the errno value. The caller gets only a number; the line
// is for the person who wonders.
inline int refuse(const char* call, const Error& error) {
  runtime::log(runtime::LogLevel::Info, "%s: %s", call, error.why);
  errno = error.code;
  return error.code;
}

inline constexpr Error kDead{
    EIO, "the device was opened before fork(); for traffic the child must open its own"};
inline constexpr Error kNoMemory{ENOMEM, "out of memory"};

// The body of a hot call: it reports by itself, only exceptions end here. (They cost nothing unless
// thrown.)
template <typename Body>
int without_exceptions(Body body) {
  try {
    return body();
  } catch (::abi::__forced_unwind&) {  // pthread_cancel: the thread must be let go
    throw;
  } catch (const std::bad_alloc&) {
    return ENOMEM;
  } catch (...) {
    return EIO;
  }
}

// The body of a call that returns an errno value.
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
    return refuse(call, Error{EIO, "an unexpected failure inside the library"});
  }
}

// The body of a call that returns a pointer, made by body() as a Result.
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

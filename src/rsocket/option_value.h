// Reads and writes the values of socket options with the lengths that callers pass.
#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/result.h"

namespace verbena::rsocket {

// Errors: EFAULT, or EINVAL if it is too short.
template <typename T>
Result<T> option_value(const void* value, socklen_t size) {
  if (!value) return Error{EFAULT};
  if (size < sizeof(T)) return Error{EINVAL};
  T loaded;
  std::memcpy(&loaded, value, sizeof loaded);
  return loaded;
}

// As getsockopt: truncates the value to the caller's buffer.
inline Status store_bytes(const void* from, size_t length, void* value, socklen_t* size) {
  *size = std::min(*size, static_cast<socklen_t>(length));
  std::memcpy(value, from, *size);
  return {};
}

template <typename T>
Status store_value(const T& from, void* value, socklen_t* size) {
  return store_bytes(&from, sizeof from, value, size);
}

}  // namespace verbena::rsocket

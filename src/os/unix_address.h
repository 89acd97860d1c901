// UnixAddress: an abstract Unix socket name. It leaves no file, belongs to its network namespace,
// and becomes free when its owner ends, even by a kill.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cstdarg>
#include <cstddef>
#include <cstdio>

namespace verbena::os {

struct UnixAddress {
  sockaddr_un sun{};
  socklen_t bytes = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&sun); }

  [[gnu::format(printf, 1, 2)]] static UnixAddress abstract(const char* format, ...) {
    UnixAddress a;
    a.sun.sun_family = AF_UNIX;
    va_list arguments;
    va_start(arguments, format);
    const int n = std::vsnprintf(a.sun.sun_path + 1, sizeof a.sun.sun_path - 1, format, arguments);
    va_end(arguments);
    a.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(n));
    return a;
  }
};

}  // namespace verbena::os

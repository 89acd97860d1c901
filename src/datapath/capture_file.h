// Creates a capture file. A capture contains payload, so only the owner can read a new file,
// whatever the umask is. An existing file keeps its mode.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

namespace verbena::datapath {

// Returns null, with errno set, if the file cannot be created.
inline std::FILE* open_capture_file(const char* name, bool append) {
  const int fd = ::open(name, O_WRONLY | O_CREAT | O_CLOEXEC | (append ? O_APPEND : O_TRUNC), 0600);
  if (fd < 0) return nullptr;
  std::FILE* const file = ::fdopen(fd, append ? "ab" : "wb");
  if (file == nullptr) ::close(fd);
  return file;
}

}  // namespace verbena::datapath

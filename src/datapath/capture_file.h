// Creates a capture file. A capture contains payload, so only the owner can read a new file,
// whatever the umask is. An existing file keeps its mode.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

namespace verbena::datapath {

// Returns null, with errno set, if the file cannot be created. Each write appends: lanes, devices
// and forked children may write to one file.
inline std::FILE* open_capture_file(const char* name, bool append) {
  const int flags = O_WRONLY | O_CREAT | O_CLOEXEC | O_APPEND | (append ? 0 : O_TRUNC);
  const int fd = ::open(name, flags, 0600);
  if (fd < 0) return nullptr;
  std::FILE* const file = ::fdopen(fd, "ab");
  if (file == nullptr) ::close(fd);
  return file;
}

}  // namespace verbena::datapath

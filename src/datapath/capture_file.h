// Creates a capture file. A capture contains payload, so only the owner can read a new file,
// whatever the umask is. An existing file keeps its mode.
#pragma once

#include <fcntl.h>

#include "os/unique_fd.h"

namespace verbena::datapath {

// If the file cannot be created, errno has the reason. Each write appends: lanes, devices and
// forked children may write to one file.
inline os::UniqueFd open_capture_file(const char* name, bool append) {
  const int flags = O_WRONLY | O_CREAT | O_CLOEXEC | O_APPEND | (append ? 0 : O_TRUNC);
  return os::UniqueFd(::open(name, flags, 0600));
}

}  // namespace verbena::datapath

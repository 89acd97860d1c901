// Directory streams over the tree. A program holds them as DIR*, beside those of the C library, and
// asks about both with the same functions.
#pragma once

#include <dirent.h>

#include <string>
#include <vector>

namespace verbena::view {

struct OpenDirectory {
  int fd = -1;
  std::vector<std::string> names;
  size_t next = 0;
  dirent current{};

  DIR* handle() { return reinterpret_cast<DIR*>(this); }
  dirent* read();  // nullptr at the end
};

// Takes the descriptor, which open_shown() gave for that path, on success. nullptr and errno.
OpenDirectory* open_directory(int fd, const std::string& path) noexcept;
// nullptr: it is the C library's.
OpenDirectory* find(DIR* stream) noexcept;
int close(OpenDirectory* directory) noexcept;

}  // namespace verbena::view

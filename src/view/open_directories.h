// Directory streams of the view. A program holds them as DIR*, like those of the C library, and
// passes both to the same functions.
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

// Takes ownership of the descriptor, which open_shown() returned for that path, on success.
// Otherwise returns nullptr and sets errno.
OpenDirectory* open_directory(int fd, const std::string& path) noexcept;
// Returns nullptr if the stream belongs to the C library.
OpenDirectory* find(DIR* stream) noexcept;
int close(OpenDirectory* directory) noexcept;

}  // namespace verbena::view

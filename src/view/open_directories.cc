// A fixed table of open directories. Its entries are claimed and released without a lock, because
// fork() may happen at any moment.
#include "view/open_directories.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <functional>
#include <memory>

#include "view/machine.h"

namespace verbena::view {
namespace {

constexpr size_t kMaxOpen = 64;
std::atomic<OpenDirectory*> table[kMaxOpen];
std::atomic<int> open_now{0};

}  // namespace

dirent* OpenDirectory::read() {
  if (next >= names.size()) return nullptr;
  const std::string& name = names[next++];
  current = {};
  current.d_ino = std::hash<std::string>{}(name) | 1;
  current.d_off = static_cast<off_t>(next);
  current.d_reclen = sizeof current;
  current.d_type = DT_UNKNOWN;  // the program calls stat() if it needs the type
  std::snprintf(current.d_name, sizeof current.d_name, "%s", name.c_str());
  return &current;
}

OpenDirectory* open_directory(int fd, const std::string& path) noexcept {
  try {
    auto node = look_up(ThisMachine(), "/", path, LastLink::Follow);
    if (!node || node->kind != Node::Kind::Directory) {
      errno = ENOTDIR;
      return nullptr;
    }
    auto made = std::make_unique<OpenDirectory>();
    made->fd = fd;
    made->names = std::move(node->names);
    made->names.insert(made->names.begin(), {".", ".."});
    for (auto& entry : table) {
      OpenDirectory* none = nullptr;
      if (!entry.compare_exchange_strong(none, made.get())) continue;
      open_now.fetch_add(1);
      return made.release();
    }
    errno = EMFILE;
  } catch (...) {
    errno = ENOMEM;
  }
  return nullptr;
}

OpenDirectory* find(DIR* stream) noexcept {
  if (open_now.load(std::memory_order_relaxed) == 0) return nullptr;
  for (auto& entry : table) {
    OpenDirectory* const directory = entry.load();
    if (directory != nullptr && directory->handle() == stream) return directory;
  }
  return nullptr;
}

int close(OpenDirectory* directory) noexcept {
  for (auto& entry : table) {
    if (entry.load() != directory) continue;
    entry.store(nullptr);
    open_now.fetch_sub(1);
  }
  const int status = ::close(directory->fd);
  delete directory;
  return status;
}

}  // namespace verbena::view

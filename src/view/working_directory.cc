// Interposed functions of the C library that change and report the working directory. A directory
// of the view cannot be the kernel's working directory. The process stores its path instead, and
// the kernel's working directory is kStandIn. fork() copies the path; an executed program takes it
// from PWD, which shells set.
#include "view/working_directory.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "view/next.h"
#include "view/shown.h"

namespace verbena::view {
namespace {

// A working directory of the view is recognised by this path: no file can be created or removed
// here, and no program has a reason to change to it.
constexpr const char* kStandIn = "/proc/tty";

bool kernel_is_at_stand_in() noexcept {
  char path[PATH_MAX];
  return ::syscall(SYS_getcwd, path, sizeof path) > 0 && std::strcmp(path, kStandIn) == 0;
}

// A directory of the view that was entered. A child of vfork() shares our memory, so each entry
// records its process: the child's changes do not move its parent.
struct Entered {
  pid_t process;
  std::string path;
  const Entered* previous;
};

const Entered* inherited() noexcept {
  const char* const pwd = std::getenv("PWD");
  if (pwd == nullptr || *pwd != '/' || !may_be_shown(pwd) || !kernel_is_at_stand_in())
    return nullptr;
  const auto node = shown_at(AT_FDCWD, pwd, LastLink::Follow);
  if (!node || node->kind != Node::Kind::Directory) return nullptr;
  return new Entered{::getpid(), node->path, nullptr};
}

// The newest entry. Earlier ones are not freed, because another thread may be reading one.
std::atomic<const Entered*> entered{inherited()};

// Returns the newest entry of this process, or its parent's newest if this process has none.
const Entered* own_entered() noexcept {
  const Entered* const newest = entered.load();
  const pid_t self = ::getpid();
  for (const Entered* e = newest; e != nullptr; e = e->previous) {
    if (e->process == self) return e;
  }
  return newest;
}

int enter(const std::string& path) noexcept {
  try {
    auto* const next = new Entered{::getpid(), path, entered.load()};
    if (NEXT(chdir)(kStandIn) == 0) {
      while (!entered.compare_exchange_weak(next->previous, next)) {
      }
      return 0;
    }
    delete next;
  } catch (...) {
    errno = ENOMEM;
  }
  return -1;
}

char* copy(const std::string& path, char* to, size_t size) noexcept {
  const size_t needed = path.size() + 1;
  if (to != nullptr && size == 0) {
    errno = EINVAL;
    return nullptr;
  }
  if (size != 0 && size < needed) {
    errno = ERANGE;
    return nullptr;
  }
  if (to == nullptr) to = static_cast<char*>(std::malloc(size != 0 ? size : needed));
  if (to != nullptr) std::memcpy(to, path.c_str(), needed);
  return to;
}

}  // namespace

bool in_shown_directory() noexcept { return entered.load(std::memory_order_relaxed) != nullptr; }

// The kernel's working directory shows whether the process has left the view since.
std::optional<std::string> shown_working_directory() {
  const Entered* const last = own_entered();
  if (last == nullptr || !kernel_is_at_stand_in()) return std::nullopt;
  return last->path;
}

}  // namespace verbena::view

using namespace verbena::view;

VERBENA_SHOWN int chdir(const char* path) noexcept {
  const auto node = shown_at(AT_FDCWD, path, LastLink::Follow);
  if (!node) return NEXT(chdir)(path);
  if (node->kind == Node::Kind::Elsewhere) return NEXT(chdir)(node->path.c_str());
  if (node->kind == Node::Kind::Directory) return enter(node->path);
  errno = node->kind == Node::Kind::None ? ENOENT : ENOTDIR;
  return -1;
}

VERBENA_SHOWN int fchdir(int fd) noexcept {
  const auto path = directory_of(fd);
  return path ? enter(*path) : NEXT(fchdir)(fd);
}

VERBENA_SHOWN char* getcwd(char* to, size_t size) noexcept {
  if (in_shown_directory()) {
    if (const auto path = shown_working_directory()) return copy(*path, to, size);
  }
  return NEXT(getcwd)(to, size);
}

VERBENA_SHOWN char* get_current_dir_name() noexcept {
  return in_shown_directory() ? ::getcwd(nullptr, 0) : NEXT(get_current_dir_name)();
}

// Entry point for programs compiled with _FORTIFY_SOURCE.
VERBENA_SHOWN char* __getcwd_chk(char* to, size_t size, size_t capacity) noexcept {
  if (size > capacity) std::abort();
  return ::getcwd(to, size);
}

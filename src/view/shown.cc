// Descriptors of the view are memory files. The name of a directory's memory file contains its
// path, and the kernel reports that name. So the descriptor survives dup(), and no table is needed.
#include "view/shown.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>

#include "view/machine.h"
#include "view/working_directory.h"

namespace verbena::view {
namespace {

constexpr std::string_view kDirectory = "/memfd:verbena:";
constexpr std::string_view kFile = "/memfd:verbena ";
constexpr std::string_view kDeleted = " (deleted)";

// False: no descriptor can be a directory of the view.
std::atomic<bool> any_directory_opened{false};

// Counters change while they are open. Each low descriptor that was opened as a counter has one
// bit; the program may have closed and reused it since.
constexpr int kTrackedDescriptors = 1024;
std::atomic<bool> any_counter_opened{false};
std::atomic<uint64_t> counters_opened[kTrackedDescriptors / 64];

void track_counter(int fd, bool on) {
  if (fd >= kTrackedDescriptors) return;
  const uint64_t bit = uint64_t{1} << (fd % 64);
  std::atomic<uint64_t>& bits = counters_opened[fd / 64];
  if (on) {
    bits.fetch_or(bit, std::memory_order_relaxed);
    any_counter_opened.store(true, std::memory_order_relaxed);
  } else {
    bits.fetch_and(~bit, std::memory_order_relaxed);
  }
}

bool is_counter(std::string_view path) {
  return path.find("/counters/") != path.npos || path.find("/hw_counters/") != path.npos;
}

class KeptErrno {
 public:
  ~KeptErrno() { errno = value_; }

 private:
  const int value_ = errno;
};

// Returns the kernel's path of a descriptor; empty if the kernel does not report it.
std::string path_of(int fd) {
  char name[32];
  std::snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
  char path[PATH_MAX];
  const long n = ::syscall(SYS_readlinkat, AT_FDCWD, name, path, sizeof path);
  return n > 0 ? std::string(path, static_cast<size_t>(n)) : "";
}

std::optional<std::string> tree_path_of(int fd, std::string_view kind = kDirectory) {
  const std::string all = path_of(fd);
  std::string_view path = all;
  if (!path.starts_with(kind) || !path.ends_with(kDeleted)) return std::nullopt;
  path.remove_prefix(kind.size());
  path.remove_suffix(kDeleted.size());
  return std::string(path);
}

// Returns the folder at which a relative path begins; empty if the kernel does not report it or the
// folder was removed.
std::string base_of(int folder) {
  if (folder == AT_FDCWD) {
    if (const auto shown = shown_working_directory()) return *shown;
    char path[PATH_MAX];
    return ::syscall(SYS_getcwd, path, sizeof path) > 0 ? path : "";
  }
  const auto ours = tree_path_of(folder);
  return ours ? *ours : path_of(folder);
}

}  // namespace

std::optional<Node> shown_at(int folder, const char* path, LastLink last) noexcept {
  if (path == nullptr || *path == '\0') return std::nullopt;
  const bool below_ours =
      *path != '/' && (folder == AT_FDCWD ? in_shown_directory()
                                          : any_directory_opened.load(std::memory_order_relaxed));
  if (!below_ours && !may_be_shown(path)) return std::nullopt;
  const KeptErrno kept;
  try {
    const std::string base = *path == '/' ? "" : base_of(folder);
    if (*path != '/' && !base.starts_with('/')) return std::nullopt;
    if (!may_be_shown(path) && !may_be_shown(base)) return std::nullopt;
    return look_up(ThisMachine(), base, path, last);
  } catch (...) {
    return std::nullopt;
  }
}

std::optional<std::string> directory_of(int fd) noexcept {
  if (!any_directory_opened.load(std::memory_order_relaxed)) return std::nullopt;
  const KeptErrno kept;
  try {
    return tree_path_of(fd);
  } catch (...) {
    return std::nullopt;
  }
}

int open_shown(const Node& node, int flags) noexcept {
  const bool is_directory = node.kind == Node::Kind::Directory;
  const auto refused = [](int code) {
    errno = code;
    return -1;
  };
  if (node.kind == Node::Kind::None) return refused(ENOENT);
  if (node.kind == Node::Kind::Link) return refused(ELOOP);             // O_NOFOLLOW
  if (node.kind == Node::Kind::CharacterDevice) return refused(ENXIO);  // it has no kernel driver
  if ((flags & O_EXCL) != 0 && (flags & O_CREAT) != 0) return refused(EEXIST);
  if ((flags & O_ACCMODE) != O_RDONLY) return refused(is_directory ? EISDIR : EACCES);
  if ((flags & O_DIRECTORY) != 0 && !is_directory) return refused(ENOTDIR);
  if (node.refusal != 0) return refused(node.refusal);

  rlimit largest{};  // a write beyond it would kill the program (SIGXFSZ)
  if (::getrlimit(RLIMIT_FSIZE, &largest) != 0 || largest.rlim_cur < node.text.size())
    return refused(EFBIG);

  const unsigned close_on_exec = (flags & O_CLOEXEC) != 0 ? MFD_CLOEXEC : 0;
  const std::string name = (is_directory ? "verbena:" : "verbena ") + node.path;
  const int fd = ::memfd_create(name.c_str(), close_on_exec | MFD_ALLOW_SEALING);
  if (fd < 0) return -1;
  const auto size = static_cast<ssize_t>(node.text.size());
  if (::pwrite(fd, node.text.data(), node.text.size(), 0) != size || ::fchmod(fd, 0444) != 0 ||
      ::fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) != 0) {
    const int code = errno;
    ::close(fd);
    return refused(code);
  }
  if (is_directory) any_directory_opened.store(true, std::memory_order_relaxed);
  if (!is_directory && is_counter(node.path)) track_counter(fd, true);
  return fd;
}

bool may_be_counter(int fd) noexcept {
  if (!any_counter_opened.load(std::memory_order_relaxed) || fd < 0 || fd >= kTrackedDescriptors)
    return false;
  return (counters_opened[fd / 64].load(std::memory_order_relaxed) >> (fd % 64) & 1) != 0;
}

void refresh_counter(int fd) noexcept {
  const KeptErrno kept;
  try {
    const auto path = tree_path_of(fd, kFile);
    if (!path) return track_counter(fd, false);
    const auto node = look_up(ThisMachine(), "", *path, LastLink::Follow);
    const int flags = ::fcntl(fd, F_GETFD);
    if (!node || node->kind != Node::Kind::File || flags < 0) return;  // the device was removed
    const int close_on_exec = (flags & FD_CLOEXEC) != 0 ? O_CLOEXEC : 0;
    const int fresh = open_shown(*node, O_RDONLY | close_on_exec);
    if (fresh < 0) return;
    ::dup3(fresh, fd, close_on_exec);
    track_counter(fresh, false);
    ::close(fresh);
  } catch (...) {
    return;  // the file keeps its old contents
  }
}

}  // namespace verbena::view

// Interposed functions of the C library that open files, describe paths and resolve links. Each one
// looks the path up in the view first and passes all other paths to the next function.
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>

#include "view/next.h"
#include "view/shown.h"

static_assert(sizeof(off_t) == 8 && sizeof(ino_t) == 8 && sizeof(long) == 8);

using namespace verbena::view;

namespace {

using Kind = Node::Kind;

constexpr unsigned kVerbsMajor = 231;  // the kernel's number for uverbs devices

int refuse(int code) {
  errno = code;
  return -1;
}

// Looks the path up in the view. Calls the next function if the view does not have the path or it
// leads to a file of the kernel.
template <typename Ours, typename Next>
auto dispatch(int folder, const char* path, LastLink last, Ours ours, Next next) {
  const auto node = shown_at(folder, path, last);
  if (!node) return next(folder, path);
  if (node->kind == Kind::Elsewhere) return next(AT_FDCWD, node->path.c_str());
  return ours(*node);
}

// -------------------------------------------------------------------------- descriptions of a node

int describe(const Node& node, struct stat* to) {
  if (node.kind == Kind::None) return refuse(ENOENT);
  *to = {};
  to->st_nlink = 1;
  to->st_ino = std::hash<std::string>{}(node.path) | 1;
  to->st_blksize = 4096;
  switch (node.kind) {
    case Kind::Directory:
      to->st_mode = S_IFDIR | 0555;
      break;
    case Kind::Link:
      to->st_mode = S_IFLNK | 0777;
      to->st_size = static_cast<off_t>(node.text.size());
      break;
    case Kind::CharacterDevice:
      to->st_mode = S_IFCHR | 0666;
      to->st_rdev = makedev(kVerbsMajor, node.minor);
      break;
    default:
      to->st_mode = S_IFREG | 0444;
      to->st_size = 4096;  // the size that sysfs reports for each of its files
  }
  return 0;
}

int describe(const Node& node, struct statx* to) {
  struct stat plain {};
  if (describe(node, &plain) != 0) return -1;
  *to = {};
  to->stx_mask =
      STATX_TYPE | STATX_MODE | STATX_NLINK | STATX_UID | STATX_GID | STATX_INO | STATX_SIZE;
  to->stx_blksize = 4096;
  to->stx_nlink = 1;
  to->stx_mode = static_cast<uint16_t>(plain.st_mode);
  to->stx_ino = plain.st_ino;
  to->stx_size = static_cast<uint64_t>(plain.st_size);
  to->stx_rdev_major = major(plain.st_rdev);
  to->stx_rdev_minor = minor(plain.st_rdev);
  return 0;
}

int check_access(const Node& node, int mode) {
  if (node.kind == Kind::None) return refuse(ENOENT);
  int granted = R_OK;
  if (node.kind == Kind::CharacterDevice) granted = R_OK | W_OK;
  if (node.kind == Kind::Directory) granted = R_OK | X_OK;
  return (mode & ~granted) == 0 ? 0 : refuse(EACCES);
}

// As describe(), for the descriptor of an open directory.
template <typename To>
bool describe_descriptor(int fd, To* to) {
  const auto path = directory_of(fd);
  if (!path) return false;
  describe(Node{.kind = Kind::Directory, .path = *path}, to);
  return true;
}

// ---------------------------------------------------------------------------------- links and
// paths

ssize_t copy_target(const Node& node, char* to, size_t size) {
  if (node.kind == Kind::None) return refuse(ENOENT);
  if (node.kind != Kind::Link) return refuse(EINVAL);
  return static_cast<ssize_t>(node.text.copy(to, size));  // readlink adds no terminating zero
}

char* copy_path(const Node& node, char* to) {
  if (node.kind == Kind::None) {
    errno = ENOENT;
    return nullptr;
  }
  if (to == nullptr) return ::strdup(node.path.c_str());
  std::snprintf(to, PATH_MAX, "%s", node.path.c_str());
  return to;
}

LastLink last_link(int flags) {
  return (flags & AT_SYMLINK_NOFOLLOW) != 0 ? LastLink::Keep : LastLink::Follow;
}

int open_path(int folder, const char* path, int flags, auto next) {
  const LastLink last = (flags & O_NOFOLLOW) != 0 ? LastLink::Keep : LastLink::Follow;
  return dispatch(
      folder, path, last, [&](const Node& n) { return open_shown(n, flags); }, next);
}

bool takes_mode(int flags) { return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE; }

// Reads the mode argument of open and openat.
#define MODE_AFTER(last_named)        \
  mode_t mode = 0;                    \
  if (takes_mode(flags)) {            \
    va_list arguments;                \
    va_start(arguments, last_named);  \
    mode = va_arg(arguments, mode_t); \
    va_end(arguments);                \
  }

}  // namespace

// ------------------------------------------------------------------------------------ open

VERBENA_SHOWN int open(const char* path, int flags, ...) {
  MODE_AFTER(flags)
  return open_path(AT_FDCWD, path, flags,
                   [&](int, const char* p) { return NEXT(open)(p, flags, mode); });
}

VERBENA_SHOWN int openat(int folder, const char* path, int flags, ...) {
  MODE_AFTER(flags)
  return open_path(folder, path, flags,
                   [&](int f, const char* p) { return NEXT(openat)(f, p, flags, mode); });
}

VERBENA_SHOWN FILE* fopen(const char* path, const char* mode) {
  const auto ours = [&](const Node& node) -> FILE* {
    const bool writes = std::strpbrk(mode, "wa+") != nullptr;
    const int close_on_exec = std::strchr(mode, 'e') != nullptr ? O_CLOEXEC : 0;
    const int fd = open_shown(node, (writes ? O_RDWR : O_RDONLY) | close_on_exec);
    return fd >= 0 ? ::fdopen(fd, "r") : nullptr;
  };
  return dispatch(AT_FDCWD, path, LastLink::Follow, ours,
                  [&](int, const char* p) { return NEXT(fopen)(p, mode); });
}

// ------------------------------------------------------------------------------------ read

VERBENA_SHOWN ssize_t read(int fd, void* to, size_t size) {
  if (may_be_counter(fd) && ::lseek(fd, 0, SEEK_CUR) == 0) refresh_counter(fd);
  return NEXT(read)(fd, to, size);
}

VERBENA_SHOWN ssize_t pread(int fd, void* to, size_t size, off_t from) {
  if (may_be_counter(fd) && from == 0) refresh_counter(fd);
  return NEXT(pread)(fd, to, size, from);
}

// ------------------------------------------------------------------------------------ stat

VERBENA_SHOWN int stat(const char* path, struct stat* to) noexcept {
  return dispatch(
      AT_FDCWD, path, LastLink::Follow, [&](const Node& n) { return describe(n, to); },
      [&](int, const char* p) { return NEXT(stat)(p, to); });
}

VERBENA_SHOWN int lstat(const char* path, struct stat* to) noexcept {
  return dispatch(
      AT_FDCWD, path, LastLink::Keep, [&](const Node& n) { return describe(n, to); },
      [&](int, const char* p) { return NEXT(lstat)(p, to); });
}

VERBENA_SHOWN int fstat(int fd, struct stat* to) noexcept {
  return describe_descriptor(fd, to) ? 0 : NEXT(fstat)(fd, to);
}

VERBENA_SHOWN int fstatat(int folder, const char* path, struct stat* to, int flags) noexcept {
  if ((flags & AT_EMPTY_PATH) != 0 && *path == '\0' && describe_descriptor(folder, to)) return 0;
  return dispatch(
      folder, path, last_link(flags), [&](const Node& n) { return describe(n, to); },
      [&](int f, const char* p) { return NEXT(fstatat)(f, p, to, flags); });
}

VERBENA_SHOWN int statx(int folder, const char* path, int flags, unsigned mask,
                        struct statx* to) noexcept {
  if ((flags & AT_EMPTY_PATH) != 0 && *path == '\0' && describe_descriptor(folder, to)) return 0;
  return dispatch(
      folder, path, last_link(flags), [&](const Node& n) { return describe(n, to); },
      [&](int f, const char* p) { return NEXT(statx)(f, p, flags, mask, to); });
}

// ------------------------------------------------------------------------------------ access

VERBENA_SHOWN int access(const char* path, int mode) noexcept {
  return dispatch(
      AT_FDCWD, path, LastLink::Follow, [&](const Node& n) { return check_access(n, mode); },
      [&](int, const char* p) { return NEXT(access)(p, mode); });
}

VERBENA_SHOWN int euidaccess(const char* path, int mode) noexcept {
  return dispatch(
      AT_FDCWD, path, LastLink::Follow, [&](const Node& n) { return check_access(n, mode); },
      [&](int, const char* p) { return NEXT(euidaccess)(p, mode); });
}

VERBENA_SHOWN int faccessat(int folder, const char* path, int mode, int flags) noexcept {
  return dispatch(
      folder, path, last_link(flags), [&](const Node& n) { return check_access(n, mode); },
      [&](int f, const char* p) { return NEXT(faccessat)(f, p, mode, flags); });
}

// ls queries the access control lists of a file.
VERBENA_SHOWN ssize_t getxattr(const char* path, const char* name, void* to, size_t size) noexcept {
  return dispatch(
      AT_FDCWD, path, LastLink::Follow, [](const Node&) -> ssize_t { return refuse(ENODATA); },
      [&](int, const char* p) { return NEXT(getxattr)(p, name, to, size); });
}

VERBENA_SHOWN ssize_t lgetxattr(const char* path, const char* name, void* to,
                                size_t size) noexcept {
  return dispatch(
      AT_FDCWD, path, LastLink::Keep, [](const Node&) -> ssize_t { return refuse(ENODATA); },
      [&](int, const char* p) { return NEXT(lgetxattr)(p, name, to, size); });
}

// ------------------------------------------------------------------------------------ links

VERBENA_SHOWN ssize_t readlink(const char* path, char* to, size_t size) noexcept {
  return dispatch(
      AT_FDCWD, path, LastLink::Keep, [&](const Node& n) { return copy_target(n, to, size); },
      [&](int, const char* p) { return NEXT(readlink)(p, to, size); });
}

VERBENA_SHOWN ssize_t readlinkat(int folder, const char* path, char* to, size_t size) noexcept {
  return dispatch(
      folder, path, LastLink::Keep, [&](const Node& n) { return copy_target(n, to, size); },
      [&](int f, const char* p) { return NEXT(readlinkat)(f, p, to, size); });
}

VERBENA_SHOWN char* realpath(const char* path, char* to) noexcept {
  return dispatch(
      AT_FDCWD, path, LastLink::Follow, [&](const Node& n) { return copy_path(n, to); },
      [&](int, const char* p) { return NEXT(realpath)(p, to); });
}

VERBENA_SHOWN char* canonicalize_file_name(const char* path) noexcept {
  return ::realpath(path, nullptr);
}

// ------------------------------------------------------------------------------- other symbol
// names

VERBENA_ALSO(open, open64);
VERBENA_ALSO(openat, openat64);
VERBENA_ALSO(fopen, fopen64);
VERBENA_ALSO(pread, pread64);
VERBENA_ALSO(stat, stat64);
VERBENA_ALSO(lstat, lstat64);
VERBENA_ALSO(fstat, fstat64);
VERBENA_ALSO(fstatat, fstatat64);
VERBENA_ALSO(euidaccess, eaccess);

// Entry points for programs compiled with _FORTIFY_SOURCE.
VERBENA_SHOWN int __open_2(const char* path, int flags) { return ::open(path, flags); }
VERBENA_ALSO(__open_2, __open64_2);
VERBENA_SHOWN int __openat_2(int folder, const char* path, int flags) {
  return ::openat(folder, path, flags);
}
VERBENA_ALSO(__openat_2, __openat64_2);
VERBENA_SHOWN ssize_t __read_chk(int fd, void* to, size_t size, size_t capacity) {
  if (size > capacity) std::abort();
  return ::read(fd, to, size);
}

VERBENA_SHOWN ssize_t __readlink_chk(const char* path, char* to, size_t size,
                                     size_t capacity) noexcept {
  if (size > capacity) std::abort();
  return ::readlink(path, to, size);
}
VERBENA_SHOWN ssize_t __readlinkat_chk(int folder, const char* path, char* to, size_t size,
                                       size_t capacity) noexcept {
  if (size > capacity) std::abort();
  return ::readlinkat(folder, path, to, size);
}
VERBENA_SHOWN char* __realpath_chk(const char* path, char* to, size_t capacity) noexcept {
  if (capacity < PATH_MAX) std::abort();
  return ::realpath(path, to);
}

// Entry points for programs built for a C library before 2.33. The first argument is the version of
// the structure; there is only one.
VERBENA_SHOWN int __xstat(int, const char* path, struct stat* to) noexcept {
  return ::stat(path, to);
}
VERBENA_ALSO(__xstat, __xstat64);
VERBENA_SHOWN int __lxstat(int, const char* path, struct stat* to) noexcept {
  return ::lstat(path, to);
}
VERBENA_ALSO(__lxstat, __lxstat64);
VERBENA_SHOWN int __fxstat(int, int fd, struct stat* to) noexcept { return ::fstat(fd, to); }
VERBENA_ALSO(__fxstat, __fxstat64);
VERBENA_SHOWN int __fxstatat(int, int folder, const char* path, struct stat* to,
                             int flags) noexcept {
  return ::fstatat(folder, path, to, flags);
}
VERBENA_ALSO(__fxstatat, __fxstatat64);

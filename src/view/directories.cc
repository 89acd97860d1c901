// The C library's functions for directory streams.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "view/next.h"
#include "view/open_directories.h"
#include "view/shown.h"

using namespace verbena::view;

namespace {

DIR* stream_of(int fd, const std::string& path) {
  OpenDirectory* const directory = open_directory(fd, path);
  return directory != nullptr ? directory->handle() : nullptr;
}

// Implements scandir() with the interposed functions: returns the entries that `filter` accepts,
// each in its own allocation.
int scan(const char* path, dirent*** to, int (*filter)(const dirent*),
         int (*compare)(const dirent**, const dirent**)) {
  DIR* const stream = ::opendir(path);
  if (stream == nullptr) return -1;
  constexpr size_t kEach = sizeof(void*);  // size of an element of the pointer list
  dirent** list = nullptr;
  size_t n = 0;
  while (const dirent* const entry = ::readdir(stream)) {
    if (filter != nullptr && filter(entry) == 0) continue;
    auto* const longer = static_cast<dirent**>(std::realloc(list, (n + 1) * kEach));
    auto* const copy = static_cast<dirent*>(std::malloc(entry->d_reclen));
    if (longer == nullptr || copy == nullptr) std::abort();
    std::memcpy(copy, entry, entry->d_reclen);  // d_reclen may be shorter than the structure
    list = longer;
    list[n++] = copy;
  }
  ::closedir(stream);
  if (compare != nullptr && n > 1) {
    std::qsort(list, n, kEach, reinterpret_cast<int (*)(const void*, const void*)>(compare));
  }
  *to = list;
  return static_cast<int>(n);
}

}  // namespace

VERBENA_SHOWN DIR* opendir(const char* path) {
  const auto node = shown_at(AT_FDCWD, path, LastLink::Follow);
  if (!node) return NEXT(opendir)(path);
  if (node->kind == Node::Kind::Elsewhere) return NEXT(opendir)(node->path.c_str());
  const int fd = open_shown(*node, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return nullptr;
  DIR* const stream = stream_of(fd, node->path);
  if (stream == nullptr) ::close(fd);
  return stream;
}

VERBENA_SHOWN DIR* fdopendir(int fd) {
  const auto path = directory_of(fd);
  return path ? stream_of(fd, *path) : NEXT(fdopendir)(fd);
}

VERBENA_SHOWN dirent* readdir(DIR* stream) {
  OpenDirectory* const ours = find(stream);
  return ours != nullptr ? ours->read() : NEXT(readdir)(stream);
}
VERBENA_ALSO(readdir, readdir64);

VERBENA_SHOWN int readdir_r(DIR* stream, dirent* entry, dirent** result) {
  OpenDirectory* const ours = find(stream);
  if (ours == nullptr) return NEXT(readdir_r)(stream, entry, result);
  const dirent* const read = ours->read();
  if (read != nullptr) *entry = *read;
  *result = read != nullptr ? entry : nullptr;
  return 0;
}
VERBENA_ALSO(readdir_r, readdir64_r);

VERBENA_SHOWN int closedir(DIR* stream) {
  OpenDirectory* const ours = find(stream);
  return ours != nullptr ? verbena::view::close(ours) : NEXT(closedir)(stream);
}

VERBENA_SHOWN int dirfd(DIR* stream) noexcept {
  const OpenDirectory* const ours = find(stream);
  return ours != nullptr ? ours->fd : NEXT(dirfd)(stream);
}

VERBENA_SHOWN void rewinddir(DIR* stream) noexcept {
  if (OpenDirectory* const ours = find(stream)) {
    ours->next = 0;
  } else {
    NEXT(rewinddir)(stream);
  }
}

VERBENA_SHOWN long telldir(DIR* stream) noexcept {
  const OpenDirectory* const ours = find(stream);
  return ours != nullptr ? static_cast<long>(ours->next) : NEXT(telldir)(stream);
}

VERBENA_SHOWN void seekdir(DIR* stream, long place) noexcept {
  if (OpenDirectory* const ours = find(stream)) {
    ours->next = static_cast<size_t>(place);
  } else {
    NEXT(seekdir)(stream, place);
  }
}

VERBENA_SHOWN int scandir(const char* path, dirent*** to, int (*filter)(const dirent*),
                          int (*compare)(const dirent**, const dirent**)) {
  return shown_at(AT_FDCWD, path, LastLink::Follow) ? scan(path, to, filter, compare)
                                                    : NEXT(scandir)(path, to, filter, compare);
}
VERBENA_ALSO(scandir, scandir64);

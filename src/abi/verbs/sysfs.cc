// The functions by which programs read sysfs through the library.
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "abi/verbs/errors.h"
#include "abi/verbs/objects.h"

namespace verbena::abi {
namespace {

// The sysfs folder. SYSFS_PATH is a variable of rdma-core.
const char* find_sysfs() {
  const char* set = secure_getenv("SYSFS_PATH");
  if (set == nullptr || *set == 0) return "/sys";
  char* const path = strdup(set);
  if (path == nullptr) return "/sys";
  size_t length = std::strlen(path);
  while (length > 1 && path[length - 1] == '/') path[--length] = 0;
  return path;
}

// Reads the file's text without the final newline. Returns -1 and sets errno on failure.
int read_text(const char* path, char* buffer, size_t size) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  ssize_t length = read(fd, buffer, size);
  const int code = errno;
  close(fd);
  errno = code;
  if (length > 0 && buffer[length - 1] == '\n') buffer[--length] = 0;
  if (length >= 0 && static_cast<size_t>(length) < size) buffer[length] = 0;
  return static_cast<int>(length);
}

}  // namespace
}  // namespace verbena::abi

using namespace verbena::abi;

extern "C" {

VERBENA_EXPORT const char* ibv_get_sysfs_path(void) {
  static const char* const path = find_sysfs();
  return path;
}

VERBENA_EXPORT int ibv_read_sysfs_file(const char* dir, const char* file, char* buf, size_t size) {
  return without_exceptions(
      [&] { return read_text((std::string(dir) + "/" + file).c_str(), buf, size); });
}

}  // extern "C"

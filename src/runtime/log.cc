// One write() per line, so that lines of several processes do not mix.
#include "runtime/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "os/no_cancel.h"

namespace verbena::runtime {
namespace {

int log_fd() {
  static const int fd = [] {
    const std::string& file = config().log_file;
    if (file.empty()) return STDERR_FILENO;
    const int opened = open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (opened < 0)
      std::fprintf(stderr, "verbena: cannot write VERBENA_LOG_FILE=%s\n", file.c_str());
    return opened >= 0 ? opened : STDERR_FILENO;
  }();
  return fd;
}

}  // namespace

bool log_enabled(LogLevel level) { return level <= config().log_level; }

void log(LogLevel level, const char* format, ...) {
  if (!log_enabled(level)) return;
  char line[1024];
  int n = std::snprintf(line, sizeof line, "verbena[%d]: ", getpid());
  va_list arguments;
  va_start(arguments, format);
  const int m =
      std::vsnprintf(line + n, sizeof line - static_cast<size_t>(n) - 1, format, arguments);
  va_end(arguments);
  if (m < 0) return;
  n += m;
  if (n > static_cast<int>(sizeof line) - 2) n = static_cast<int>(sizeof line) - 2;
  line[n++] = '\n';
  const os::NoCancel no_cancel;  // the caller may hold a lock
  const size_t bytes = static_cast<size_t>(n);
  if (write(log_fd(), line, bytes) >= 0 || log_fd() == STDERR_FILENO) return;
  // The log file is full or gone: write to standard error instead.
  static std::atomic<bool> reported{false};
  const int error = errno;
  if (!reported.exchange(true)) {
    std::fprintf(stderr, "verbena: VERBENA_LOG_FILE=%s cannot be written: %s\n",
                 config().log_file.c_str(), std::strerror(error));
  }
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line, bytes);
}

}  // namespace verbena::runtime

// How rc_check ends a run that cannot continue: by an exception, or by its alarm.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>

namespace rc_check {

inline std::string words(const char* format, ...) __attribute__((format(printf, 1, 2)));
inline std::string words(const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return text;
}

// Ends the run: the queue pair or the connection to the other side is unusable.
struct Broken : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline Broken broken_errno(const std::string& what, int error = errno) {
  return Broken(what + ": " + strerror(error));
}

// The step that the alarm reports.
inline char current_step[80] = "start";

inline void at_step(const char* step) { snprintf(current_step, sizeof current_step, "%s", step); }

inline void on_alarm(int) {
  const char* const parts[] = {"rc_check: out of time at: ", current_step, "\n"};
  for (const char* part : parts) {
    if (write(STDERR_FILENO, part, strlen(part)) < 0) break;
  }
  _exit(3);
}

}  // namespace rc_check

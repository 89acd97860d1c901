// The environment, read once.
#include "runtime/config.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace verbena::runtime {
namespace {

std::string text(const char* name) {
  const char* value = secure_getenv(name);  // a set-uid program takes no orders from its caller
  return value != nullptr ? value : "";
}

// Before anything is set up, hence straight to standard error.
void warn(const char* name, const std::string& value, const char* wanted) {
  std::fprintf(stderr, "verbena: %s=%s is ignored: %s\n", name, value.c_str(), wanted);
}

LogLevel parse_level(const std::string& value) {
  static constexpr const char* kNames[] = {"silent", "error", "warning", "info", "debug"};
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (value == kNames[i] || value == std::to_string(i)) return static_cast<LogLevel>(i);
  }
  if (!value.empty()) warn("VERBENA_LOG", value, "use silent, error, warning, info or debug");
  return LogLevel::Warning;
}

Config read() {
  Config c;
  c.devices = text("VERBENA_DEVICES");
  c.log_level = parse_level(text("VERBENA_LOG"));
  c.log_file = text("VERBENA_LOG_FILE");
  c.faults = text("VERBENA_FAULTS");
  c.pcap = text("VERBENA_PCAP");
  if (const std::string bytes = text("VERBENA_RCVBUF"); !bytes.empty()) {
    char* end = nullptr;
    const unsigned long n = std::strtoul(bytes.c_str(), &end, 10);
    if (n != 0 && n <= (1ul << 30) && *end == 0) {
      c.receive_buffer = static_cast<uint32_t>(n);
    } else {
      warn("VERBENA_RCVBUF", bytes, "a number of bytes up to 1073741824 is wanted");
    }
  }
  return c;
}

}  // namespace

const Config& config() {
  static const Config* const instance =
      new Config(read());  // never destroyed: threads may still log
  return *instance;
}

}  // namespace verbena::runtime

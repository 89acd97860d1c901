// The environment, read once.
#include "runtime/config.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace verbena::runtime {
namespace {

std::string text(const char* name) {
  const char* value = secure_getenv(name);  // a set-uid program ignores its caller's environment
  return value != nullptr ? value : "";
}

// The log is not set up yet, so this goes to standard error.
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

Duration parse_poll(const std::string& value) {
  constexpr const char* kHybrid = "hybrid";
  constexpr uint32_t kDefault = 50;              // microseconds, the cost of sleeping and waking up
  constexpr uint32_t kMaxMicroseconds = 10'000;  // a signal does not end the wait
  if (value.empty() || value == "event") return {};
  if (value == kHybrid) return microseconds(kDefault);
  if (value.starts_with(std::string(kHybrid) + ":")) {
    const char* const digits = value.c_str() + std::strlen(kHybrid) + 1;
    char* end = nullptr;
    const unsigned long n = std::strtoul(digits, &end, 10);
    if (*digits >= '0' && *digits <= '9' && *end == 0 && n <= kMaxMicroseconds)
      return microseconds(static_cast<int64_t>(n));
  }
  warn("VERBENA_POLL", value, "use event, hybrid or hybrid:MICROSECONDS (up to 10000)");
  return {};
}

const core::CongestionAlgorithm* parse_congestion(const std::string& value) {
  std::string names;
  for (const core::CongestionAlgorithm& algorithm : core::kCongestionAlgorithms) {
    if (value == algorithm.name) return &algorithm;
    names += std::string(names.empty() ? "use " : ", ") + std::string(algorithm.name) + " (" +
             std::string(algorithm.meaning) + ")";
  }
  if (!value.empty()) warn("VERBENA_CC", value, names.c_str());
  return &core::kDefaultCongestionAlgorithm;
}

DatapathChoice parse_datapath(const std::string& value, DatapathChoice otherwise) {
  if (value == "udp") return DatapathChoice::Udp;
  if (value == "shm") return DatapathChoice::SharedMemory;
  if (!value.empty()) warn("VERBENA_DATAPATH", value, "use shm or udp");
  return otherwise;
}

bool is_on(const char* name) {
  const std::string value = text(name);
  if (value == "off") return false;
  if (!value.empty() && value != "on") warn(name, value, "use on or off");
  return true;
}

// From 1 to `max`; `value` keeps its default otherwise.
void number(const char* name, uint32_t max, const char* wanted, uint32_t& value) {
  const std::string given = text(name);
  if (given.empty()) return;
  char* end = nullptr;
  const unsigned long n = std::strtoul(given.c_str(), &end, 10);
  if (n == 0 || n > max || *end != 0) return warn(name, given, wanted);
  value = static_cast<uint32_t>(n);
}

// A byte, decimal or hexadecimal as other programs write a traffic class.
uint8_t parse_tos(const std::string& value) {
  if (value.empty()) return 0;
  char* end = nullptr;
  const unsigned long n = std::strtoul(value.c_str(), &end, 0);
  if (value[0] >= '0' && value[0] <= '9' && *end == 0 && n <= UINT8_MAX)
    return static_cast<uint8_t>(n);
  warn("VERBENA_TOS", value,
       "use a number from 0 to 255; the upper six bits are the DSCP, so DSCP 26 is 104");
  return 0;
}

Config read() {
  Config c;
  c.devices = text("VERBENA_DEVICES");
  c.log_level = parse_level(text("VERBENA_LOG"));
  c.log_file = text("VERBENA_LOG_FILE");
  c.faults = text("VERBENA_FAULTS");
  c.pcap = text("VERBENA_PCAP");
  c.steering = is_on("VERBENA_STEERING");
  c.extensions = is_on("VERBENA_EXTENSIONS");
  c.congestion = parse_congestion(text("VERBENA_CC"));
  c.tos = parse_tos(text("VERBENA_TOS"));
  c.awake_before_sleep = parse_poll(text("VERBENA_POLL"));
  c.datapath = parse_datapath(text("VERBENA_DATAPATH"), c.datapath);
  number("VERBENA_LANES", 64, "use a number of lanes up to 64", c.lanes);
  number("VERBENA_RCVBUF", 1u << 30, "use a number of bytes up to 1073741824", c.receive_buffer);
  number("VERBENA_VENDOR_PART_ID", UINT32_MAX, "use a decimal number of 32 bits", c.vendor_part_id);
  return c;
}

}  // namespace

const Config& config() {
  static const Config* const instance =
      new Config(read());  // never destroyed: threads may still log
  return *instance;
}

}  // namespace verbena::runtime

// A report consists of "device NAME" lines, each followed by "name value meaning" lines.
#include "runtime/counter_report.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <sstream>

namespace verbena::runtime {
namespace {

// A process is busy for microseconds.
constexpr int kMaxAttempts = 20;
constexpr useconds_t kBetweenAttemptsUs = 5000;

bool was_busy(const host::SlotReport& report) {
  return std::ranges::any_of(parse_counters(report.text),
                             [](const auto& d) { return d.values.empty(); });
}

// The first lane of a device replies for all of them.
bool is_further_lane(const host::SlotReport& report) { return report.text.starts_with("lane "); }

}  // namespace

std::vector<DeviceCounters> parse_counters(const std::string& report) {
  std::vector<DeviceCounters> devices;
  std::istringstream lines(report);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name, value;
    if (!(words >> name >> value)) continue;
    if (name == "device") {
      devices.push_back({value, {}});
      continue;
    }
    NamedCounter counter{name, 0, {}};
    const char* const end = value.data() + value.size();
    if (std::from_chars(value.data(), end, counter.value).ptr != end) continue;
    std::getline(words >> std::ws, counter.meaning);
    if (devices.empty()) devices.push_back({"(unnamed)", {}});
    devices.back().values.push_back(std::move(counter));
  }
  return devices;
}

std::vector<host::SlotReport> query_counters(Duration timeout) {
  std::vector<host::SlotReport> reports;
  for (int i = 0; i < kMaxAttempts; ++i) {
    reports = host::SlotDirectory::query_all(timeout);
    if (std::ranges::none_of(reports, was_busy)) break;
    ::usleep(kBetweenAttemptsUs);
  }
  std::erase_if(reports, is_further_lane);
  return reports;
}

}  // namespace verbena::runtime

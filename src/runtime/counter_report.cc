// A report consists of "device NAME" lines, each followed by "name value meaning" lines.
#include "runtime/counter_report.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <sstream>

#include "host/slot_holders.h"

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

SilentProcesses silent_processes(const std::vector<host::SlotReport>& reports) {
  SilentProcesses silent;
  if (std::ranges::none_of(reports, [](const auto& r) { return r.pid == 0; })) return silent;
  const std::vector<host::HeldSlot> held = host::held_slots();
  std::set<pid_t> pids;
  for (const host::SlotReport& report : reports) {
    if (report.pid != 0) continue;
    const auto holder = std::ranges::find(held, report.slot, &host::HeldSlot::slot);
    if (holder == held.end()) continue;  // it has ended meanwhile
    if (holder->pid == 0) {
      ++silent.unseen_slots;
    } else {
      pids.insert(holder->pid);
    }
  }
  for (const host::SlotReport& report : reports) pids.erase(report.pid);  // a lane replied
  silent.seen = pids.size();
  return silent;
}

}  // namespace verbena::runtime

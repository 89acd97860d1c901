// verbena counters: queries the counters of running processes through the slot directory.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "runtime/counter_report.h"
#include "tools/tool.h"

namespace verbena::tool {
namespace {

using host::SlotReport;

constexpr Duration kReplyTimeout = milliseconds(500);

std::string command_line(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/cmdline", pid));
  std::string text{std::istreambuf_iterator<char>(file), {}};
  while (!text.empty() && text.back() == '\0') text.pop_back();
  std::ranges::replace(text, '\0', ' ');
  return text;
}

void print_report(const SlotReport& report, bool all) {
  fmt::print("process {}: {}\n", report.pid, command_line(report.pid));
  const auto devices = runtime::parse_counters(report.text);
  if (devices.empty()) fmt::print("  no device is open\n");
  for (const runtime::DeviceCounters& device : devices) {
    fmt::print("  {}\n", device.device);
    if (device.values.empty()) fmt::print("    too busy to reply; try again\n");
    bool any = false;
    for (const runtime::NamedCounter& c : device.values) {
      if (c.value == 0 && !all) continue;
      any = true;
      fmt::print("    {:<28}{:>16}  {}\n", c.name, c.value, c.meaning);
    }
    if (!any && !device.values.empty()) fmt::print("    all counters are zero\n");
  }
}

// Prints why the process gave no reply.
int explain_missing(pid_t pid) {
  struct stat status {};
  if (::kill(pid, 0) != 0 && errno == ESRCH) {
    print_error(fmt::format("there is no process {}", pid));
  } else if (::stat(fmt::format("/proc/{}", pid).c_str(), &status) == 0 &&
             status.st_uid != ::getuid()) {
    print_error(
        fmt::format("process {} belongs to another user; only that user can read its counters "
                    "(if it uses Verbena at all)",
                    pid));
  } else {
    print_error(
        fmt::format("process {} is not a Verbena process: it was not started with verbena run, has "
                    "not opened a device yet, is stopped, or is in another network namespace",
                    pid));
  }
  return kNotThere;
}

}  // namespace

int print_counters(const CountersOptions& options) {
  const std::vector<SlotReport> reports = runtime::query_counters(kReplyTimeout);
  if (options.pid != 0) {
    const auto report = std::ranges::find(reports, options.pid, &SlotReport::pid);
    if (report == reports.end()) return explain_missing(options.pid);
    print_report(*report, options.all);
    return kDone;
  }
  bool any = false;
  for (const SlotReport& report : reports) {
    if (report.pid == 0) continue;
    any = true;
    print_report(report, options.all);
  }
  if (reports.empty()) fmt::print("No process uses Verbena in this network namespace.\n");
  const auto [seen, unseen_slots] = runtime::silent_processes(reports);
  if (seen != 0) {
    fmt::print("{}{} {} not reply: another user's, or stopped.\n", seen, any ? " more" : "",
               seen == 1 ? "process does" : "processes do");
  }
  if (unseen_slots != 0) {
    fmt::print("{} {} not reply and {} to other users' processes (one slot per lane).\n",
               unseen_slots, unseen_slots == 1 ? "slot does" : "slots do",
               unseen_slots == 1 ? "belongs" : "belong");
  }
  return kDone;
}

}  // namespace verbena::tool

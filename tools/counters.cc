// verbena counters: asks running processes over the slot directory.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "cm/counters.h"
#include "core/counters.h"
#include "runtime/counter_report.h"
#include "tools/tool.h"

namespace verbena::tool {
namespace {

using host::SlotReport;

constexpr Duration kPatience = milliseconds(500);

struct Meaning {
  const char* name;
  const char* text;
};
// Counters that are not the engine's. Names are the datapaths'.
constexpr Meaning kOtherMeanings[] = {
    {"queue_pairs", "queue pairs that exist now"},
    {"memory_keys", "memory regions and windows registered now"},
    {"udp_packets_sent", "RoCE packets handed to the kernel"},
    {"udp_bytes_sent", "their bytes, BTH to ICRC"},
    {"udp_trains_sent", "sends they went in (packets of one size travel together)"},
    {"udp_trains_lent", "of these, sends that the kernel did without copying"},
    {"udp_packets_received", "RoCE packets that came from the kernel, ICRC good"},
    {"udp_bytes_received", "their bytes, BTH to ICRC"},
    {"udp_trains_received", "receives they came in"},
    {"udp_icrc_errors", "dropped: wrong ICRC"},
    {"udp_icrc_solved", "accepted with an IP identification found by solving the ICRC"},
    {"udp_too_short", "dropped: shorter than any RoCE packet"},
    {"udp_strays_forwarded", "packets for another process of this host, passed on to it"},
    {"udp_strays_received", "packets that another process of this host passed on to us"},
    {"udp_strays_dropped", "packets for another process of this host that is not there"},
    {"udp_stray_waits", "times such a packet waited because that process did not keep up"},
    {"udp_broadcasts_limited", "dropped: too many connection rejects that name no process"},
    {"udp_out_of_memory", "packets and messages for which there was no memory"},
    {"udp_send_drops", "packets the kernel did not take"},
    {"udp_path_mtu_exceeded", "packets larger than the way to the peer carries"},
    {"udp_kernel_rx_drops", "packets lost because the socket's receive buffer was full"},
    {"udp_steering_updates", "times the steering program in the kernel was replaced"},
    {"fault_packets_lost", "packets lost on purpose (VERBENA_FAULTS)"},
    {"fault_packets_duplicated", "packets repeated on purpose (VERBENA_FAULTS)"},
    {"fault_packets_reordered", "packets overtaken on purpose (VERBENA_FAULTS)"},
    {"fault_packets_corrupted", "packets corrupted on purpose (VERBENA_FAULTS)"},
    {"fault_packets_delayed", "packets delayed on purpose (VERBENA_FAULTS)"},
    {"pcap_packets_written", "packets written to the capture file (VERBENA_PCAP)"},
};

const char* meaning_of(const std::string& name) {
  for (size_t i = 0; i < static_cast<size_t>(core::CounterId::kCount); ++i) {
    const auto id = static_cast<core::CounterId>(i);
    if (name == core::name_of(id)) return core::meaning_of(id);
  }
  for (size_t i = 0; i < static_cast<size_t>(cm::CounterId::kCount); ++i) {
    const auto id = static_cast<cm::CounterId>(i);
    if (name == std::string("cm_") + cm::name_of(id)) return cm::meaning_of(id);
  }
  const auto other = std::ranges::find(kOtherMeanings, name, &Meaning::name);
  return other != std::end(kOtherMeanings) ? other->text : "";
}

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
    if (device.values.empty()) fmt::print("    too busy to answer; ask again\n");
    bool any = false;
    for (const runtime::NamedCounter& c : device.values) {
      if (c.value == 0 && !all) continue;
      any = true;
      fmt::print("    {:<28}{:>16}  {}\n", c.name, c.value, meaning_of(c.name));
    }
    if (!any && !device.values.empty()) fmt::print("    all counters are zero\n");
  }
}

// Why a process did not answer.
int explain_missing(pid_t pid) {
  struct stat status {};
  if (::kill(pid, 0) != 0 && errno == ESRCH) {
    say_error(fmt::format("there is no process {}", pid));
  } else if (::stat(fmt::format("/proc/{}", pid).c_str(), &status) == 0 &&
             status.st_uid != ::getuid()) {
    say_error(
        fmt::format("process {} belongs to another user; only that user can read its counters "
                    "(if it uses Verbena at all)",
                    pid));
  } else {
    say_error(
        fmt::format("process {} is not a Verbena process: it was not started with verbena run, has "
                    "not opened a device yet, is stopped, or lives in another network namespace",
                    pid));
  }
  return kNotThere;
}

}  // namespace

int print_counters(const CountersOptions& options) {
  const std::vector<SlotReport> reports = runtime::ask_for_counters(kPatience);
  if (options.pid != 0) {
    const auto report = std::ranges::find(reports, options.pid, &SlotReport::pid);
    if (report == reports.end()) return explain_missing(options.pid);
    print_report(*report, options.all);
    return kDone;
  }
  size_t silent = 0;
  for (const SlotReport& report : reports) {
    if (report.pid == 0) {
      ++silent;
    } else {
      print_report(report, options.all);
    }
  }
  if (reports.empty()) fmt::print("No process uses Verbena in this network namespace.\n");
  if (silent != 0) {
    fmt::print("{}{} {} not answer: another user's, or stopped.\n", silent,
               silent == reports.size() ? "" : " more",
               silent == 1 ? "process does" : "processes do");
  }
  return kDone;
}

}  // namespace verbena::tool

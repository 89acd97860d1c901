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

#include "cm/counters.h"
#include "core/counters.h"
#include "runtime/counter_report.h"
#include "tools/tool.h"
#include "wire/packet_faults.h"

namespace verbena::tool {
namespace {

using host::SlotReport;

constexpr Duration kReplyTimeout = milliseconds(500);

struct Meaning {
  const char* name;
  const char* text;
};
// Counters outside the engine; the datapaths define the names.
constexpr Meaning kOtherMeanings[] = {
    {"queue_pairs", "queue pairs that exist now"},
    {"memory_keys", "memory regions and windows registered now"},
    {"udp_packets_sent", "RoCE packets handed to the kernel"},
    {"udp_bytes_sent", "their bytes, BTH to ICRC"},
    {"udp_batches_sent", "GSO batches that contained them"},
    {"udp_batches_zero_copy", "of these, sent without a copy"},
    {"udp_packets_received", "RoCE packets received from the kernel with a correct ICRC"},
    {"udp_bytes_received", "their bytes, BTH to ICRC"},
    {"udp_batches_received", "GRO batches that contained them"},
    {"udp_icrc_errors", "dropped: wrong ICRC"},
    {"udp_icrc_solved", "accepted with an IP identification found by solving the ICRC"},
    {"udp_too_short", "dropped: shorter than any RoCE packet"},
    {"udp_misrouted_forwarded", "misrouted packets, forwarded to their process"},
    {"udp_misrouted_received", "misrouted packets that another process forwarded to this one"},
    {"udp_misrouted_dropped", "dropped: misrouted packets for a process that does not exist"},
    {"udp_misrouted_waits", "times forwarding waited because the other process was too slow"},
    {"udp_broadcasts_limited",
     "dropped: connection rejects for all processes, over the rate limit"},
    {"udp_out_of_memory", "dropped: packets and messages for which memory was exhausted"},
    {"udp_send_drops", "dropped: packets that the kernel did not accept"},
    {"udp_path_mtu_exceeded", "packets larger than the path MTU"},
    {"udp_kernel_rx_drops", "packets that the kernel dropped because the receive buffer was full"},
    {"udp_steering_updates", "times the steering program in the kernel was replaced"},
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
  for (const wire::PacketFaultInfo& f : wire::kPacketFaults) {
    if (name == f.counter) return f.meaning;
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
    if (device.values.empty()) fmt::print("    too busy to reply; try again\n");
    bool any = false;
    for (const runtime::NamedCounter& c : device.values) {
      if (c.value == 0 && !all) continue;
      any = true;
      fmt::print("    {:<28}{:>16}  {}\n", c.name, c.value, meaning_of(c.name));
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
    fmt::print("{}{} {} not reply: another user's, or stopped.\n", silent,
               silent == reports.size() ? "" : " more",
               silent == 1 ? "process does" : "processes do");
  }
  return kDone;
}

}  // namespace verbena::tool

// NUMA nodes and their processors, from sysfs.
#include "tools/daq/numa.h"

#include <fmt/core.h>
#include <sched.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "tools/daq/udp.h"

namespace verbena::daqtool {
namespace {

constexpr const char* kNodes = "/sys/devices/system/node/";

std::string first_line(const std::string& file) {
  std::ifstream from(kNodes + file);
  std::string line;
  std::getline(from, line);
  return line;
}

// "0-3,8,10-11"
cpu_set_t parse_list(const std::string& list) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (size_t at = 0; at < list.size();) {
    const size_t end = std::min(list.find(',', at), list.size());
    unsigned first = 0, last = 0;
    const int n = std::sscanf(list.substr(at, end - at).c_str(), "%u-%u", &first, &last);
    if (n == 1) last = first;
    for (unsigned cpu = first; n >= 1 && cpu <= last && cpu < CPU_SETSIZE; ++cpu) {
      CPU_SET(cpu, &set);
    }
    at = end + 1;
  }
  return set;
}

}  // namespace

void run_on_node(int node) {
  const std::string processors = first_line(fmt::format("node{}/cpulist", node));
  if (processors.empty()) {
    const std::string nodes = first_line("online");
    throw ToolError(fmt::format(
        "--numa {}: no such node, or it has no processors; {}", node,
        nodes.empty() ? "this kernel lists no nodes" : "this machine has nodes " + nodes));
  }
  const cpu_set_t set = parse_list(processors);
  if (::sched_setaffinity(0, sizeof set, &set) != 0) {
    throw ToolError(
        with_errno(fmt::format("--numa {}: cannot run on processors {}", node, processors)));
  }
}

}  // namespace verbena::daqtool

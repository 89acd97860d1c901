// The number of receives and the memory that they need.
#include "tools/daq/plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <fstream>
#include <limits>

#include "tools/daq/udp.h"

namespace verbena::daqtool {
namespace {

constexpr uint64_t kDefaultReceives = 1024;
constexpr uint64_t kDefaultReceiveBytes = 64u << 20;

bool writes(const ReceiveOptions& options) { return options.op == daq::TransferKind::Write; }

// Whether messages stay in memory long enough to be checked.
bool can_check(const ReceiveOptions& options) {
  return !writes(options) || options.wrap_bytes / options.message_bytes >= 2;
}

uint64_t receives_wanted(const ReceiveOptions& options) {
  if (options.receives != 0) return options.receives;
  return std::clamp<uint64_t>(kDefaultReceiveBytes / options.message_bytes, 1, kDefaultReceives);
}

// Reduces the number of receives to `limit` and notes the reason.
void limit_receives(Plan& plan, uint64_t limit, const std::string& why) {
  if (plan.receives <= limit) return;
  plan.remarks.push_back(
      fmt::format("{} receives for each stream instead of {}: {}", limit, plan.receives, why));
  plan.receives = static_cast<uint32_t>(limit);
}

std::string size_text(uint64_t bytes) {
  return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1u << 30));
}

}  // namespace

Plan plan_for(const ReceiveOptions& options, const Limits& limits) {
  Plan plan;
  plan.streams =
      static_cast<uint32_t>(std::max<size_t>(1, options.boards.size())) * options.streams;
  plan.receives = static_cast<uint32_t>(receives_wanted(options));
  limit_receives(plan, limits.queue_pair_receives, "the device allows no more");
  if (plan.streams > limits.completions) {
    throw ToolError(
        fmt::format("the device's completion queue has {} entries, and there are {} streams",
                    limits.completions, plan.streams));
  }
  limit_receives(plan, limits.completions / plan.streams,
                 fmt::format("the device's completion queue has {} entries for {} streams",
                             limits.completions, plan.streams));
  plan.checks = options.check && can_check(options);
  // The data of a WRITE may arrive before a receive is available for it. Memory must therefore hold
  // one message more than there are receives before offsets wrap.
  if (plan.checks && writes(options)) {
    limit_receives(plan, options.wrap_bytes / options.message_bytes - 1,
                   "more would let WRITEs overtake the check (--wrap, --no-check)");
  }
  if (options.check && !plan.checks) {
    plan.remarks.emplace_back(
        "data are not checked: messages overwrite each other before they can be checked (--wrap)");
  }
  plan.memory = writes(options) ? options.wrap_bytes + options.message_bytes
                                : uint64_t{plan.receives} * options.message_bytes;
  const uint64_t all = plan.memory * plan.streams;
  if (all > limits.free_memory) {
    throw ToolError(fmt::format("{} streams need {} of memory, and {} are free: make {} smaller",
                                plan.streams, size_text(all), size_text(limits.free_memory),
                                writes(options) ? "--wrap" : "--num-wrs or --msg-size"));
  }
  return plan;
}

uint64_t free_memory() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    unsigned long long kib = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %llu", &kib) == 1) return kib * 1024;
  }
  return std::numeric_limits<uint64_t>::max();
}

}  // namespace verbena::daqtool

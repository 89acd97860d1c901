// How many receives, and how much memory for them.
#include "tools/daq/plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <fstream>
#include <limits>

#include "tools/daq/udp.h"

namespace verbena::daqtool {
namespace {

constexpr uint64_t kUsualReceives = 1024;
constexpr uint64_t kUsualReceiveBytes = 64u << 20;

bool writes(const ReceiveOptions& options) { return options.op == daq::TransferKind::Write; }

// Whether what arrives stays long enough to be looked at.
bool can_check(const ReceiveOptions& options) {
  return !writes(options) || options.wrap_bytes / options.message_bytes >= 2;
}

uint64_t receives_wanted(const ReceiveOptions& options) {
  if (options.receives != 0) return options.receives;
  return std::clamp<uint64_t>(kUsualReceiveBytes / options.message_bytes, 1, kUsualReceives);
}

// Fewer receives than wanted, and why.
void bound(Plan& plan, uint64_t most, const std::string& why) {
  if (plan.receives <= most) return;
  plan.remarks.push_back(
      fmt::format("{} receives for each stream instead of {}: {}", most, plan.receives, why));
  plan.receives = static_cast<uint32_t>(most);
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
  bound(plan, limits.queue_pair_receives, "the device takes no more");
  if (plan.streams > limits.completions) {
    throw Trouble(
        fmt::format("the device's completion queue has {} places, and there are {} streams",
                    limits.completions, plan.streams));
  }
  bound(plan, limits.completions / plan.streams,
        fmt::format("the device's completion queue has {} places for {} streams",
                    limits.completions, plan.streams));
  plan.checks = options.check && can_check(options);
  // A WRITE may begin before its receive is looked for, so one message more than there are receives
  // must find room before offsets wrap.
  if (plan.checks && writes(options)) {
    bound(plan, options.wrap_bytes / options.message_bytes - 1,
          "more would let WRITEs overtake the check (--wrap, --no-check)");
  }
  if (options.check && !plan.checks) {
    plan.remarks.emplace_back(
        "data are not checked: messages overwrite each other before they can be looked at "
        "(--wrap)");
  }
  plan.memory = writes(options) ? options.wrap_bytes + options.message_bytes
                                : uint64_t{plan.receives} * options.message_bytes;
  const uint64_t all = plan.memory * plan.streams;
  if (all > limits.free_memory) {
    throw Trouble(fmt::format("{} streams need {} of memory, and {} are free: make {} smaller",
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

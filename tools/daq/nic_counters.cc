// Reads the NIC's counters from sysfs. Drivers use different names for the same counter.
#include "tools/daq/nic_counters.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <initializer_list>

namespace verbena::daqtool {
namespace {

constexpr std::chrono::milliseconds kReadInterval(500);

std::optional<uint64_t> read_first(const std::string& folder,
                                   std::initializer_list<const char*> names) {
  for (const char* name : names) {
    std::ifstream file(folder + name);
    uint64_t value = 0;
    if (file >> value) return value;
  }
  return std::nullopt;
}

std::optional<NicCounters> read_all(const std::string& folder) {
  const auto rnr = read_first(folder, {"out_of_buffer", "send_rnr_err"});
  const auto repeated = read_first(folder, {"duplicate_request"});
  const auto gaps = read_first(folder, {"out_of_sequence", "out_of_seq_request"});
  if (!rnr && !repeated && !gaps) return std::nullopt;
  return NicCounters{rnr.value_or(0), repeated.value_or(0), gaps.value_or(0)};
}

// The counters of a software NIC lose the part of each process that ends.
uint64_t growth(uint64_t from, uint64_t to) { return to - std::min(from, to); }

}  // namespace

NicWatch::NicWatch(std::string device, uint8_t port, bool is_periodic)
    : folder_(fmt::format("/sys/class/infiniband/{}/ports/{}/hw_counters/", device, port)),
      start_(read_all(folder_)) {
  if (start_) latest_.emplace();
  if (start_ && is_periodic) thread_ = std::thread([this] { keep_reading(); });
}

NicWatch::~NicWatch() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

std::optional<NicCounters> NicWatch::latest() const {
  const std::lock_guard lock(mutex_);
  return latest_;
}

std::optional<NicCounters> NicWatch::read() const {
  const auto seen = start_ ? read_all(folder_) : std::nullopt;
  if (!seen) return std::nullopt;
  return NicCounters{.rnr_naks_sent = growth(start_->rnr_naks_sent, seen->rnr_naks_sent),
                     .repeated = growth(start_->repeated, seen->repeated),
                     .out_of_order = growth(start_->out_of_order, seen->out_of_order)};
}

void NicWatch::keep_reading() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, kReadInterval, [this] { return stop_; })) {
    lock.unlock();
    const auto seen = read();
    lock.lock();
    if (seen) latest_ = seen;
  }
}

}  // namespace verbena::daqtool

// The NIC's own counters, as the kernel (or Verbena in its place) shows them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace verbena::daqtool {

struct NicCounters {
  uint64_t rnr_naks_sent = 0;  // no receive was posted, so the board had to wait
  uint64_t repeated = 0;       // duplicate packets
  uint64_t out_of_order = 0;   // packets behind a gap
};

// The growth of the counters of a whole NIC since construction. Reading may be slow, so a thread
// reads periodically where the values are shown live.
class NicWatch {
 public:
  NicWatch(std::string device, uint8_t port, bool is_periodic);
  ~NicWatch();
  NicWatch(const NicWatch&) = delete;
  NicWatch& operator=(const NicWatch&) = delete;

  // The last values read; nullopt: this NIC has no such counters.
  std::optional<NicCounters> latest() const;
  std::optional<NicCounters> read() const;

 private:
  void keep_reading();

  const std::string folder_;
  const std::optional<NicCounters> start_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::optional<NicCounters> latest_;
  std::thread thread_;
};

}  // namespace verbena::daqtool

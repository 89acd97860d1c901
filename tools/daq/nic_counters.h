// What the NIC itself counts, as the kernel (or Verbena in its place) shows it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace verbena::daqtool {

struct NicCounters {
  uint64_t rnr_naks_sent = 0;  // no receive was posted: the board was told to wait
  uint64_t repeated = 0;       // packets that had come before
  uint64_t out_of_order = 0;   // packets that came after a gap
};

// Of a whole NIC, since this was made. Asking may take a while, so a thread does it where the
// values are wanted all the time.
class NicWatch {
 public:
  NicWatch(std::string device, uint8_t port, bool all_the_time);
  ~NicWatch();
  NicWatch(const NicWatch&) = delete;
  NicWatch& operator=(const NicWatch&) = delete;

  // What was read last; nullopt: this NIC does not say.
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

// CongestionControl: how much may be in flight to one peer, and how fast it may leave. Loss
// recovery reports events; the algorithm derives a congestion window and a pacing rate from them.
// PeerPath owns one and reads both only after an event, so sending makes no virtual call.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "base/time.h"

namespace verbena::core {

// Bytes reached the peer. Bytes count as they do in the window, overhead included.
struct AckEvent {
  uint32_t bytes = 0;
  uint32_t in_flight = 0;  // before this ACK: whether the window limited the sender
  bool marked = false;     // the peer received at least one of the packets with an ECN mark
  Instant now{};
};

// Packets of one queue pair that were in flight together and were lost: one sign of congestion,
// however many packets it concerns. These are the facts before the packet that an event reports.
struct LossEpisode {
  uint32_t window = 0;      // the congestion window when the episode began
  uint32_t bytes_lost = 0;  // so far
  bool discarded = false;   // the peer has discarded packets behind a loss (go-back-N)
};

// One packet was found lost.
struct LossEvent {
  uint32_t bytes = 0;
  bool discarded = false;  // the peer discarded the packets behind this one (go-back-N)
  Instant now{};
  LossEpisode episode{};
};

class CongestionControl {
 public:
  static constexpr uint64_t kUnpaced = UINT64_MAX;
  // What a receive buffer of the default size holds, with the kernel's overhead.
  static constexpr uint32_t kReceiveBufferBytes = 320 * 1024;

  virtual ~CongestionControl() = default;

  // How much a full packet of the path counts. Called before the first packet.
  virtual void set_packet_bytes(uint32_t) {}
  virtual void on_acked(const AckEvent& event) = 0;
  virtual void on_lost(const LossEvent& event) = 0;
  // The ACK timeout passed without a response.
  virtual void on_timed_out(Instant now) = 0;
  // A congestion notification packet was received: the peer received ECN marks.
  virtual void on_cnp(Instant now) = 0;
  virtual void on_round_trip(Duration sample, Instant now) = 0;

  uint32_t window() const { return window_; }            // bytes
  uint64_t pacing_rate() const { return pacing_rate_; }  // bytes per second

 protected:
  explicit CongestionControl(uint32_t window) : window_(window) {}

  uint32_t window_;
  uint64_t pacing_rate_ = kUnpaced;
};

// The algorithms: name and meaning, for users. The first is the default. A new one is a line here
// and a file in this folder that defines make_NAME().
#define VERBENA_CONGESTION_ALGORITHMS(X)                                                      \
  X(delay, "delay, ECN marks and losses set the window; CNPs limit the rate as in dcqcn")     \
  X(dcqcn, "CNPs limit the rate, as hardware does; losses shrink the window as in aimd")      \
  X(aimd, "losses shrink the window; each window that is acknowledged without loss grows it") \
  X(off, "a fixed window and no ECN, for networks that lose no packets")

#define X(name, meaning) std::unique_ptr<CongestionControl> make_##name();
VERBENA_CONGESTION_ALGORITHMS(X)
#undef X

struct CongestionAlgorithm {
  std::string_view name;
  std::string_view meaning;
  std::unique_ptr<CongestionControl> (*make)();
};

inline constexpr CongestionAlgorithm kCongestionAlgorithms[] = {
#define X(name, meaning) {#name, meaning, make_##name},
    VERBENA_CONGESTION_ALGORITHMS(X)
#undef X
};
inline constexpr const CongestionAlgorithm& kDefaultCongestionAlgorithm = kCongestionAlgorithms[0];

// The algorithm for peers of the same host in place of `algorithm`: the receive buffer is the only
// queue there, and delay shows only which process has a CPU.
const CongestionAlgorithm& within_host(const CongestionAlgorithm& algorithm);

// Whether the network may mark packets instead of dropping them: without congestion control nothing
// reacts to marks.
constexpr bool is_ecn_capable(const CongestionAlgorithm& algorithm) {
  return algorithm.make != make_off;
}

}  // namespace verbena::core

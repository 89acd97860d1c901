// Message sizes and timeouts of rc_check.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace rc_check {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr std::array<size_t, 9> kSizes{0, 1, 63, 1024, 1025, 4096, 4097, 65536, 1 << 20};
constexpr size_t kMaxSize = 1 << 20;
constexpr unsigned kDepth = 8;           // messages outstanding
constexpr unsigned kDepthOfLargest = 2;  // of the largest size, to limit memory and time
constexpr unsigned kMaxSges = 4;
constexpr size_t kGuard = 64;             // bytes around each message that must not change
constexpr size_t kGap = 24;               // between the segments of a message with several SGEs
constexpr uint32_t kInline = 48;          // requested as max_inline_data
constexpr unsigned kReadsInFlight = 4;    // fewer than kDepth: the NIC has to delay some
constexpr uint8_t kTimeout = 17;          // 0.54 s: an emulated peer on a busy machine is slow
constexpr auto kCompletionTimeout = 30s;  // for completions; far above retry_cnt times the timeout
constexpr auto kReceiveTimeout = 3s;      // for receives once the initiator has its completions

}  // namespace rc_check

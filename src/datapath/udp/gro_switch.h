// GroSwitch: decides whether GRO is enabled on a socket. With GRO the segment size of a batch
// arrives in a control message, which requires recvmsg. recvfrom is a quarter faster, even on an
// empty socket, and that shortens the latency of a program that polls for single datagrams. So
// after a streak of single datagrams GRO is disabled and the kernel segments batches itself. When
// datagrams are received close together, GRO is enabled again.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace verbena::datapath {

class GroSwitch {
 public:
  static constexpr uint32_t kStreak = 64;
  static constexpr uint32_t kLongestStreak = 64 * 1024;
  static constexpr uint32_t kCloseTogether = 4;

  // What to set on the socket.
  enum class Change : uint8_t { None, EnableGro, DisableGro };

  // GRO is disabled, and all batches from before have left the kernel and the socket. The socket
  // may be read by recvfrom.
  bool is_drained() const { return state_ == State::Drained; }

  bool is_disabled() const { return state_ != State::Enabled; }

  // Reports the result of a read; no batches: the socket was empty.
  Change after_read(size_t batches, size_t datagrams) {
    if (batches == 0) {
      close_together_ = 0;
      if (state_ == State::Draining && streak_ >= kStreak) state_ = State::Drained;
      return Change::None;
    }
    const bool single = batches == 1 && datagrams <= 1;
    if (state_ == State::Enabled) {
      // The limit is below the streak that enable_permanently() requires.
      streak_ = single ? std::min(streak_ + 1, kLongestStreak) : 0;
      if (streak_ < required_) return Change::None;
      state_ = State::Draining;
      streak_ = close_together_ = 0;
      return Change::DisableGro;
    }
    if (++streak_ == kStreak + required_) required_ = kStreak;  // the switch has paid off
    if (single && ++close_together_ < kCloseTogether) return Change::None;
    if (required_ < kLongestStreak) required_ *= 2;
    return enable();
  }

  // The socket is not read again until epoll reports it. Many datagrams may be received until then,
  // and the socket's buffer has capacity for more of them in batches.
  Change prepare_to_sleep() {
    streak_ = 0;
    return state_ == State::Enabled ? Change::None : enable();
  }

  // The socket's control messages are needed from now on.
  Change enable_permanently() {
    required_ = UINT32_MAX;
    return state_ == State::Enabled ? Change::None : enable();
  }

 private:
  // Draining: GRO is disabled, but a batch may still be in the socket or in the kernel.
  enum class State : uint8_t { Enabled, Draining, Drained };

  Change enable() {
    state_ = State::Enabled;
    streak_ = close_together_ = 0;
    return Change::EnableGro;
  }

  State state_ = State::Enabled;
  uint32_t required_ = kStreak;  // length of the streak that disables GRO
  uint32_t streak_ = 0;          // Enabled: single datagrams in a row; otherwise reads since then
  uint32_t close_together_ = 0;  // datagrams without an empty read between them
};

}  // namespace verbena::datapath

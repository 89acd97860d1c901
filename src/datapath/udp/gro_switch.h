// GroSwitch: whether a socket is read for batches or for datagrams that come one by one. The
// stride of a batch comes in a control message, for which it takes recvmsg; recvfrom is quicker by
// a quarter, whether something is there or not, and that is what a program waits for that spins
// for the next answer. So once datagrams have come alone for a while, the kernel is told to cut
// batches itself; and when they come close together, to leave them whole again.
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

  // What the kernel has to be told.
  enum class Change : uint8_t { None, ToTrains, ToDatagrams };

  // No batch lies in the socket, nor did the kernel have one under way when it was told, which was
  // long ago: it may be read by recvfrom.
  bool alone() const { return state_ == State::Alone; }

  bool begun() const { return state_ != State::Batches; }

  // What a read brought; no batches: nothing was there.
  Change after_read(size_t batches, size_t datagrams) {
    if (batches == 0) {
      close_together_ = 0;
      if (state_ == State::Draining && streak_ >= kStreak) state_ = State::Alone;
      return Change::None;
    }
    const bool one = batches == 1 && datagrams <= 1;
    if (state_ == State::Batches) {
      streak_ = one ? std::min(streak_ + 1, kLongestStreak) : 0;  // never what giving up wants
      if (streak_ < wanted_) return Change::None;
      state_ = State::Draining;
      streak_ = close_together_ = 0;
      return Change::ToDatagrams;
    }
    if (++streak_ == kStreak + wanted_) wanted_ = kStreak;  // it was worth it
    if (one && ++close_together_ < kCloseTogether) return Change::None;
    if (wanted_ < kLongestStreak) wanted_ *= 2;  // before it is tried again
    return leave();
  }

  // Nobody looks from now on until something is there. That may be much at once, of which the
  // socket's buffer holds more in batches.
  Change rest() {
    streak_ = 0;
    return state_ == State::Batches ? Change::None : leave();
  }

  // For good: datagrams are wanted with all that control messages tell of them.
  Change give_up() {
    wanted_ = UINT32_MAX;
    return state_ == State::Batches ? Change::None : leave();
  }

 private:
  enum class State : uint8_t { Batches, Draining, Alone };

  Change leave() {
    state_ = State::Batches;
    streak_ = close_together_ = 0;
    return Change::ToTrains;
  }

  State state_ = State::Batches;
  uint32_t wanted_ = kStreak;
  uint32_t streak_ = 0;          // datagrams that came alone; then, that came since
  uint32_t close_together_ = 0;  // with no look in vain between them
};

}  // namespace verbena::datapath

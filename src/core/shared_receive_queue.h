// SharedReceiveQueue: receives that any number of queue pairs consume. A queue pair consumes one
// with the first packet of a message and uses it until it completes. Posted receives and those in
// use count against the capacity. The queue pairs may belong to several engines, so the queue has a
// lock of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/spin_lock.h"
#include "core/types.h"
#include "core/work_queue.h"

namespace verbena::core {

class CompletionQueue;

struct SrqConfig {
  uint32_t pd = 0;
  uint32_t max_wr = 0;
  uint32_t max_sges = 0;
  // XRC: the domain whose queue pairs may use it, and the completion queue of its receives.
  uint32_t xrc_domain = 0;
  CompletionQueue* cq = nullptr;
};

class SharedReceiveQueue {
 public:
  using Slot = uint32_t;
  static constexpr Slot kNone = ~Slot{0};

  SharedReceiveQueue(uint32_t number, const SrqConfig& config);
  SharedReceiveQueue(const SharedReceiveQueue&) = delete;
  SharedReceiveQueue& operator=(const SharedReceiveQueue&) = delete;

  uint32_t number() const { return number_; }
  const SrqConfig& config() const { return config_; }
  uint32_t limit() const;

  Status post(const ReceiveRequest& request);
  // A new capacity, a new limit or both. The limit arms one SrqLimitReached, which is due when
  // fewer receives than that are posted (at once if that is already so); 0 disarms. The caller of
  // modify() and consume() raises it. No engine is in a turn during a change of the capacity.
  struct Modified {
    Status status;
    bool limit_reached = false;
  };
  Modified modify(std::optional<uint32_t> max_wr, std::optional<uint32_t> limit);

  bool empty() const { return posted() == 0; }
  uint32_t posted() const;
  struct Consumed {
    Slot slot = kNone;  // the oldest receive, which belongs to the caller until release()
    bool limit_reached = false;
    explicit operator bool() const { return slot != kNone; }  // false: none, or it is too short
  };
  // The oldest receive, if it is at least so long.
  [[gnu::noinline]] Consumed consume(size_t bytes = 0);
  [[gnu::noinline]] void release(Slot slot);
  // Undoes consume(): the receive is the oldest again.
  [[gnu::cold, gnu::noinline]] void give_back(Slot slot);
  // Of a receive that belongs to the caller.
  const ReceiveWqe& at(Slot slot) const { return wqes_[slot]; }
  std::span<const Sge> sges(Slot slot) const {
    return {sges_.data() + size_t{slot} * config_.max_sges, wqes_[slot].sge_count};
  }

  // A fork happens: no call is under way meanwhile.
  void lock_for_fork() { lock_.lock(); }
  void unlock_after_fork() { lock_.unlock(); }

  bool overrun_reported = false;  // that of the XRC completion queue, by the engine that has this
  void* owner = nullptr;          // the ABI's object around this one

 private:
  void make_slots(uint32_t count);
  bool reaches_limit();

  uint32_t number_;
  SrqConfig config_;
  mutable SpinLock lock_;  // guards the rest, except a receive that belongs to a queue pair
  // Slots never move or disappear, so those in use stay valid across a resize.
  std::vector<ReceiveWqe> wqes_;
  std::vector<Sge> sges_;
  std::vector<Slot> next_;  // of the free ones, and of the posted ones
  Slot free_ = kNone;
  Slot first_ = kNone;
  Slot last_ = kNone;
  uint32_t posted_ = 0;
  uint32_t in_use_ = 0;
  uint32_t limit_ = 0;
};

}  // namespace verbena::core

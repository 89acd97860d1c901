// SharedReceiveQueue: receives that any number of queue pairs consume. A queue pair consumes one
// with the first packet of a message and uses it until it completes. Posted receives and those in
// use count against the capacity.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "core/events.h"
#include "core/types.h"
#include "core/work_queue.h"

namespace verbena::core {

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

  SharedReceiveQueue(std::vector<AsyncEvent>& events, uint32_t number, const SrqConfig& config);
  SharedReceiveQueue(const SharedReceiveQueue&) = delete;
  SharedReceiveQueue& operator=(const SharedReceiveQueue&) = delete;

  uint32_t number() const { return number_; }
  const SrqConfig& config() const { return config_; }
  uint32_t limit() const { return limit_; }

  Status post(const ReceiveRequest& request);
  // A new capacity, a new limit or both. The limit arms one SrqLimitReached, raised when fewer
  // receives than that are posted (at once if that is already so); 0 disarms.
  Status modify(std::optional<uint32_t> max_wr, std::optional<uint32_t> limit);

  bool empty() const { return posted_ == 0; }
  uint32_t posted() const { return posted_; }
  // The oldest receive; it belongs to the caller until release().
  Slot consume();
  void release(Slot slot);
  const ReceiveWqe& at(Slot slot) const { return wqes_[slot]; }
  Slot first() const { return first_; }  // the slot that consume() returns next; not empty
  std::span<const Sge> sges(Slot slot) const {
    return {sges_.data() + size_t{slot} * config_.max_sges, wqes_[slot].sge_count};
  }

  void* owner = nullptr;  // the ABI's object around this one

 private:
  static constexpr Slot kNone = ~Slot{0};

  void make_slots(uint32_t count);
  void check_limit();

  std::vector<AsyncEvent>& events_;
  uint32_t number_;
  SrqConfig config_;
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

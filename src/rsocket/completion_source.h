// CompletionSource: a completion queue with its channel, and the code that arms it.
#pragma once

#include <infiniband/verbs.h>
#include <poll.h>

#include <memory>
#include <span>
#include <vector>

#include "base/result.h"

namespace verbena::rsocket {

class CompletionSource {
 public:
  static Result<std::unique_ptr<CompletionSource>> create(ibv_context* device, int entries);
  ~CompletionSource();
  CompletionSource(const CompletionSource&) = delete;
  CompletionSource& operator=(const CompletionSource&) = delete;

  ibv_cq* queue() const { return queue_; }
  // Returns the number of completions taken; negative if the queue is broken.
  int take(std::span<ibv_wc> completions) {
    return ibv_poll_cq(queue_, static_cast<int>(completions.size()), completions.data());
  }
  // Makes the descriptor readable at the next completion. Earlier completions do not count, so take
  // them after arming. Returns false if it was armed already.
  bool arm();
  pollfd descriptor() const { return {channel_->fd, POLLIN, 0}; }
  // Removes the channel's event, if there is one.
  void drain_events();

 private:
  CompletionSource() = default;

  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* queue_ = nullptr;
  bool armed_ = false;
  unsigned unacknowledged_ = 0;
};

}  // namespace verbena::rsocket

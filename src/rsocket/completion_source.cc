// CompletionSource: see completion_source.h.
#include "rsocket/completion_source.h"

#include <fcntl.h>

#include <cerrno>

namespace verbena::rsocket {

namespace {
// Acknowledging events takes a lock, so it is done for many at once.
constexpr unsigned kAcknowledgeAt = 1024;
}  // namespace

Result<std::unique_ptr<CompletionSource>> CompletionSource::create(ibv_context* device,
                                                                   int entries) {
  std::unique_ptr<CompletionSource> source(new CompletionSource);
  source->channel_ = ibv_create_comp_channel(device);
  if (!source->channel_) return Error{errno};
  const int flags = ::fcntl(source->channel_->fd, F_GETFL);
  if (flags < 0 || ::fcntl(source->channel_->fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    return Error{errno};
  }
  source->queue_ = ibv_create_cq(device, entries, nullptr, source->channel_, 0);
  if (!source->queue_) return Error{errno};
  return source;
}

CompletionSource::~CompletionSource() {
  if (queue_) {
    if (unacknowledged_) ibv_ack_cq_events(queue_, unacknowledged_);
    ibv_destroy_cq(queue_);
  }
  if (channel_) ibv_destroy_comp_channel(channel_);
}

bool CompletionSource::arm() {
  if (armed_) return false;
  armed_ = ibv_req_notify_cq(queue_, 0) == 0;
  return armed_;
}

void CompletionSource::drain_events() {
  if (!armed_) return;
  ibv_cq* queue;
  void* context;
  if (ibv_get_cq_event(channel_, &queue, &context) != 0) return;
  armed_ = false;
  if (++unacknowledged_ < kAcknowledgeAt) return;
  ibv_ack_cq_events(queue_, unacknowledged_);
  unacknowledged_ = 0;
}

}  // namespace verbena::rsocket

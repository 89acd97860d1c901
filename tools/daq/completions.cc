// Waiting for completions. The hybrid mode has three stages: it busy-polls, then sleeps for short
// fixed times, then sleeps until a completion event. The short waits save CPU time while data
// arrive below the maximum rate: a batch of messages costs one wake-up instead of one per message.
#include "tools/daq/completions.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>

#include <algorithm>
#include <ctime>

#include "tools/daq/udp.h"

namespace verbena::daqtool {
namespace {

// Short enough that neither a board's window nor a socket buffer fills up during one wait.
constexpr Duration kShortWait = microseconds(60);
constexpr Duration kShortWaitPeriod = milliseconds(1);

timespec to_timespec(Duration d) { return {d.ns / 1'000'000'000, d.ns % 1'000'000'000}; }

}  // namespace

Completions::Completions(const VerbsDevice& device, uint32_t entries, Poll mode, Duration spin)
    : device_(device), cq_(device.make_cq(entries)), mode_(mode), spin_(spin), found_at_(now()) {
  ::prctl(PR_SET_TIMERSLACK, 1);  // short waits end on time
  const int flags = ::fcntl(device.channel->fd, F_GETFL);
  ::fcntl(device.channel->fd, F_SETFL, flags | O_NONBLOCK);
}

std::span<const ibv_wc> Completions::poll(Instant at) {
  const int n = ibv_poll_cq(cq_.get(), static_cast<int>(batch_.size()), batch_.data());
  if (n < 0) throw ToolError("ibv_poll_cq failed");
  if (n == 0) {
    depth_ = 0;
    return {};
  }
  found_at_ = at;
  depth_ += static_cast<uint32_t>(n);
  max_depth_ = std::max(max_depth_, depth_);
  if (static_cast<size_t>(n) < batch_.size()) depth_ = 0;
  return std::span(batch_).first(static_cast<size_t>(n));
}

void Completions::wait(Instant at, Instant until, int descriptor) {
  if (mode_ == Poll::Busy) return;
  if (mode_ == Poll::Hybrid && at < found_at_ + spin_) return;
  if (mode_ == Poll::Hybrid && at < found_at_ + kShortWaitPeriod) {
    const timespec wait_time = to_timespec(std::min(kShortWait, std::max(until - at, Duration{0})));
    ++sleeps_;
    ::clock_nanosleep(CLOCK_MONOTONIC, 0, &wait_time, nullptr);
    return;
  }
  if (armed_) return sleep_for_event(until, descriptor);
  if (ibv_req_notify_cq(cq_.get(), 0) != 0) throw ToolError("ibv_req_notify_cq failed");
  armed_ = true;  // a completion before this raised no event: poll once more
}

void Completions::sleep_for_event(Instant until, int descriptor) {
  const Duration remaining = until - now();
  if (remaining.ns <= 0) return;
  ++sleeps_;
  pollfd fds[] = {{device_.channel->fd, POLLIN, 0}, {descriptor, POLLIN, 0}};
  const timespec limit = to_timespec(remaining);
  if (::ppoll(fds, std::size(fds), &limit, nullptr) <= 0 || (fds[0].revents & POLLIN) == 0) return;
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  if (ibv_get_cq_event(device_.channel.get(), &cq, &context) == 0) ibv_ack_cq_events(cq, 1);
  armed_ = false;
}

uint32_t Completions::reset_max_depth() { return std::exchange(max_depth_, 0); }

}  // namespace verbena::daqtool

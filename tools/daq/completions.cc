// Polling. The hybrid way has three steps: it spins, then naps, then sleeps until a completion
// wakes it. Naps are what makes it cheap while data flow slower than they could: what arrives
// meanwhile is taken at once, without anybody being woken for each message.
#include "tools/daq/completions.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>

#include <algorithm>
#include <ctime>

#include "tools/daq/udp.h"

namespace verbena::daqtool {
namespace {

// Short enough that a board's window and a socket's buffer do not fill meanwhile.
constexpr Duration kNap = microseconds(60);
constexpr Duration kNapsFor = milliseconds(1);

timespec to_timespec(Duration d) { return {d.ns / 1'000'000'000, d.ns % 1'000'000'000}; }

}  // namespace

Completions::Completions(const VerbsDevice& device, uint32_t entries, Poll mode, Duration spin)
    : device_(device), cq_(device.make_cq(entries)), mode_(mode), spin_(spin), found_at_(now()) {
  ::prctl(PR_SET_TIMERSLACK, 1);  // naps end when they should
  const int flags = ::fcntl(device.channel->fd, F_GETFL);
  ::fcntl(device.channel->fd, F_SETFL, flags | O_NONBLOCK);
}

std::span<const ibv_wc> Completions::take(Instant at) {
  const int n = ibv_poll_cq(cq_.get(), static_cast<int>(batch_.size()), batch_.data());
  if (n < 0) throw Trouble("ibv_poll_cq failed");
  if (n == 0) {
    depth_ = 0;
    return {};
  }
  found_at_ = at;
  depth_ += static_cast<uint32_t>(n);
  deepest_ = std::max(deepest_, depth_);
  if (static_cast<size_t>(n) < batch_.size()) depth_ = 0;
  return std::span(batch_).first(static_cast<size_t>(n));
}

void Completions::rest(Instant at, Instant until, int descriptor) {
  if (mode_ == Poll::Busy) return;
  if (mode_ == Poll::Hybrid && at < found_at_ + spin_) return;
  if (mode_ == Poll::Hybrid && at < found_at_ + kNapsFor) {
    const timespec nap = to_timespec(std::min(kNap, std::max(until - at, Duration{0})));
    ++sleeps_;
    ::clock_nanosleep(CLOCK_MONOTONIC, 0, &nap, nullptr);
    return;
  }
  if (armed_) return sleep_for_event(until, descriptor);
  if (ibv_req_notify_cq(cq_.get(), 0) != 0) throw Trouble("ibv_req_notify_cq failed");
  armed_ = true;  // what came just before wakes nobody: look once more
}

void Completions::sleep_for_event(Instant until, int descriptor) {
  const Duration left = until - now();
  if (left.ns <= 0) return;
  ++sleeps_;
  pollfd fds[] = {{device_.channel->fd, POLLIN, 0}, {descriptor, POLLIN, 0}};
  const timespec limit = to_timespec(left);
  if (::ppoll(fds, std::size(fds), &limit, nullptr) <= 0 || (fds[0].revents & POLLIN) == 0) return;
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  if (ibv_get_cq_event(device_.channel.get(), &cq, &context) == 0) ibv_ack_cq_events(cq, 1);
  armed_ = false;
}

uint32_t Completions::take_deepest() { return std::exchange(deepest_, 0); }

}  // namespace verbena::daqtool

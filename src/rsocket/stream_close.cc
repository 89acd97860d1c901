// StreamSocket: half closing, closing, and noticing that the peer is gone.
#include <cerrno>

#include "rsocket/attendant.h"
#include "rsocket/clock.h"
#include "rsocket/stream_socket.h"

namespace verbena::rsocket {

namespace {

// There is no kernel to go on sending for a process that is gone, so shutting down waits until the
// peer has everything. But not for ever for one that does not take it.
constexpr Duration kFlushLimit = seconds(10);

// Nor is there one that would tell the peer that a process was killed. A connection on which
// nothing happens is therefore probed; the peer's application does not notice.
constexpr Duration kProbeInterval = seconds(5);

}  // namespace

// Turn of the sender and lock held: all that was sent before goes before.
void StreamSocket::say_goodbye(Control control) {
  if (said_ == control || said_ == Control::kDisconnect) return;
  said_ = control;
  goodbye_pending_ = true;
  progress();
}

void StreamSocket::wait_for_goodbye(Lock& lock, Duration limit) {
  const Instant deadline = now() + limit;
  const auto done = [&] { return state_ != State::kConnected || goodbye_heard(); };
  while (!done()) {
    const Status waited = wait(lock, deadline, done);
    if (!waited.ok() && waited.error().code != EINTR) return;
  }
}

Status StreamSocket::shutdown(int how) {
  if (how != SHUT_RD && how != SHUT_WR && how != SHUT_RDWR) return Error{EINVAL};
  Lock turn(send_turn_);
  Lock lock(lock_);
  if (state_ == State::kListening) {
    if (how == SHUT_WR) return {};
    lock.unlock();
    turn.unlock();
    return stop_listening();
  }
  if (!was_connected_) return Error{ENOTCONN};
  if (how != SHUT_WR) read_open_ = false;
  if (how != SHUT_RD) write_open_ = false;
  ring_waiters();
  if (state_ != State::kConnected || write_open_) return {};
  say_goodbye(read_open_ && peer_open_ ? Control::kShutdown : Control::kDisconnect);
  turn.unlock();
  wait_for_goodbye(lock, kFlushLimit);
  return {};
}

void StreamSocket::say_farewell() {
  const std::lock_guard turn(send_turn_);
  const std::lock_guard guard(lock_);
  const linger& lingering = options_.lingering;
  if (state_ != State::kConnected || (lingering.l_onoff && lingering.l_linger == 0)) return;
  read_open_ = write_open_ = false;
  say_goodbye(Control::kDisconnect);
}

void StreamSocket::flush(Duration patience) {
  Lock lock(lock_);
  const linger& lingering = options_.lingering;
  if (said_) wait_for_goodbye(lock, lingering.l_onoff ? seconds(lingering.l_linger) : patience);
}

void StreamSocket::close() {
  Lock lock(lock_);
  unwatch();
  closed_ = true;
  ring_waiters();
  if (pending_.empty()) return;
  // Nobody will accept them. The attendant may be busy with one.
  lock.unlock();
  const std::lock_guard events(event_turn_);
  lock.lock();
  ready_.clear();
  pending_.clear();
}

Duration StreamSocket::probe_interval() const {
  if (!options_.keepalive || options_.keep_idle_s == 0) return kProbeInterval;
  return std::min(kProbeInterval, seconds(options_.keep_idle_s));
}

Instant StreamSocket::on_tick(Instant time) {
  const std::lock_guard guard(lock_);
  if (state_ != State::kConnected) return kNever;
  progress();
  if (time < next_probe_) return next_probe_;
  next_probe_ = time + probe_interval();
  const bool idle = !std::exchange(active_, false);
  if (idle && !probing_ && state_ == State::kConnected && endpoint_->window().control_free()) {
    probing_ = true;
    post_failed(endpoint_->post_probe());
  }
  return next_probe_;
}

}  // namespace verbena::rsocket

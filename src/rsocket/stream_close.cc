// StreamSocket: half closing, closing, and asking an idle peer whether it is still there.
//
// Keepalive is as with TCP, for those who ask for it. A probe needs an acknowledgement from the
// peer's queue pair; its application does not notice. One that is not answered is repeated by our
// queue pair, and the connection ends when that gives up, or earlier where the application says so.
#include <cerrno>

#include "rsocket/attendant.h"
#include "rsocket/clock.h"
#include "rsocket/stream_socket.h"

namespace verbena::rsocket {

namespace {

// There is no kernel to go on sending for a process that is gone, so shutting down waits until the
// peer has everything. But not for ever for one that does not take it.
constexpr Duration kFlushLimit = seconds(10);

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
  if (state_ != State::kListening) return;
  // Nobody will accept who waits, and the port is free from now on. The attendant may be busy with
  // one of them.
  lock.unlock();
  const std::lock_guard events(event_turn_);
  lock.lock();
  ready_.clear();
  pending_.clear();
  bound_.reset();
  (void)fresh_id();
}

// The next probe, or the next look whether the last one was answered. With the lock held.
void StreamSocket::schedule_probe(Instant from) {
  Instant next = kNever;
  if (options_.keepalive && state_ == State::kConnected) {
    next = from + seconds(probing_ ? options_.keep_interval() : options_.keep_idle());
  }
  Attendant::instance().wake_at(next, number());
}

void StreamSocket::on_tick(Instant time) {
  const std::lock_guard guard(lock_);
  if (state_ != State::kConnected) return;
  progress();
  const bool idle = !std::exchange(active_, false);
  if (probing_) {
    if (++unanswered_ >= options_.keep_probes()) {
      end(ETIMEDOUT);
      rdma_disconnect(id_);
    }
  } else if (std::exchange(probed_, false)) {
    // The last one was answered: the idle time begins anew.
  } else if (idle && state_ == State::kConnected && endpoint_->window().control_free()) {
    probing_ = probed_ = true;
    unanswered_ = 0;
    post_failed(endpoint_->post_probe());
  }
  schedule_probe(time);
}

}  // namespace verbena::rsocket

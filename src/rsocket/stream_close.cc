// StreamSocket: shutdown, close and keepalive.
//
// Keepalive works as in TCP and is off by default. A probe needs an ACK from the peer's queue pair;
// the peer's application is not involved. Our queue pair retransmits a lost probe. The connection
// ends when the queue pair gives up, or after the application's limit.
#include <cerrno>

#include "rsocket/clock.h"
#include "rsocket/service_thread.h"
#include "rsocket/stream_socket.h"

namespace verbena::rsocket {

namespace {

// No kernel continues to send for a process that has ended, so shutdown waits until the peer has
// received everything. This limits the wait for a peer that does not receive.
constexpr Duration kFlushLimit = seconds(10);

}  // namespace

// Requires send_mutex_ and the lock: earlier data is posted first.
void StreamSocket::queue_last_message(Control control) {
  if (last_message_ == control || last_message_ == Control::kDisconnect) return;
  last_message_ = control;
  last_message_pending_ = true;
  progress();
}

void StreamSocket::wait_for_last_message(Lock& lock, Duration limit) {
  const Instant deadline = now() + limit;
  const auto done = [&] { return state_ != State::kConnected || last_message_acked(); };
  while (!done()) {
    const Status waited = wait(lock, deadline, done);
    if (!waited.ok() && waited.error().code != EINTR) return;
  }
}

Status StreamSocket::shutdown(int how) {
  if (how != SHUT_RD && how != SHUT_WR && how != SHUT_RDWR) return Error{EINVAL};
  Lock direction_lock(send_mutex_);
  Lock lock(lock_);
  if (state_ == State::kListening) {
    if (how == SHUT_WR) return {};
    lock.unlock();
    direction_lock.unlock();
    return stop_listening();
  }
  if (!was_connected_) return Error{ENOTCONN};
  if (how != SHUT_WR) read_open_ = false;
  if (how != SHUT_RD) write_open_ = false;
  wake_waiters();
  if (state_ != State::kConnected || write_open_) return {};
  queue_last_message(read_open_ && peer_open_ ? Control::kShutdown : Control::kDisconnect);
  direction_lock.unlock();
  wait_for_last_message(lock, kFlushLimit);
  return {};
}

void StreamSocket::send_last_message() {
  const std::lock_guard direction_lock(send_mutex_);
  const std::lock_guard guard(lock_);
  const linger& lingering = options_.lingering;
  if (state_ != State::kConnected || (lingering.l_onoff && lingering.l_linger == 0)) return;
  read_open_ = write_open_ = false;
  queue_last_message(Control::kDisconnect);
}

void StreamSocket::flush(Duration timeout) {
  Lock lock(lock_);
  const linger& lingering = options_.lingering;
  if (last_message_)
    wait_for_last_message(lock, lingering.l_onoff ? seconds(lingering.l_linger) : timeout);
}

void StreamSocket::close() {
  Lock lock(lock_);
  unwatch();
  closed_ = true;
  wake_waiters();
  if (state_ != State::kListening) return;
  // Pending connections will not be accepted, and the port becomes free now. The service thread may
  // be working on one of them.
  lock.unlock();
  const std::lock_guard events(event_mutex_);
  lock.lock();
  ready_.clear();
  pending_.clear();
  bound_.reset();
  (void)fresh_id();
}

// Schedules the next probe, or the check whether the last one was acknowledged. Requires the lock.
void StreamSocket::schedule_probe(Instant from) {
  Instant next = kNever;
  if (options_.keepalive && state_ == State::kConnected) {
    next = from + seconds(probe_in_flight_ ? options_.keep_interval() : options_.keep_idle());
  }
  ServiceThread::instance().wake_at(next, number());
}

void StreamSocket::on_tick(Instant time) {
  const std::lock_guard guard(lock_);
  if (state_ != State::kConnected) return;
  progress();
  const bool idle = !std::exchange(active_, false);
  if (probe_in_flight_) {
    if (++missed_intervals_ >= options_.keep_probes()) {
      end(ETIMEDOUT);
      rdma_disconnect(id_);
    }
  } else if (std::exchange(probe_sent_, false)) {
    // The last probe was acknowledged: the idle time starts again.
  } else if (idle && state_ == State::kConnected && endpoint_->window().control_free()) {
    probe_in_flight_ = probe_sent_ = true;
    missed_intervals_ = 0;
    post_failed(endpoint_->post_probe());
  }
  schedule_probe(time);
}

}  // namespace verbena::rsocket

// The background thread's rounds: sleep, housekeeping, progress.
#include <sched.h>
#include <time.h>

#include "base/exhaustion.h"
#include "base/pause.h"
#include "runtime/lane.h"
#include "runtime/log.h"

namespace verbena::runtime {
namespace {

// Turns in a row before the lock is released for a moment.
constexpr int kTurnsPerLock = 16;
// The pause after memory was exhausted.
constexpr Duration kExhaustedPause = milliseconds(1);

}  // namespace

void Lane::run_background() {
  lock_.lock();
  (void)try_allocating([&] { thread_.begin(); });
  while (!thread_.is_stopping()) {
    // Memory is allocated only with the lock held, so the lock is held after a failure.
    if (!try_allocating([&] { background_round(); })) {
      turning_thread_.store(pthread_t{}, std::memory_order_relaxed);
      on_exhaustion();
    }
    if (exhaustion_.pending) [[unlikely]]
      wait_for_memory();
  }
  lock_.unlock();
}

void Lane::wait_for_memory() {
  exhaustion_.pending = false;
  lock_.unlock();
  const timespec pause{0, kExhaustedPause.ns};
  nanosleep(&pause, nullptr);
  lock_.lock_in_background();
  deliver();
}

void Lane::background_round() {
  thread_.move_near_caller();
  const BackgroundThread::Wakeup wakeup = sleep_in_background();
  const bool polled_just_before = policy_.polled_just_before(wakeup.at);
  lock_.lock_in_background();
  thread_.woke_up();
  if (thread_.is_stopping()) return;
  do_housekeeping(wakeup);

  if (policy_.leaves_packets_to_poller(wakeup.at)) return;
  if (policy_.leaves_ack_delayed(wakeup.at, wakeup.packets, wakeup_deadline())) return;
  const bool found = work(wakeup);
  if (policy_.end_round(wakeup.packets, polled_just_before, found)) give_progress_to_thread();
}

// Releases the lock.
BackgroundThread::Wakeup Lane::sleep_in_background() {
  const Instant at = runtime::now();
  Instant until = policy_.sleep_until(at, wakeup_deadline(), count(core::CounterId::packets_sent));
  if (policy_.thread_owns_progress()) {
    datapath_.wire->prepare_to_sleep();
    if (datapath_.local != nullptr && !datapath_.local->arm()) until = at;
  }
  if (exhaustion_.pending) until = at;  // see wait_for_memory()
  thread_.prepare_to_sleep(until);
  const BackgroundThread::ExtraFds extra = owner_.control_fds(*this);
  lock_.unlock();
  return thread_.sleep(at, until, extra, ProgressPolicy::kPollCheckInterval,
                       [this](Instant now) { return policy_.may_sleep_on(now); });
}

// Everything but packets.
void Lane::do_housekeeping(const BackgroundThread::Wakeup& wakeup) {
  if (datapath_.local != nullptr) datapath_.local->disarm();
  owner_.on_wakeup(*this, wakeup);
  handle_overrun();
  if (const auto warning = datapath_.wire->take_warning()) {
    log(LogLevel::Warning, "%s: %s", device_.name.c_str(), warning->c_str());
  }
  log_notice();
}

// True: packets were received.
bool Lane::work(const BackgroundThread::Wakeup& wakeup) {
  if (policy_.has_deferred()) transmit(clock_.now());
  policy_.begin_work();
  if (turn_until_quiet()) return true;
  if (!wakeup.packets && datapath_.wire->deadline() > wakeup.at) return false;
  // The datapath's descriptor announced no packet, or another thread took the packets.
  turning_thread_.store(pthread_self(), std::memory_order_relaxed);
  datapath_.wire->poll_directory();
  if (datapath_.local != nullptr) datapath_.local->attend();
  turning_thread_.store(pthread_t{}, std::memory_order_relaxed);
  return turn_until_quiet();
}

// Takes turns until there is nothing to do, and busy-polls after a burst. True: packets were
// received.
bool Lane::turn_until_quiet() {
  const uint64_t before = count(core::CounterId::packets_received);
  bool found = false;
  Instant quiet_since = runtime::now();
  policy_.begin_turns();
  for (int i = 1; !thread_.is_stopping(); ++i) {
    const Outcome outcome = turn(policy_.deferral_for_thread());
    const bool more = outcome.received || outcome.unfinished;
    found |= outcome.received;
    deliver();
    if (policy_.has_deferred()) break;
    if (more) {
      quiet_since = turned_at_;
      policy_.found_packets();
    } else if (!policy_.may_busy_poll(count(core::CounterId::packets_received) - before,
                                      turned_at_ - quiet_since)) {
      break;
    }
    if (!more || i % kTurnsPerLock == 0) {
      handle_overrun();
      yield_lock();
    }
  }
  return found;
}

void Lane::handle_overrun() {
  if (!overrun_reported_.load(std::memory_order_relaxed)) return;
  overrun_reported_.exchange(false, std::memory_order_acquire);
  const Instant at = clock_.now();
  engine_->fail_overrun(at);
  deliver();
  transmit(at);
}

void Lane::yield_lock() {
  lock_.unlock();
  if (lock_.has_sleepers()) sched_yield();
  pause_cpu();
  lock_.lock();
}

}  // namespace verbena::runtime

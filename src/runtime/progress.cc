// Who turns the crank. A polling application does it best: no wake-up, no context switch. But it
// may stop polling at any time, for instance to spin on memory that a peer writes, and then the
// background thread must take over at once. So the thread has two ways to wait:
//
//   watching: asleep on the datapath's descriptor; a packet wakes it.
//   not watching: the application polls; the thread only looks in every kPatience whether it still
//   does.
//
// An application that polls steadily takes the watch. Should the thread, looking in, find that
// packets wait while nobody polls, the application went away with the watch in its pocket: it gets
// it back, and for many wakings to come nobody else does. That is how interrupt moderation adapts,
// too: by what it finds when it wakes.
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/exhaustion.h"
#include "base/pause.h"
#include "runtime/log.h"
#include "runtime/management.h"
#include "runtime/nic.h"
#include "runtime/process.h"

namespace verbena::runtime {
namespace {

constexpr Duration kPatience = milliseconds(1);
// Shorter than the acknowledge timeouts that programs use (2^14 * 4 us = 67 ms).
constexpr Duration kActiveNap = milliseconds(50);
// So many polls, and the application is taken for a steady poller.
constexpr uint32_t kSteadyPolls = 16;
// So much more often met at work than not, and it is trusted again.
constexpr uint32_t kPollsMet = 16;
constexpr Duration kJustPolled = microseconds(5);
// A poller that has not polled for so long while packets wait is gone.
constexpr Duration kGone = microseconds(100);
constexpr Duration kSecondChance = microseconds(50);
// So many looks that found it at work, and what it did before is forgotten.
constexpr uint32_t kGoodLooks = 1000;
// How long an acknowledgement waits for a reply to ride on: at first, and when that went well so
// often.
constexpr Duration kFirstPatience = microseconds(20);
constexpr Duration kProvenPatience = microseconds(500);
constexpr uint32_t kProven = 4;
// How long a post looks out for the answer to what it wrote into a peer's memory.
constexpr Duration kAnswerPatience = microseconds(3);
// What a socket holds is read by then.
constexpr int kReadsBeforeDeadline = 32;
// Turns in a row before the lock is let go for a moment.
constexpr int kTurnsPerHold = 16;

// How long the thread waits for memory.
constexpr Duration kExhaustedPause = milliseconds(1);

constexpr int kRoundsPerCall = 4;
// What makes a burst.
constexpr uint64_t kBurstPackets = 8;

// What a process that ends takes for its last words.
constexpr Duration kExitPatience = milliseconds(100);

// Threads that ask for short time slices run soon when they wake, even beside one that spins; they
// get no more time in all. Kernels before 6.12 do not know of it, and nothing happens.
void ask_for_short_slices() {
  struct {  // struct sched_attr, which the C library does not declare
    uint32_t size;
    uint32_t policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns;
    uint64_t deadline_ns;
    uint64_t period_ns;
  } attr{};
  if (syscall(SYS_sched_getattr, 0, &attr, sizeof attr, 0) != 0) return;
  if (attr.policy != SCHED_OTHER) return;  // somebody chose another policy for the whole process
  attr.size = sizeof attr;
  attr.runtime_ns = 100'000;
  syscall(SYS_sched_setattr, 0, &attr, 0);
}

}  // namespace

// Packets are lost for lack of memory where they are handled. This is the net below: an application
// that polls or posts, and the thread, go on in any case.
Nic::Outcome Nic::turn(Owe owe) {
  Outcome outcome{.received = false, .unfinished = false};
  if (try_allocating([&] { outcome = take_turn(owe); })) [[likely]]
    return outcome;
  turning_thread_.store(pthread_t{}, std::memory_order_relaxed);
  on_exhaustion();
  return outcome;
}

// The thread comes again soon, though nothing may announce what is left to do.
void Nic::on_exhaustion() {
  engine_->state().counters.add(core::CounterId::out_of_memory);
  if (!exhausted_ && sleeping_until_ != kAwake) wake_thread();
  exhausted_ = true;
  if (std::exchange(exhaustion_logged_, true)) return;
  log(LogLevel::Error,
      "%s: memory is exhausted: packets and messages are dropped until there is some again",
      device_.name.c_str());
}

Nic::Outcome Nic::take_turn(Owe owe) {
  turning_thread_.store(pthread_self(), std::memory_order_relaxed);
  std::span<const wire::RxPacket> packets = datapath_->receive();
  // All that can be done before something comes is done while nothing waits for it yet.
  const Instant at = clock_.now();
  if (local_ != nullptr) [[likely]] {
    local_->pass(at - turned_at_);
    if (local_->anything_gone()) [[unlikely]]
      narrow_paths(at);
  }
  turned_at_ = at;
  if (packets.empty() && !engine_->anything_to_send()) packets = datapath_->linger();
  if (packets.empty() && !engine_->anything_to_send() && !datapath_->pending() &&
      at < earliest_deadline()) {  // the usual case for one who spins
    turning_thread_.store(pthread_t{}, std::memory_order_relaxed);
    return {.received = false, .unfinished = false};
  }
  const uint64_t completions_before = engine_->state().completions;
  const bool idle_before = !engine_->anything_to_send();
  core::Engine::Arrivals arrivals;
  size_t received = packets.size();
  if (received != 0) arrivals = engine_->on_packets(packets, at);
  if (engine_->earliest_deadline() <= at) [[unlikely]] {
    if (received != 0) received += read_on(arrivals, at);
    engine_->on_deadline(at);
  }
  if (engine_->management().anything_arrived() || management_deadline_ <= at) [[unlikely]] {
    const os::NoCancel no_cancel;
    management().turn(at);
  }
  if (late_events_.deadline() <= at) [[unlikely]]
    late_events_.raise_due(at, [&](core::CompletionQueue* cq) { engine_->state().notify(cq); });
  if (received != 0) datapath_->release();
  Outcome outcome{.received = received != 0, .unfinished = datapath_->pending()};
  // A steady poller gets what it waits for first. Its next call, a reply more often than not, sends
  // what is owed along with it. So may one who looks at the memory that was written; but one who
  // waits for an event gets that after the acknowledgement has left, as from hardware.
  const bool completed = completion_in_hand_ || engine_->state().completions != completions_before;
  // What waited before does not wait longer, so that a debt is never renewed.
  const bool new_debt = idle_before && !outcome.unfinished && engine_->anything_to_send();
  const bool hold =
      arrivals.messages && !arrivals.answers_due &&
      (owe == Owe::ToPoller ? completed
                            : owe == Owe::ToReply && new_debt && may_wait(arrivals, received, at));
  if (hold) {
    owed_since_ = at;
    owed_to_ = owe;
  } else {
    owed_since_ = kNever;
    outcome.unfinished |= engine_->poll_transmit(datapath_->sink(), at);
    datapath_->flush();
  }
  turning_thread_.store(pthread_t{}, std::memory_order_relaxed);
  return outcome;
}

// Nobody is late whose answer lies here unread: this process may not have run for a while. Returns
// how many packets more came.
size_t Nic::read_on(core::Engine::Arrivals& arrivals, Instant at) {
  size_t received = 0;
  for (int i = 0; i < kReadsBeforeDeadline && engine_->next_deadline() <= at; ++i) {
    datapath_->release();
    const std::span<const wire::RxPacket> packets = datapath_->receive();
    if (packets.empty()) break;
    received += packets.size();
    arrivals.add(engine_->on_packets(packets, at));
  }
  return received;
}

// With some processes no memory is shared any more. What had come of them was in earlier turns.
void Nic::narrow_paths(Instant at) {
  const os::NoCancel no_cancel;
  local_->take_gone();
  log_notice();
  engine_->narrow_paths([&](wire::PathId path) { return local_->packet_bytes(path) != 0; }, at);
}

// Why what could go through memory does not.
void Nic::log_notice() {
  if (const auto notice = local_->take_notice()) {
    log(LogLevel::Info, "%s: %s", device_.name.c_str(), notice->c_str());
  }
}

// A caller's thread sends a bounded amount: READ answers can be gigabytes. The rest is the
// thread's.
void Nic::transmit(Instant at) {
  owed_since_ = kNever;
  bool more = true;
  const bool had_memory = try_allocating([&] {
    for (int i = 0; more && i < kRoundsPerCall; ++i) {
      more = engine_->poll_transmit(datapath_->sink(), at);
      datapath_->flush();
    }
  });
  if (!had_memory) on_exhaustion();
  if (more) wake_thread();
}

// Before a queue pair ends. A NIC would have acknowledged what has come for it, though its program
// does not look any more; and what a poller still owes must not die with the queue pair.
void Nic::answer_what_came() {
  for (int i = 0; i < kRoundsPerCall && turn(Owe::Nothing).received; ++i) {
  }
  transmit(clock_.now());
}

void Nic::wake_thread() {
  const os::NoCancel no_cancel;
  eventfd_write(wake_fd_, 1);
}

// Where the kernel does not steer packets, some that are for other processes lie in our sockets,
// the last ones that we sent among them.
void Nic::pass_on_what_is_left() {
  constexpr int kTurns = 32;  // each reads more than the one before
  for (int i = 0; i < kTurns; ++i) {
    if (local_ != nullptr) local_->disarm();  // or it would look for datagrams seldom
    turn(Owe::Nothing);
  }
}

void Nic::transmit_at_exit() {
  if (dead() || !lock_within(mutex_, kExitPatience)) return;
  if (management_ != nullptr) management_->say_goodbye(runtime::now());
  const Instant until = runtime::now() + kExitPatience;
  do {
    transmit(clock_.now());
  } while (engine_->management().anything_to_send() && runtime::now() < until);
  pass_on_what_is_left();
  mutex_.unlock();
}

void Nic::unlock_and_wake() {
  const bool wake = next_deadline() < sleeping_until_;
  if (wake) sleeping_until_ = kAwake;
  mutex_.unlock();
  if (wake) wake_thread();
}

void Nic::watch(bool on) {
  if (watching_ == on) return;
  const os::NoCancel no_cancel;
  watching_ = on;
  steady_polls_ = 0;
  epoll_event event{on ? uint32_t{EPOLLIN} : 0u, {}};
  epoll_ctl(gate_fd_, EPOLL_CTL_MOD, datapath_->wait_fd(), &event);
  if (local_ == nullptr) return;
  if (!on) {
    local_->disarm();
  } else if (!local_->arm()) {
    eventfd_write(wake_fd_, 1);
  }
}

void Nic::after_post(PostingGuard&, core::QueuePair& qp, Instant at) {
  // Only a poller at work brings the next turn soon for certain.
  if (!watching_ && !engine_->peer_idle(qp)) return;
  const auto written_alone = [&] {
    return engine_->state().counters[core::CounterId::writes_without_peer];
  };
  const uint64_t before = written_alone();
  // The peer may answer before we are back here: by then it must see us awake.
  const bool disarmed = watching_ && wrote_alone_ && answer_follows_.try_now();
  if (disarmed) local_->disarm();
  transmit(at);
  wrote_alone_ = written_alone() != before;
  if (!wrote_alone_ && !disarmed) [[likely]]
    return;
  bool wake = false;
  if (wrote_alone_ && (disarmed || (!watching_ && answer_follows_.try_now())))
    wake = await_answer();
  if (disarmed && watching_) wake |= !local_->arm();
  if (wake) wake_thread();
}

// Two programs that write to each other in turn, and spin on their own memory meanwhile, need a
// system call for each WRITE as long as nobody polls. If the call that posts one looks out for the
// answer for a moment, the peer sees somebody awake and sends a packet; it asks whether its WRITE
// is done, and as the acknowledgement waits for the next WRITE, it is found polling. From then on
// both always are.
bool Nic::await_answer() {
  const auto received = [&] {
    return engine_->state().counters[core::CounterId::packets_received];
  };
  const uint64_t before = received();
  const Instant until = clock_.now() + kAnswerPatience;
  bool wake = false;
  completion_in_hand_ = true;
  do {
    wake |= turn_polled();
  } while (received() == before && turned_at_ < until);
  completion_in_hand_ = false;
  if (received() != before) {
    answer_follows_.succeeded();
  } else {
    answer_follows_.failed();
    watch(true);  // it has its completion: it may spin on memory from now on
  }
  return wake;
}

void Nic::turn_for_poller() {
  if (dead()) return;
  if (!mutex_.try_lock()) return;
  const bool wake = turn_polled();
  unlock();
  if (wake) wake_thread();
}

// One turn of a poller; true if the thread is to be woken.
bool Nic::turn_polled() {
  if (watching_ && poller_stays_.is_due() && ++steady_polls_ >= kSteadyPolls) {
    watch(false);
    placement_.note_caller();
    // The thread sleeps until a packet comes; now it must look in instead.
    if (sleeping_until_ != kAwake && sleeping_until_ > runtime::now() + kPatience) {
      sleeping_until_ = kAwake;
      wake_thread();
    }
  }
  const Owe owe = !watching_ ? Owe::ToPoller : may_hold_for_reply() ? Owe::ToReply : Owe::Nothing;
  const Outcome outcome = turn(owe);
  last_poll_.store(turned_at_, std::memory_order_relaxed);
  bool wake = false;
  if (watching_) {
    wake = outcome.unfinished;
    if (owes()) {
      met_poller();
      // What it does not pay itself, soon, is the thread's to pay, who must know.
      wake |= sleeping_until_ > turned_at_ + patience();
      if (wake) sleeping_until_ = kAwake;
    }
  }
  return wake;
}

void Nic::arm(core::CompletionQueue& cq, core::Armed level) {
  const PostingGuard guard(*this);
  if (cq.arm(level) && !late_events_.note(&cq, clock_.now()) && cq.take_late_event())
    engine_->state().notify(&cq);
  watch(true);
  if (owes() && owed_to_ == Owe::ToReply) transmit(clock_.now());  // nobody is about to reply
}

void Nic::poller_sleeps() {
  if (watching_ || dead()) return;
  const std::lock_guard lock(mutex_);
  watch(true);
}

// Turns until there is nothing to do; true if packets came. After a burst it stays a little longer
// (busy_poll_policy.h).
bool Nic::work_until_quiet() {
  const auto received = [&] {
    return engine_->state().counters[core::CounterId::packets_received];
  };
  const uint64_t before = received();
  bool found = false;
  Instant quiet_since = runtime::now();
  busy_poll_.begin();
  for (int i = 1; !stop_; ++i) {
    const Outcome outcome = turn(may_hold_for_reply() ? Owe::ToReply : Owe::Nothing);
    const bool more = outcome.received || outcome.unfinished;
    found |= outcome.received;
    deliver();
    if (owes()) break;
    if (more) {
      quiet_since = turned_at_;
      busy_poll_.found();
    } else {
      const bool burst = watching_ && received() - before >= kBurstPackets;
      if (!burst || !busy_poll_.goes_on(turned_at_ - quiet_since)) break;
    }
    if (!more || i % kTurnsPerHold == 0) {
      mutex_.unlock();
      if (mutex_.has_sleepers()) sched_yield();
      pause_cpu();
      mutex_.lock();
    }
  }
  return found;
}

// An application that spins on memory answers at once what a peer wrote there; then the
// acknowledgement rides behind the answer, and the peer, who polls for it, finds both without its
// own thread. Whether it is like that shows in the outcome: a debt that nobody paid was held in
// vain.
bool Nic::may_hold_for_reply() const { return watching_ && reply_follows_.is_due(); }

// The answer to what came: only where memory was written, nobody is about to be woken, and nothing
// of our own waits behind it.
bool Nic::may_wait(core::Engine::Arrivals arrivals, size_t packets, Instant at) const {
  return !arrivals.receives && packets < kBurstPackets && engine_->state().notified.empty() &&
         engine_->only_answers_to_send(at);
}

Duration Nic::patience() const {
  return paid_in_a_row_ < kProven ? kFirstPatience : kProvenPatience;
}

void Nic::settle_debt(bool paid_by_reply) {
  if (paid_by_reply) {
    reply_follows_.succeeded();
    ++paid_in_a_row_;
  } else {
    paid_in_a_row_ = 0;
    reply_follows_.failed();
  }
}

// A poller that is at work far more often than not when packets come is there after all.
void Nic::met_poller() {
  if (++polls_met_ >= kPollsMet) poller_stays_.end_pause();
}

// It has the watch, and it polls.
bool Nic::poller_at_work(Instant at) const {
  return !watching_.load(std::memory_order_relaxed) &&
         at - last_poll_.load(std::memory_order_relaxed) < kGone;
}

void* Nic::thread_main(void* self) {
  prctl(PR_SET_NAME, "verbena");
  prctl(PR_SET_TIMERSLACK, 1000);  // nanoseconds: RNR delays start at 10 us
  ask_for_short_slices();
  static_cast<Nic*>(self)->run_background();
  return nullptr;
}

void Nic::run_background() {
  mutex_.lock();
  (void)try_allocating([&] { placement_.begin(); });
  while (!stop_) {
    // The lock is held where memory is allocated, hence after a failure, too.
    if (!try_allocating([&] { background_round(); })) {
      turning_thread_.store(pthread_t{}, std::memory_order_relaxed);
      on_exhaustion();
    }
    if (exhausted_) [[unlikely]]
      rest_if_exhausted();
  }
  mutex_.unlock();
}

// Others may free some memory meanwhile.
void Nic::rest_if_exhausted() {
  exhausted_ = false;
  mutex_.unlock();
  const timespec pause{0, kExhaustedPause.ns};
  ppoll(nullptr, 0, &pause, nullptr);
  mutex_.lock_in_background();
  deliver();
}

void Nic::background_round() {
  placement_.follow();
  // Decide how long to sleep, and say so before letting the lock go.
  const Instant at = runtime::now();
  Instant until = std::min(next_deadline(), udp_->deadline());
  if (!watching_) until = std::min(until, at + (suspicious_ ? kSecondChance : kPatience));
  const Instant held_since = watching_ ? owed_since_ : kNever;
  const bool holding = held_since != kNever;
  if (holding) until = std::min(until, held_since + patience());
  // While there is traffic, wake now and then anyway: then a post need not wake us for its
  // deadline.
  const uint64_t activity = engine_->state().counters[core::CounterId::packets_sent];
  if (activity != activity_seen_) until = std::min(until, at + kActiveNap);
  activity_seen_ = activity;
  if (watching_) udp_->rest();
  // Only who waits for the descriptor is woken through it.
  if (watching_ && local_ != nullptr && !local_->arm()) until = at;
  if (exhausted_) until = at;  // see rest_if_exhausted()
  sleeping_until_ = until;
  const int departures_fd = management_ != nullptr ? management_->departures_fd() : -1;
  mutex_.unlock();

  // Those that there are not are -1, and ignored.
  pollfd fds[4] = {{gate_fd_, POLLIN, 0},
                   {wake_fd_, POLLIN, 0},
                   {monitor_.fd(), POLLIN, 0},
                   {departures_fd, POLLIN, 0}};
  timespec timeout{};
  timespec* limit = nullptr;
  if (until != kNever) {
    const int64_t ns = std::max<int64_t>((until - at).ns, 0);
    timeout = {ns / 1'000'000'000, ns % 1'000'000'000};
    limit = &timeout;
  }
  Instant woke_at;
  // A poller at work is left alone, lock and all.
  while (ppoll(fds, 4, limit, nullptr) == 0 && poller_at_work(woke_at = runtime::now())) {
    if (++good_looks_ >= kGoodLooks) poller_stays_.succeeded();
    timeout = {0, kPatience.ns};
  }
  woke_at = runtime::now();
  const bool just_polled = woke_at - last_poll_.load(std::memory_order_relaxed) < kJustPolled;
  mutex_.lock_in_background();
  sleeping_until_ = kAwake;
  if (stop_) return;
  if (local_ != nullptr) local_->disarm();
  if (fds[1].revents != 0) {
    eventfd_t value;
    eventfd_read(wake_fd_, &value);
  }
  if (fds[2].revents != 0 && monitor_.drain()) port_changed_ = true;
  if (port_changed_) {
    refresh_port();
    port_changed_ = false;
  }
  if (management_ != nullptr && (fds[3].revents != 0 || management_->departures_pending())) {
    management_->on_departures(woke_at);
    deliver();
  }
  if (const auto warning = udp_->take_warning()) {
    log(LogLevel::Warning, "%s: %s", device_.name.c_str(), warning->c_str());
  }
  if (local_ != nullptr) log_notice();

  // A packet taken from a poller at work would be answered out of its rhythm.
  if (!watching_) {
    const bool polled = poller_at_work(woke_at);
    const Instant last_poll = last_poll_.load(std::memory_order_relaxed);
    // The whole CPU may have stood still for a while, poller and all: it gets a second chance.
    suspicious_ = !polled && suspected_poll_ != last_poll;
    suspected_poll_ = last_poll;
    if (polled || suspicious_) return;
  }
  if (holding) settle_debt(owed_since_ != held_since);
  if (watching_ && owes() && owed_to_ == Owe::ToReply && owed_since_ != held_since) {
    // A poller took what woke us, or has just told us, and is about to answer.
    const bool taken = fds[0].revents == 0 || owed_since_ >= woke_at;
    const bool due = std::min(next_deadline(), udp_->deadline()) <= woke_at;
    if (taken && !due && woke_at - owed_since_ < patience()) return;
    if (!holding) settle_debt(false);
  }
  if (owes()) transmit(clock_.now());
  reply_follows_.pass();
  bool found = work_until_quiet();
  if (!found && (fds[0].revents != 0 || udp_->deadline() <= woke_at)) {
    // It was not a packet, or somebody was faster.
    turning_thread_.store(pthread_self(), std::memory_order_relaxed);
    udp_->poll_directory();
    if (local_ != nullptr) local_->attend();
    turning_thread_.store(pthread_t{}, std::memory_order_relaxed);
    found = work_until_quiet();
  }
  if (watching_) {
    poller_stays_.pass();
    if (fds[0].revents != 0) {
      if (!just_polled) polls_met_ -= std::min(polls_met_, 2u);
      if (just_polled) met_poller();
    }
  } else {  // it went away with the watch
    if (found) {
      poller_stays_.failed();
      good_looks_ = 0;
      polls_met_ = 0;
    }
    watch(true);
  }
}

}  // namespace verbena::runtime

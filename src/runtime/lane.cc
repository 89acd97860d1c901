// Turns, and the progress that application threads make.
#include "runtime/lane.h"

#include <sched.h>

#include <mutex>
#include <utility>

#include "base/exhaustion.h"
#include "base/spin_lock.h"
#include "runtime/config.h"
#include "runtime/log.h"
#include "runtime/process.h"

namespace verbena::runtime {
namespace {

// Enough to drain a socket.
constexpr int kReadsBeforeDeadline = 32;
// A thread that polls for longer without receiving a packet lets others run. The system call takes
// about a 50th of this time if no other thread waits for the processor.
constexpr Duration kFruitlessPolling = microseconds(20);
// Polls that are further apart do not count: the program does something else between them.
constexpr Duration kSteadyPolling = microseconds(10);
// Transmit rounds of one call.
constexpr int kRoundsPerCall = 4;

// What this thread waits for may be done by a thread that waits for its processor. It may poll
// several lanes.
[[gnu::cold, gnu::noinline]] void yield_processor(Instant at) {
  static thread_local Instant latest;
  if (at - latest < kFruitlessPolling) return;
  latest = at;
  sched_yield();
}

}  // namespace

Status Lane::start(host::SlotDirectory::CountersText counters) {
  const Status opened = datapath_.open(device_, std::move(counters));
  if (!opened.ok()) return opened;
  slot_ = datapath_.directory->slot();
  engine_ = std::make_unique<core::Engine>(core::EngineConfig{.slot = slot_,
                                                              .secret = random_secret(),
                                                              .memory = &memory_,
                                                              .extensions = config().extensions,
                                                              .congestion = config().congestion});
  datapath::PeerAccess* const access =
      datapath_.local != nullptr ? datapath_.local->peer_access() : nullptr;
  if (access != nullptr) engine_->expose_through(&access->exposure());
  return thread_.start(datapath_.all->wait_fd(), *this);
}

void Lane::abandon() {
  abandoned_.store(true, std::memory_order_relaxed);
  // The table of exposed memory is the parent's. Memory that the child registers is not exposed.
  if (engine_ != nullptr) engine_->expose_through(nullptr);
  datapath_.abandon();
  thread_.abandon();
}

// ------------------------------------------------------------------------------------- a turn

// Packets are dropped for lack of memory where they are handled. This handler is the last resort:
// the application's call and the background thread continue in any case.
Lane::Outcome Lane::turn(Defer defer) {
  Outcome outcome;
  const bool had_memory = try_allocating([&] { outcome = take_turn(defer); });
  turning_thread_.store(pthread_t{}, std::memory_order_relaxed);
  if (!had_memory) [[unlikely]]
    on_exhaustion();
  return outcome;
}

Lane::Outcome Lane::take_turn(Defer defer) {
  turning_thread_.store(pthread_self(), std::memory_order_relaxed);
  datapath::Datapath& datapath = *datapath_.all;
  std::span<const wire::RxPacket> packets = datapath.receive();
  // Work that does not depend on the packets is done before busy_poll, while nothing waits for it.
  const Instant at = clock_.now();
  if (datapath_.local != nullptr) [[likely]] {
    datapath_.local->pass(at - turned_at_);
    if (datapath_.local->anything_gone()) [[unlikely]]
      revert_paths_to_mtu(at);
  }
  turned_at_ = at;
  const bool started_idle = !engine_->anything_to_send();
  if (packets.empty() && started_idle) packets = datapath.busy_poll();
  if (packets.empty() && started_idle && !datapath.pending() && at < earliest_deadline()) {
    return {};  // the usual case of a polling thread
  }
  const uint64_t completions_before = engine_->state().completions;
  core::Engine::Arrivals arrivals;
  size_t received = packets.size();
  if (received != 0) arrivals = engine_->on_packets(packets, at);
  if (engine_->earliest_deadline() <= at) [[unlikely]] {
    if (received != 0) received += read_before_deadlines(arrivals, at);
    engine_->on_deadline(at);
  }
  if (engine_->management().has_datagrams() || owner_deadline_ <= at) [[unlikely]] {
    const os::NoCancel no_cancel;
    owner_.on_management(*this, at);
  }
  if (late_events_.deadline() <= at) [[unlikely]]
    late_events_.raise_due(at,
                           [&](core::CompletionQueue* cq) { return engine_->state().notify(cq); });
  if (received != 0) datapath.release();

  Outcome outcome{.received = received != 0, .unfinished = datapath.pending()};
  ProgressPolicy::TurnResult result{.brought_messages = arrivals.messages,
                                    .response_due = arrivals.responses_due,
                                    .used_receives = arrivals.receives,
                                    .completed = engine_->state().completions != completions_before,
                                    .raises_event = false,
                                    .started_idle = started_idle,
                                    .has_more = outcome.unfinished,
                                    .only_acks_to_send = false,
                                    .packets = received};
  if (may_defer(defer, result, at)) {
    policy_.deferred(defer, at);
  } else {
    policy_.transmitted();
    outcome.unfinished |= engine_->poll_transmit(datapath.sink(), at);
    datapath.flush();
  }
  return outcome;
}

inline bool Lane::may_defer(Defer defer, ProgressPolicy::TurnResult& result, Instant at) const {
  if (defer == Defer::UntilReply && result.brought_messages) {
    result.raises_event = !engine_->state().notified.empty();
    result.only_acks_to_send = engine_->anything_to_send() && engine_->only_responses_to_send(at);
  }
  return policy_.may_defer(defer, result);
}

// Drains the sockets before deadlines are checked: this process may not have run for a while, and
// the responses may already have been received. Returns the number of further packets.
size_t Lane::read_before_deadlines(core::Engine::Arrivals& arrivals, Instant at) {
  size_t received = 0;
  for (int i = 0; i < kReadsBeforeDeadline && engine_->next_deadline() <= at; ++i) {
    datapath_.all->release();
    const std::span<const wire::RxPacket> packets = datapath_.all->receive();
    if (packets.empty()) break;
    received += packets.size();
    arrivals.add(engine_->on_packets(packets, at));
  }
  return received;
}

// Shared memory with some processes has ended. Their last packets were read in earlier turns.
void Lane::revert_paths_to_mtu(Instant at) {
  const os::NoCancel no_cancel;
  datapath_.local->take_gone();
  log_notice();
  engine_->revert_paths_to_mtu(
      [&](wire::PathId path) { return datapath_.local->packet_bytes(path) != 0; }, at);
}

void Lane::log_notice() {
  if (datapath_.local == nullptr) return;
  if (const auto notice = datapath_.local->take_notice()) {
    log(LogLevel::Info, "%s: %s", device_.name.c_str(), notice->c_str());
  }
}

// The background thread tries again soon, since no descriptor may announce what is left to do.
void Lane::on_exhaustion() {
  engine_->state().counters.add(core::CounterId::out_of_memory);
  if (!exhaustion_.pending && thread_.is_asleep()) thread_.wake();
  exhaustion_.pending = true;
  if (std::exchange(exhaustion_.logged, true)) return;
  log(LogLevel::Error,
      "%s: memory is exhausted: packets and messages are dropped until memory is available",
      device_.name.c_str());
}

void Lane::transmit(Instant at) {
  policy_.transmitted();
  bool more = true;
  const bool had_memory = try_allocating([&] {
    for (int i = 0; more && i < kRoundsPerCall; ++i) {
      more = engine_->poll_transmit(datapath_.all->sink(), at);
      datapath_.all->flush();
    }
  });
  if (!had_memory) on_exhaustion();
  if (more) thread_.wake();
}

void Lane::acknowledge_received() {
  for (int i = 0; i < kRoundsPerCall && make_progress(); ++i) {
  }
  transmit(clock_.now());
}

void Lane::forward_remaining_packets() {
  constexpr int kTurns = 32;  // each reads more than the one before
  for (int i = 0; i < kTurns; ++i) {
    // While armed, shared memory lets turns read the sockets only now and then.
    if (datapath_.local != nullptr) datapath_.local->disarm();
    turn(Defer::Nothing);
  }
}

// Either the lookups that follow a pause find what another lane has changed, or that lane sees that
// the pause is over: on both sides, a fence is between the store and the load.
void Lane::await_lookups(bool within_turn) {
  if (!within_turn) {
    lock_.lock();
    return lock_.unlock();
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);  // see resume_lookups()
  for (SpinWait wait; !lock_.try_lock(); wait.pause()) {
    if (lookups_paused_.load(std::memory_order_acquire)) return;
  }
  lock_.unlock();
}

void Lane::unlock_and_wake() {
  const bool wake = next_deadline() < thread_.sleeps_until();
  if (wake) thread_.expect_wake();
  lock_.unlock();
  if (wake) thread_.wake();
}

// ---------------------------------------------------------------------------- progress owner

void Lane::give_progress_to_thread() {
  if (policy_.thread_owns_progress()) return;
  const os::NoCancel no_cancel;
  policy_.give_progress_to_thread();
  thread_.wait_for_packets(true);
  if (datapath_.local != nullptr && !datapath_.local->arm()) thread_.wake();
}

void Lane::give_progress_to_poller() {
  const os::NoCancel no_cancel;
  policy_.give_progress_to_poller();
  thread_.wait_for_packets(false);
  if (datapath_.local != nullptr) datapath_.local->disarm();
  thread_.follow_caller();
  // The thread sleeps until a packet is received. It must wake up to check the poller.
  if (thread_.is_asleep() &&
      thread_.sleeps_until() > runtime::now() + ProgressPolicy::kPollCheckInterval) {
    thread_.expect_wake();
    thread_.wake();
  }
}

// ------------------------------------------------------------------- calls of the application

void Lane::after_post(core::QueuePair& qp) {
  // Without polls the next turn may be far away.
  if (!policy_.thread_owns_progress() && !engine_->peer_idle(qp)) return;
  const uint64_t before = count(core::CounterId::one_sided_writes);
  // The peer may respond before this call returns, so this process must be visibly awake.
  const bool announced = policy_.begin_post();
  if (announced) datapath_.local->disarm();
  transmit_posted();
  const bool one_sided = count(core::CounterId::one_sided_writes) != before;
  bool wake = false;
  if (policy_.end_post(one_sided, announced)) [[unlikely]]
    wake = poll_for_response();
  if (announced && policy_.thread_owns_progress()) wake |= !datapath_.local->arm();
  if (wake) thread_.wake();
}

// Nothing waits for the clock: a single message leaves before it is read.
void Lane::transmit_posted() {
  core::QueuePair* sent = nullptr;
  const bool had_memory = try_allocating([&] {
    sent = engine_->try_fast_send(datapath_.all->sink(), turned_at_);
    if (sent == nullptr) return;
    policy_.transmitted();
    datapath_.all->flush();
  });
  const Instant at = clock_.now();
  const bool has_timers =
      sent == nullptr || try_allocating([&] { engine_->finish_fast_send(*sent, at); });
  if (!had_memory || !has_timers) [[unlikely]]
    on_exhaustion();
  if (sent == nullptr || engine_->anything_to_send()) transmit(at);
}

// True: wake the background thread.
bool Lane::poll_for_response() {
  const uint64_t before = count(core::CounterId::packets_received);
  const Instant until = clock_.now() + ProgressPolicy::kResponseWait;
  bool wake = false;
  bool received = false;
  do {
    wake |= poll_once();
    received = count(core::CounterId::packets_received) != before;
  } while (!received && turned_at_ < until);
  policy_.end_response_wait(received);
  // The application may now spin on memory instead of polling.
  if (!received) give_progress_to_thread();
  return wake;
}

void Lane::turn_for_poller() {
  if (is_abandoned()) return;
  if (!lock_.try_lock()) return;
  const Instant before = turned_at_;
  const bool wake = poll_once();
  const Instant at = turned_at_;
  if (at - before > kSteadyPolling) [[unlikely]]
    fruitless_since_ = at;  // the program does not just wait
  const bool yields = at - fruitless_since_ > kFruitlessPolling;
  if (yields) [[unlikely]]
    fruitless_since_ = at;
  unlock();
  if (wake) thread_.wake();
  if (yields) [[unlikely]]
    yield_processor(at);
}

// True: wake the background thread.
bool Lane::poll_once() {
  if (policy_.begin_poll()) give_progress_to_poller();
  const Outcome outcome = turn(policy_.deferral_for_poll());
  if (outcome.received) fruitless_since_ = turned_at_;
  const bool wake = policy_.end_poll(turned_at_, outcome.unfinished, thread_.sleeps_until());
  if (wake) thread_.expect_wake();
  return wake;
}

void Lane::arm(core::CompletionQueue& cq, core::Armed level) {
  {
    const core::CompletionQueue::Producing producing(cq);
    const auto unpolled = cq.arm(level);
    const bool noted =
        unpolled == LateEvents::Unpolled::None || late_events_.note(&cq, unpolled, clock_.now());
    if (!noted && cq.take_late_event()) engine_->state().notify(&cq);
  }
  expect_sleep();
}

void Lane::expect_sleep() {
  give_progress_to_thread();
  if (policy_.has_delayed_ack()) transmit(clock_.now());  // no reply follows soon
}

void Lane::poller_sleeps() {
  if (policy_.thread_owns_progress() || is_abandoned()) return;
  const std::lock_guard lock(lock_);
  give_progress_to_thread();
}

}  // namespace verbena::runtime

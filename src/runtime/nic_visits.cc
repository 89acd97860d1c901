// Before a call returns that takes memory or a queue pair away from peers: nothing that they do in
// our memory by themselves is still under way there (docs/design/one-sided-access.md).
#include <sched.h>
#include <time.h>

#include "runtime/log.h"
#include "runtime/nic.h"

namespace verbena::runtime {
namespace {

constexpr Duration kLogAfter = milliseconds(1000);
// For a peer of which nothing can be learned, or that gets no processor.
constexpr Duration kLongestWait = milliseconds(5000);
constexpr Duration kLongNapsAfter = milliseconds(10);
constexpr uint32_t kYields = 8;

// A copy takes microseconds.
void pause_before_look(uint32_t look, Duration waited) {
  if (look < kYields) {
    sched_yield();
    return;
  }
  const timespec nap{0, waited < kLongNapsAfter ? 50'000 : 5'000'000};
  nanosleep(&nap, nullptr);
}

}  // namespace

void Nic::revoke_visits(PostingGuard& guard, Visits& visits) {
  (void)guard;
  if (dead() || local_ == nullptr) return;
  datapath::ShmDatapath& memory = local_->shared_memory();
  const datapath::MemoryRange hidden = memory.exposure().take_hidden_memory();
  if (!hidden.empty()) memory.revoke_visits(hidden, visits);
}

// Under the lock. Only the peer of a queue pair reaches anything through it.
void Nic::revoke_visits_through(wire::Qpn qpn, wire::Qpn peer, Visits& visits) {
  if (dead() || local_ == nullptr) return;
  datapath::ShmDatapath& memory = local_->shared_memory();
  if (memory.exposure().take_hidden(qpn)) memory.revoke_visits_of(peer.slot(), visits);
}

void Nic::await_end_of(Visits& visits) {
  if (visits.empty()) return;
  const os::NoCancel no_cancel;
  const Instant since = runtime::now();
  bool told = false;
  for (uint32_t look = 0;; ++look) {
    forget_over(visits, look >= kYields);
    if (visits.empty()) return;
    const Duration waited = runtime::now() - since;
    if (waited > kLongestWait) break;
    if (waited > kLogAfter && !std::exchange(told, true)) {
      log(LogLevel::Warning,
          "%s: process %d is still copying into or out of this process's memory; the call waits "
          "for it before the memory is released",
          device_.name.c_str(), visits.front().thread.process());
    }
    pause_before_look(look, waited);
  }
  Guard guard(*this);
  for (const auto& visit : visits) {
    log(LogLevel::Warning,
        "%s: process %d did not end its copy into or out of this process's memory: the shared "
        "memory with it is given up, and packets to it go over UDP",
        device_.name.c_str(), visit.thread.process());
    if (!dead() && local_ != nullptr) local_->shared_memory().cut(visit);
  }
}

void Nic::forget_over(Visits& visits, bool observe_threads) {
  visits.remove_if([&](datapath::RevokedVisit& visit) {
    const bool may_copy = !observe_threads || visit.thread.may_be_copying();
    Guard guard(*this);
    if (dead() || local_ == nullptr) return true;
    if (!may_copy) local_->shared_memory().settle(visit);
    return local_->shared_memory().is_over(visit);
  });
}

}  // namespace verbena::runtime

// Direct copies of peers in this process's memory. A call that deregisters memory or ends a queue
// pair returns only after the copies that it affects have ended (docs/design/one-sided-access.md).
#include <sched.h>
#include <time.h>

#include "runtime/log.h"
#include "runtime/nic.h"

namespace verbena::runtime {
namespace {

constexpr Duration kLogAfter = milliseconds(1000);
// For a peer that cannot be observed, or that gets no CPU time.
constexpr Duration kLongestWait = milliseconds(5000);
constexpr Duration kLongPausesAfter = milliseconds(10);
constexpr uint32_t kYields = 8;

// A copy takes microseconds, so the first checks follow without a pause.
void pause_before_check(uint32_t check, Duration waited) {
  if (check < kYields) {
    sched_yield();
    return;
  }
  const timespec pause{0, waited < kLongPausesAfter ? 50'000 : 5'000'000};
  nanosleep(&pause, nullptr);
}

}  // namespace

datapath::PeerAccess* Nic::peer_access() {
  datapath::SelectingDatapath* const local = lane_.datapath().local;
  return local != nullptr ? local->peer_access() : nullptr;
}

void Nic::revoke_copies(PostingGuard& guard, Copies& copies) {
  (void)guard;
  datapath::PeerAccess* const memory = peer_access();
  if (memory == nullptr) return;
  const datapath::MemoryRange withdrawn = memory->take_withdrawn_memory();
  if (!withdrawn.empty()) memory->revoke_copies(withdrawn, copies);
}

// Under the lock. Only the peer of a queue pair can access memory through it.
void Nic::revoke_copies_through(wire::Qpn qpn, wire::Qpn peer, Copies& copies) {
  datapath::PeerAccess* const memory = peer_access();
  if (memory == nullptr) return;
  if (memory->take_withdrawn(qpn)) memory->revoke_copies_of(peer.slot(), copies);
}

void Nic::await_end_of(Copies& copies) {
  if (copies.empty()) return;
  const os::NoCancel no_cancel;
  const Instant since = runtime::now();
  bool logged = false;
  for (uint32_t check = 0;; ++check) {
    remove_ended_copies(copies, check >= kYields);
    if (copies.empty()) return;
    const Duration waited = runtime::now() - since;
    if (waited > kLongestWait) break;
    if (waited > kLogAfter && !std::exchange(logged, true)) {
      log(LogLevel::Warning,
          "%s: process %d is still copying into or out of this process's memory; the call waits "
          "for it before the memory is released",
          device_.name.c_str(), copies.front().thread.process());
    }
    pause_before_check(check, waited);
  }
  Guard guard(*this);
  for (const auto& copy : copies) {
    log(LogLevel::Warning,
        "%s: process %d did not end its copy into or out of this process's memory: the shared "
        "memory with it is closed, and packets to it go over UDP",
        device_.name.c_str(), copy.thread.process());
    if (datapath::PeerAccess* const memory = peer_access()) memory->end_link_of(copy);
  }
}

void Nic::remove_ended_copies(Copies& copies, bool observe_threads) {
  copies.remove_if([&](datapath::RevokedCopy& copy) {
    const bool may_copy = !observe_threads || copy.thread.may_be_copying();
    Guard guard(*this);
    datapath::PeerAccess* const memory = peer_access();
    if (memory == nullptr) return true;
    if (!may_copy) memory->note_ended(copy);
    return memory->is_over(copy);
  });
}

}  // namespace verbena::runtime

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

// The registry waits for the lookups of this process. Then only peers can still be copying.
Result<size_t> Nic::remove_region(uint32_t key) {
  const auto before = memory_.region_of(key);
  const Status removed = memory_.remove_region(key);
  if (!removed.ok()) return removed.error();
  return before ? revoke_copies(*before) : 0;
}

Status Nic::change_region(uint32_t key, const core::RegionInfo& region) {
  const auto before = memory_.region_of(key);
  Status changed = memory_.change_region(key, region);
  if (changed.ok() && before) revoke_copies(*before);
  return changed;
}

size_t Nic::revoke_copies(const core::RegionInfo& withdrawn) {
  if ((withdrawn.access & (core::kRemoteWrite | core::kRemoteRead)) == 0) return 0;
  size_t revoked = 0;
  const auto begin = reinterpret_cast<uintptr_t>(withdrawn.base);
  lanes_.each([&](Lane& lane) {
    Copies copies;
    {
      const Guard guard(lane);
      datapath::PeerAccess* const access = lane.datapath().peer_access();
      if (access == nullptr) return;
      access->revoke_copies({begin, begin + withdrawn.length}, copies);
    }
    revoked += copies.size();
    await_end_of(lane, copies);
  });
  return revoked;
}

// A change in the registry is visible to each lookup that begins after its lane's lock was taken.
void Nic::await_lookups(const core::MemoryView* caller) {
  Lane* own = nullptr;
  lanes_.each([&](Lane& lane) {
    if (lane.has_engine() && &lane.engine().state().memory == caller) own = &lane;
  });
  if (own != nullptr) own->pause_lookups();
  lanes_.each([&](Lane& lane) {
    if (&lane != own) lane.await_lookups(own != nullptr);
  });
  if (own != nullptr) own->resume_lookups();
}

void Nic::await_end_of(Lane& lane, Copies& copies) {
  if (copies.empty()) return;
  const os::NoCancel no_cancel;
  const Instant since = runtime::now();
  bool logged = false;
  for (uint32_t check = 0;; ++check) {
    remove_ended_copies(lane, copies, check >= kYields);
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
  Guard guard(lane);
  for (const auto& copy : copies) {
    log(LogLevel::Warning,
        "%s: process %d did not end its copy into or out of this process's memory: the shared "
        "memory with it is closed, and packets to it go over UDP",
        device_.name.c_str(), copy.thread.process());
    datapath::PeerAccess* const access = lane.datapath().peer_access();
    if (access != nullptr) access->end_link_of(copy);
  }
}

void Nic::remove_ended_copies(Lane& lane, Copies& copies, bool observe_threads) {
  copies.remove_if([&](datapath::RevokedCopy& copy) {
    const bool may_copy = !observe_threads || copy.thread.may_be_copying();
    Guard guard(lane);
    datapath::PeerAccess* const access = lane.datapath().peer_access();
    if (access == nullptr) return true;
    if (!may_copy) access->note_ended(copy);
    return access->is_over(copy);
  });
}

}  // namespace verbena::runtime

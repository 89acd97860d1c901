// Process-wide state: the open Nics and their fork handlers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "base/time.h"

namespace verbena::runtime {

class Nic;

// Every open Nic, by interface; Nic::open() uses it so that contexts of one device share one.
std::shared_ptr<Nic> find_nic(uint32_t interface_index);
void register_nic(uint32_t interface_index, const std::shared_ptr<Nic>& nic);
void unregister_nic(const Nic* nic);

// Serialises opening and closing of devices. Taken before the locks of LaneSet and of lanes.
void lock_process();
void unlock_process();

// Bounded waits, for callers that must not deadlock: exit() may be called by a thread that holds
// the lock. At least one attempt is made.
bool succeed_until(Instant until, const std::function<bool()>& attempt);
template <typename Mutex>
bool lock_until(Mutex& mutex, Instant until) {
  return succeed_until(until, [&] { return mutex.try_lock(); });
}

// 64 random bits from the kernel.
uint64_t random_secret();

}  // namespace verbena::runtime

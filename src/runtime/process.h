// What a process has once: its slot among the Verbena processes of the host, the Nics it has open,
// and what must happen to them when it forks.
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

// Serialises opening and closing of devices. Taken before any Nic's lock.
void lock_process();
void unlock_process();

// For those who cannot wait for ever: exit() may be called by a thread that holds it.
bool succeed_within(Duration patience, const std::function<bool()>& attempt);
template <typename Mutex>
bool lock_within(Mutex& mutex, Duration patience) {
  return succeed_within(patience, [&] { return mutex.try_lock(); });
}

// 64 bits nobody can guess.
uint64_t random_secret();

}  // namespace verbena::runtime

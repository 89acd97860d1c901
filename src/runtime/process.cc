// Process-wide state, made on first use and never destroyed: a background thread may outlive
// main().
#include "runtime/process.h"

#include <pthread.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <vector>

#include "os/unique_fd.h"
#include "runtime/log.h"
#include "runtime/nic.h"

namespace verbena::runtime {
namespace {

struct OpenNic {
  uint32_t interface_index;
  Nic* nic;
  std::weak_ptr<Nic> handle;
};

struct Process {
  std::mutex mutex;  // guards opening and closing; held across a fork
  // In the child of a fork the parent's Nics stay here, abandoned. Calls without traffic work on
  // them, so their locks must be held across the child's own forks.
  std::vector<OpenNic> nics;
};

void install_fork_handlers();

std::atomic<Process*> made{nullptr};

Process& process() {
  static Process* const instance = [] {
    auto* p = new Process;
    install_fork_handlers();
    made = p;
    return p;
  }();
  return *instance;
}

// A program may exit without destroying its queue pairs: sends the delayed ACKs of its peers.
[[gnu::destructor]] void transmit_before_exit() {
  constexpr Duration kTimeout = milliseconds(100);  // of all locks and lanes together
  Process* const p = made;
  if (p == nullptr) return;
  const Instant until = now() + kTimeout;
  if (!lock_until(p->mutex, until)) return;
  for (const OpenNic& open : p->nics) open.nic->transmit_at_exit(until);
  p->mutex.unlock();
}

void before_fork() {
  process().mutex.lock();
  for (const OpenNic& open : process().nics) open.nic->lock_for_fork();
}

void after_fork_in_parent() {
  for (const OpenNic& open : process().nics) open.nic->unlock_after_fork();
  process().mutex.unlock();
}

// Async-signal-safe: another thread of the parent may have held any lock that before_fork() did not
// take, the allocator's among them. So it destroys nothing; objects of the parent stay until an
// ordinary call of the child destroys them.
void after_fork_in_child() {
  os::UniqueFd::close_all_in_child();
  for (const OpenNic& open : process().nics) {
    open.nic->unlock_after_fork();  // this is the only thread
    if (!open.nic->is_abandoned()) open.nic->abandon_in_child();
  }
  process().mutex.unlock();
}

void install_fork_handlers() {
  pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

}  // namespace

void lock_process() { process().mutex.lock(); }
void unlock_process() { process().mutex.unlock(); }

std::shared_ptr<Nic> find_nic(uint32_t interface_index) {
  for (const OpenNic& open : process().nics) {
    if (open.interface_index != interface_index) continue;
    // No temporary reference: if it were the last one, the deleter would take the lock that this
    // thread holds.
    if (open.nic->removed() || open.nic->is_abandoned()) continue;
    if (auto nic = open.handle.lock()) return nic;  // otherwise its last user is closing it
  }
  return nullptr;
}

void register_nic(uint32_t interface_index, const std::shared_ptr<Nic>& nic) {
  process().nics.push_back({interface_index, nic.get(), nic});
}

void unregister_nic(const Nic* nic) {
  std::erase_if(process().nics, [&](const OpenNic& open) { return open.nic == nic; });
}

bool succeed_until(Instant until, const std::function<bool()>& attempt) {
  while (!attempt()) {
    if (now() >= until) return false;
    const timespec pause{0, 50'000};
    nanosleep(&pause, nullptr);
  }
  return true;
}

uint64_t random_secret() {
  uint64_t secret = 0;
  if (getrandom(&secret, sizeof secret, 0) != sizeof secret) {
    log(LogLevel::Error, "getrandom failed; memory keys would be predictable");
    std::abort();
  }
  return secret;
}

}  // namespace verbena::runtime

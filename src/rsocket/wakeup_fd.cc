// WakeupFd and Waiters: see wakeup_fd.h.
#include "rsocket/wakeup_fd.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

#include "rsocket/per_thread.h"

namespace verbena::rsocket {

namespace {
std::atomic<uint32_t> generation{0};
thread_local const WakeupFd* own_wakeup = nullptr;
}  // namespace

uint32_t process_generation() { return generation.load(std::memory_order_relaxed); }
void on_fork_in_child() { generation.fetch_add(1, std::memory_order_relaxed); }

Result<WakeupFd*> WakeupFd::of_this_thread() {
  WakeupFd& wakeup = PerThread<WakeupFd>::get();
  if (wakeup.fd_ < 0 || wakeup.process_ != process_generation()) {
    if (const Status opened = wakeup.open(); !opened.ok()) return opened.error();
  }
  own_wakeup = &wakeup;
  return &wakeup;
}

Status WakeupFd::open() {
  if (fd_ >= 0) ::close(fd_);  // inherited from the parent process
  fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd_ < 0) return Error{errno};
  process_ = process_generation();
  signalled_ = false;
  return {};
}

WakeupFd::~WakeupFd() {
  own_wakeup = nullptr;
  if (fd_ >= 0) ::close(fd_);
}

void WakeupFd::signal() {
  if (signalled_.exchange(true)) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(fd_, &one, sizeof one);
}

void WakeupFd::clear() {
  // The order matters. A signal between the two statements is lost, but its change happened before
  // the owner's next check. In the opposite order signalled_ could stay set while the descriptor is
  // not readable.
  uint64_t count;
  [[maybe_unused]] const ssize_t got = ::read(fd_, &count, sizeof count);
  signalled_.store(false);
}

void Waiters::add(Node* node) {
  node->is_added = true;
  node->previous = nullptr;
  node->next = first_;
  if (first_) first_->previous = node;
  first_ = node;
}

void Waiters::remove(Node* node) {
  node->is_added = false;
  (node->previous ? node->previous->next : first_) = node->next;
  if (node->next) node->next->previous = node->previous;
}

void Waiters::signal_others() const {
  for (const Node* node = first_; node; node = node->next) {
    if (node->wakeup != own_wakeup) node->wakeup->signal();
  }
}

}  // namespace verbena::rsocket

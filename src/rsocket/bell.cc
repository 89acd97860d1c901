// Bell and Waiters: see bell.h.
#include "rsocket/bell.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

#include "rsocket/per_thread.h"

namespace verbena::rsocket {

namespace {
std::atomic<uint32_t> generation{0};
thread_local const Bell* own_bell = nullptr;
}  // namespace

uint32_t process_generation() { return generation.load(std::memory_order_relaxed); }
void on_fork_in_child() { generation.fetch_add(1, std::memory_order_relaxed); }

Result<Bell*> Bell::of_this_thread() {
  Bell& bell = PerThread<Bell>::get();
  if (bell.fd_ < 0 || bell.process_ != process_generation()) {
    if (const Status opened = bell.open(); !opened.ok()) return opened.error();
  }
  own_bell = &bell;
  return &bell;
}

Status Bell::open() {
  if (fd_ >= 0) ::close(fd_);  // the parent's, of which this is a copy
  fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd_ < 0) return Error{errno};
  process_ = process_generation();
  rung_ = false;
  return {};
}

Bell::~Bell() {
  own_bell = nullptr;
  if (fd_ >= 0) ::close(fd_);
}

void Bell::ring() {
  if (rung_.exchange(true)) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(fd_, &one, sizeof one);
}

void Bell::silence() {
  // In this order: who rings between the two is not heard, but has already changed what the owner
  // is about to look at. The other way round the bell would stay rung without being readable.
  uint64_t count;
  [[maybe_unused]] const ssize_t got = ::read(fd_, &count, sizeof count);
  rung_.store(false);
}

void Waiters::add(Node* node) {
  node->hangs = true;
  node->previous = nullptr;
  node->next = first_;
  if (first_) first_->previous = node;
  first_ = node;
}

void Waiters::remove(Node* node) {
  node->hangs = false;
  (node->previous ? node->previous->next : first_) = node->next;
  if (node->next) node->next->previous = node->previous;
}

void Waiters::ring_others() const {
  for (const Node* node = first_; node; node = node->next) {
    if (node->bell != own_bell) node->bell->ring();
  }
}

}  // namespace verbena::rsocket

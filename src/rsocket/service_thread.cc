// ServiceThread: see service_thread.h.
#include "rsocket/service_thread.h"

#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "rsocket/clock.h"
#include "rsocket/sleep.h"
#include "rsocket/socket_table.h"

namespace verbena::rsocket {

namespace {

constexpr uint64_t kWakeUp = ~uint64_t{0};

std::atomic<ServiceThread*> current{nullptr};

uint64_t key_of(int descriptor, int number) {
  return uint64_t{static_cast<uint32_t>(number)} << 32 | static_cast<uint32_t>(descriptor);
}

void write_event(int fd) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(fd, &one, sizeof one);
}

int timeout_ms(Instant deadline) {
  if (deadline == kNever) return -1;
  const int64_t ms = (deadline.ns - now().ns + 999'999) / 1'000'000;
  return static_cast<int>(std::clamp<int64_t>(ms, 0, 3'600'000));
}

// When the process ends or the library is unloaded, the thread must end before the library's code
// is removed. The library also sends the last messages, because no kernel does it.
constexpr Duration kExitTimeout = seconds(2);

struct EndWithLibrary {
  ~EndWithLibrary() {
    const Call call;
    ServiceThread::stop();
    SocketTable::instance().close_all(kExitTimeout);
  }
};
EndWithLibrary end_with_library;

}  // namespace

ServiceThread& ServiceThread::instance() {
  ServiceThread* service_thread = current.load(std::memory_order_acquire);
  if (service_thread) return *service_thread;
  auto* fresh = new ServiceThread;
  if (current.compare_exchange_strong(service_thread, fresh)) return *fresh;
  delete fresh;
  return *service_thread;
}

Status ServiceThread::start() {
  if (running_) return {};
  if (stopping_) return Error{EIO};
  if (epoll_ < 0) epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
  if (wake_ < 0) wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (epoll_ < 0 || wake_ < 0) return Error{errno};
  epoll_event event{.events = EPOLLIN, .data = {.u64 = kWakeUp}};
  if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, wake_, &event) != 0 && errno != EEXIST) {
    return Error{errno};
  }
  // Signals are delivered to the application's threads only.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error = pthread_create(
      &thread_, nullptr,
      [](void* self) -> void* {
        static_cast<ServiceThread*>(self)->run();
        return nullptr;
      },
      this);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error) return Error{error};
  pthread_setname_np(thread_, "rsocket");
  running_ = true;
  return {};
}

Status ServiceThread::watch(int descriptor, int number) {
  const std::lock_guard guard(lock_);
  if (const Status started = start(); !started.ok()) return started;
  epoll_event event{.events = EPOLLIN, .data = {.u64 = key_of(descriptor, number)}};
  if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &event) != 0) return Error{errno};
  return {};
}

void ServiceThread::unwatch(int descriptor, int number) {
  const std::lock_guard guard(lock_);
  // close() alone does not remove it if a child of a fork still has a copy of the descriptor.
  ::epoll_ctl(epoll_, EPOLL_CTL_DEL, descriptor, nullptr);
  set_due(number, kNever);
}

void ServiceThread::wake_at(Instant time, int number) {
  const std::lock_guard guard(lock_);
  const Instant before = next_tick();
  set_due(number, time);
  if (next_tick() >= before || !running_) return;
  if (!pthread_equal(pthread_self(), thread_)) write_event(wake_);
}

// The next two functions require the lock.
Instant ServiceThread::next_tick() { return due_.empty() ? kNever : due_.begin()->first; }

void ServiceThread::set_due(int number, Instant time) {
  if (const auto it = due_of_.find(number); it != due_of_.end()) {
    due_.erase({it->second, number});
    due_of_.erase(it);
  }
  if (time == kNever) return;
  due_.emplace(time, number);
  due_of_.emplace(number, time);
}

void ServiceThread::run() {
  const Call call;
  std::array<epoll_event, 64> events;
  for (;;) {
    Instant next;
    {
      const std::lock_guard guard(lock_);
      if (stopping_) return;
      next = next_tick();
    }
    const int count = ::epoll_wait(epoll_, events.data(), events.size(), timeout_ms(next));
    for (int i = 0; i < count; ++i) {
      const uint64_t key = events[static_cast<size_t>(i)].data.u64;
      if (key == kWakeUp) {
        uint64_t count;
        [[maybe_unused]] const ssize_t got = ::read(wake_, &count, sizeof count);
      } else if (auto socket = SocketTable::instance().find(static_cast<int>(key >> 32))) {
        socket->on_ready(static_cast<int>(key & 0xffffffff));
      }
    }
    if (const Instant time = now(); time >= next) tick(time);
  }
}

void ServiceThread::tick(Instant time) {
  std::unique_lock lock(lock_);
  while (next_tick() <= time) {
    const int number = due_.begin()->second;
    set_due(number, kNever);
    lock.unlock();
    if (auto socket = SocketTable::instance().find(number)) socket->on_tick(time);
    lock.lock();
  }
}

void ServiceThread::stop() {
  ServiceThread* service_thread = current.load();
  if (!service_thread) return;
  {
    const std::lock_guard guard(service_thread->lock_);
    service_thread->stopping_ = true;
    if (!service_thread->running_) return;
    write_event(service_thread->wake_);
  }
  if (!pthread_equal(pthread_self(), service_thread->thread_))
    pthread_join(service_thread->thread_, nullptr);
}

void ServiceThread::abandon_in_child() {
  ServiceThread* service_thread = current.exchange(nullptr);
  if (!service_thread) return;
  if (service_thread->epoll_ >= 0) ::close(service_thread->epoll_);
  if (service_thread->wake_ >= 0) ::close(service_thread->wake_);
}

}  // namespace verbena::rsocket

// Starting, sleeping and waking.
#include "runtime/background_thread.h"

#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "os/no_cancel.h"
#include "runtime/start_thread.h"

namespace verbena::runtime {
namespace {

// A thread with short time slices runs soon after it wakes, even if another thread spins on its
// CPU. Its total CPU time does not grow. Kernels before 6.12 ignore the request.
void request_short_slices() {
  struct {  // struct sched_attr, which the C library does not declare
    uint32_t size;
    uint32_t policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns;
    uint64_t deadline_ns;
    uint64_t period_ns;
  } attr{};
  if (syscall(SYS_sched_getattr, 0, &attr, sizeof attr, 0) != 0) return;
  if (attr.policy != SCHED_OTHER) return;  // the user chose another policy for the whole process
  attr.size = sizeof attr;
  attr.runtime_ns = 100'000;
  syscall(SYS_sched_setattr, 0, &attr, 0);
}

}  // namespace

Status BackgroundThread::start(int datapath_fd, Body& body) {
  wake_ = os::UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  progress_ = os::UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  if (!wake_.valid() || !progress_.valid()) return Error{errno, "too many open files"};
  epoll_event event{EPOLLIN, {}};
  if (epoll_ctl(progress_.get(), EPOLL_CTL_ADD, datapath_fd, &event) != 0) {
    return Error{errno, "cannot wait for the datapath's descriptor"};
  }
  datapath_fd_ = datapath_fd;
  body_ = &body;
  const int error = start_thread(thread_, &BackgroundThread::thread_main, this);
  if (error != 0) return Error{error, "cannot start the background thread"};
  running_ = true;
  return {};
}

void BackgroundThread::stop() {
  if (!running_) return;
  stopping_.store(true, std::memory_order_relaxed);
  wake();
  pthread_join(thread_, nullptr);
  running_ = false;
}

void* BackgroundThread::thread_main(void* self) {
  prctl(PR_SET_NAME, "verbena");
  prctl(PR_SET_TIMERSLACK, 1000);  // nanoseconds: RNR delays start at 10 us
  request_short_slices();
  static_cast<BackgroundThread*>(self)->body_->run_background();
  return nullptr;
}

void BackgroundThread::wake() {
  const os::NoCancel no_cancel;
  eventfd_write(wake_.get(), 1);
}

void BackgroundThread::wait_for_packets(bool on) {
  const os::NoCancel no_cancel;
  epoll_event event{on ? uint32_t{EPOLLIN} : 0u, {}};
  epoll_ctl(progress_.get(), EPOLL_CTL_MOD, datapath_fd_, &event);
}

bool BackgroundThread::sleep_once(Duration length, const ExtraFds& extra, Wakeup& wakeup) {
  pollfd fds[2 + kExtraFds] = {{progress_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
  for (size_t i = 0; i < kExtraFds; ++i) fds[2 + i] = {extra[i], POLLIN, 0};
  timespec limit{};
  if (length != kForever) {
    const int64_t ns = std::max<int64_t>(length.ns, 0);
    limit = {ns / 1'000'000'000, ns % 1'000'000'000};
  }
  if (ppoll(fds, std::size(fds), length != kForever ? &limit : nullptr, nullptr) == 0) return false;
  wakeup.packets = fds[0].revents != 0;
  if (fds[1].revents != 0) {
    eventfd_t value;
    eventfd_read(wake_.get(), &value);
  }
  for (size_t i = 0; i < kExtraFds; ++i) wakeup.extra[i] = fds[2 + i].revents != 0;
  return true;
}

}  // namespace verbena::runtime

// The thread of another process that was at work in our memory when its copy was revoked: whether
// the kernel may still be copying for it, as far as /proc tells.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>

namespace verbena::datapath {

class InitiatorThread {
 public:
  // `process` 0: it cannot be observed, because it lives in another PID namespace.
  InitiatorThread() = default;
  InitiatorThread(pid_t process, pid_t thread) : process_(process), thread_(thread) {}

  pid_t process() const { return process_; }
  // False: after the revocation there was a moment at which the thread was not inside
  // process_vm_writev or process_vm_readv. It is stopped, frozen, gone, in another system call, or
  // has computed for longer than any copy takes. True: it may be, or it cannot be observed.
  bool may_be_copying();

 private:
  std::optional<uint64_t> cpu_time_ns() const;

  pid_t process_ = 0;
  pid_t thread_ = 0;
  std::optional<uint64_t> first_cpu_time_ns_;
};

}  // namespace verbena::datapath

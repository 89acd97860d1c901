// InitiatorThread: the thread of a revoked direct copy. It reports from /proc whether the kernel
// may still be executing the copy.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>

namespace verbena::datapath {

class InitiatorThread {
 public:
  // `process` 0: the process is in another PID namespace and cannot be observed.
  InitiatorThread() = default;
  InitiatorThread(pid_t process, pid_t thread) : process_(process), thread_(thread) {}

  pid_t process() const { return process_; }
  // False: after the revocation there was a moment at which the thread was not inside
  // process_vm_writev or process_vm_readv. It is stopped, frozen, ended, in another system call, or
  // has run for longer than any copy takes. True: it may be inside, or cannot be observed.
  bool may_be_copying();

 private:
  std::optional<uint64_t> cpu_time_ns() const;

  pid_t process_ = 0;
  pid_t thread_ = 0;
  std::optional<uint64_t> first_cpu_time_ns_;
};

}  // namespace verbena::datapath

// A direct copy: the initiator copies into or out of the target's memory by process_vm_writev or
// process_vm_readv. The target can revoke a copy: the remote iovec of the system call is in memory
// that both processes share, and the kernel reads it inside the call. If the target has made an
// address invalid before that, the call fails with EFAULT. Only a copy that the kernel executes at
// that moment must be waited for. docs/design/one-sided-access.md explains the memory ordering.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace verbena::datapath {

// A range in the target's address space.
struct MemoryRange {
  uint64_t begin = 0;
  uint64_t end = 0;

  bool empty() const { return begin == end; }
  bool overlaps(const MemoryRange& other) const { return begin < other.end && other.begin < end; }
};
inline constexpr MemoryRange kAllMemory{0, UINT64_MAX};

// In the link's segment. Written by the initiator, except for revocations. Initially zero.
struct CopyControl {
  // Has the layout of struct iovec.
  struct Part {
    std::atomic<uint64_t> address{0};
    std::atomic<uint64_t> bytes{0};
  };
  std::atomic<uint32_t> number{0};  // odd during a copy; increases
  std::atomic<pid_t> thread{0};     // the initiator's
  std::array<Part, 2> parts;        // the remote iovec; the last word of a message may be separate
};
static_assert(sizeof(CopyControl::Part) == sizeof(iovec) && sizeof(void*) == sizeof(uint64_t));

// The initiator's half. One thread at a time.
class DirectCopy {
 public:
  explicit DirectCopy(CopyControl* control);

  // Call before checking the target's exposure table.
  void begin();
  // Call after checking the table: sets the remote range. With `separate_last_word`, the last word
  // of a message is a part of its own. False: the target has revoked the copy.
  bool aim(uint64_t address, size_t bytes, bool separate_last_word);
  // The remote arguments of the system call.
  const CopyControl::Part* parts() const { return control_->parts.data(); }
  size_t part_count() const { return part_count_; }
  void end();

 private:
  CopyControl* control_;
  pid_t process_;        // the initiator's
  uint32_t number_ = 0;  // private, because the target could change the shared one
  size_t part_count_ = 1;
};

// The target's half. Before revoke(), withdraw the memory or the queue pair, then execute a
// sequentially consistent fence.
class CopyRevoker {
 public:
  explicit CopyRevoker(CopyControl* control) : control_(control) {}

  // Revokes the current copy, unless it is known not to overlap. Returns its number if the kernel
  // may be executing it at this moment, otherwise 0.
  uint32_t revoke(const MemoryRange& withdrawn);
  bool is_over(uint32_t number) const {
    return number == ended_number_ || control_->number.load(std::memory_order_acquire) != number;
  }
  // This copy was revoked and its thread is not in the system call, so it never copies again.
  void note_ended(uint32_t number) { ended_number_ = number; }
  pid_t thread() const { return control_->thread.load(std::memory_order_relaxed); }

 private:
  CopyControl* control_;
  uint32_t ended_number_ = 0;
};

}  // namespace verbena::datapath

// A copy: one process copies into or out of another one's memory by itself, by process_vm_writev
// or process_vm_readv. The owner of the memory can revoke a copy: the remote addresses that the
// kernel is given lie in memory that both processes share, and the kernel reads them inside the
// system call. An address that the owner made invalid before is copied neither to nor from
// (EFAULT). What is left to wait for is a copy that the kernel is doing at this moment. The memory
// ordering is argued in docs/design/one-sided-access.md.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace verbena::datapath {

// In the owner's address space.
struct MemoryRange {
  uint64_t begin = 0;
  uint64_t end = 0;

  bool empty() const { return begin == end; }
  bool overlaps(const MemoryRange& other) const { return begin < other.end && other.begin < end; }
};
inline constexpr MemoryRange kAllMemory{0, UINT64_MAX};

// In the segment of the link, written by the initiator but for revocations. It begins as zeros.
struct CopyControl {
  // A struct iovec, as the kernel reads it.
  struct Part {
    std::atomic<uint64_t> address{0};
    std::atomic<uint64_t> bytes{0};
  };
  std::atomic<uint32_t> number{0};  // odd during a copy, another one each time
  std::atomic<pid_t> thread{0};     // the initiator's
  std::array<Part, 2> parts;        // what it copies, and the last word of a message apart
};
static_assert(sizeof(CopyControl::Part) == sizeof(iovec) && sizeof(void*) == sizeof(uint64_t));

// The initiator's half. One thread at a time.
class DirectCopy {
 public:
  explicit DirectCopy(CopyControl* control);

  // Before the initiator looks whether the owner permits the copy.
  void begin();
  // After it looked: what it is about to copy. The last word of a message is a part of its own,
  // where `last_word_apart`. False: the owner has revoked the copy.
  bool aim(uint64_t address, size_t bytes, bool last_word_apart);
  // The remote arguments of the system call.
  const CopyControl::Part* parts() const { return control_->parts.data(); }
  size_t part_count() const { return part_count_; }
  void end();

 private:
  CopyControl* control_;
  pid_t process_;        // ours
  uint32_t number_ = 0;  // the owner could change the shared one
  size_t part_count_ = 1;
};

// The half of the process that owns the memory. Call revoke() after the memory, or the queue pair,
// was withdrawn, and a sequentially consistent fence after that.
class CopyRevoker {
 public:
  explicit CopyRevoker(CopyControl* control) : control_(control) {}

  // Revokes the copy that is under way, unless it is known to be elsewhere. Returns its number if
  // the kernel may be copying at this moment, otherwise 0.
  uint32_t revoke(const MemoryRange& withdrawn);
  bool is_over(uint32_t number) const {
    return number == settled_ || control_->number.load(std::memory_order_acquire) != number;
  }
  // This copy was revoked and its thread is not in the kernel's copy: it never copies any more.
  void settle(uint32_t number) { settled_ = number; }
  pid_t thread() const { return control_->thread.load(std::memory_order_relaxed); }

 private:
  CopyControl* control_;
  uint32_t settled_ = 0;
};

}  // namespace verbena::datapath

// CompletionCounter: the number of completed work requests of queue pairs, or of their bytes. It
// also counts unsignaled work requests and completions that a full completion queue lost.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "core/types.h"

namespace verbena::core {

struct CompletionCounter {
  // Written by the engine's owner and by the program, read by the program.
  std::atomic<uint64_t> completed{0};
  std::atomic<uint64_t> failed{0};  // work requests, even if `completed` counts bytes
  bool counts_bytes = false;

  void add(WcStatus status, uint32_t bytes) {
    if (status != WcStatus::Success) {
      failed.fetch_add(1, std::memory_order_relaxed);
    } else {
      completed.fetch_add(counts_bytes ? bytes : 1, std::memory_order_release);
    }
  }
};

// The counters of a queue pair, by kind of work request; null: this kind is not counted. Operations
// of other kinds (atomics, local ones) are never counted.
struct OperationCounters {
  enum Kind : uint8_t { kSend, kReceive, kRead, kWrite, kKinds };
  std::array<CompletionCounter*, kKinds> of{};

  void add(Kind kind, WcStatus status, uint32_t bytes) const {
    if (of[kind] != nullptr) of[kind]->add(status, bytes);
  }
  void add_sent(SendOp op, WcStatus status, uint32_t bytes) const {
    switch (op) {
      case SendOp::Send:
      case SendOp::SendImm:
      case SendOp::SendInvalidate:
        return add(kSend, status, bytes);
      case SendOp::Write:
      case SendOp::WriteImm:
        return add(kWrite, status, bytes);
      case SendOp::Read:
        return add(kRead, status, bytes);
      default:
        return;
    }
  }
};

}  // namespace verbena::core

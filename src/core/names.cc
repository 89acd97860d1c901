// Names of counters and operations, for users.
#include "core/counters.h"
#include "core/types.h"

namespace verbena::core {

const char* name_of(CounterId id) {
  static constexpr const char* kNames[] = {
#define X(name, text) #name,
      VERBENA_COUNTERS(X)
#undef X
  };
  return kNames[static_cast<size_t>(id)];
}

const char* meaning_of(CounterId id) {
  static constexpr const char* kMeanings[] = {
#define X(name, text) text,
      VERBENA_COUNTERS(X)
#undef X
  };
  return kMeanings[static_cast<size_t>(id)];
}

const char* name_of(SendOp op) {
  switch (op) {
    case SendOp::Write:
      return "RDMA WRITE";
    case SendOp::WriteImm:
      return "RDMA WRITE with immediate";
    case SendOp::Send:
      return "SEND";
    case SendOp::SendImm:
      return "SEND with immediate";
    case SendOp::Read:
      return "RDMA READ";
    case SendOp::CompareSwap:
      return "compare-and-swap";
    case SendOp::FetchAdd:
      return "fetch-and-add";
    case SendOp::LocalInvalidate:
      return "local invalidate";
    case SendOp::BindWindow:
      return "bind memory window";
    case SendOp::SendInvalidate:
      return "SEND with invalidate";
    case SendOp::Flush:
      return "FLUSH";
    case SendOp::AtomicWrite:
      return "ATOMIC WRITE";
  }
  return "unknown operation";
}

}  // namespace verbena::core

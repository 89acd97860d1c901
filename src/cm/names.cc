// Readable names of counters and events.
#include "cm/counters.h"
#include "cm/events.h"

namespace verbena::cm {

const char* name_of(CounterId id) {
  static constexpr const char* kNames[] = {
#define X(name, text) #name,
      VERBENA_CM_COUNTERS(X)
#undef X
  };
  return kNames[static_cast<size_t>(id)];
}

const char* meaning_of(CounterId id) {
  static constexpr const char* kMeanings[] = {
#define X(name, text) text,
      VERBENA_CM_COUNTERS(X)
#undef X
  };
  return kMeanings[static_cast<size_t>(id)];
}

const char* name_of(EventKind kind) {
  switch (kind) {
    case EventKind::ConnectRequest:
      return "connect request";
    case EventKind::ConnectResponse:
      return "connect response";
    case EventKind::Established:
      return "established";
    case EventKind::Rejected:
      return "rejected";
    case EventKind::Unreachable:
      return "unreachable";
    case EventKind::Disconnected:
      return "disconnected";
    case EventKind::TimewaitExit:
      return "timewait exit";
    case EventKind::SidrRequest:
      return "SIDR request";
    case EventKind::SidrResponse:
      return "SIDR response";
  }
  return "unknown";
}

}  // namespace verbena::cm

// The events that an agent reports to its owner after a turn. A connection reports each event at
// most once, in the order below. Rejected, Unreachable and TimewaitExit are the last event; the ID
// is free afterwards.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "cm/messages.h"
#include "wire/identifiers.h"

namespace verbena::cm {

enum class EventKind : uint8_t {
  ConnectRequest,   // passive: accept() or reject() it
  ConnectResponse,  // active: move the queue pair to RTS, then establish() or reject()
  Established,      // passive: the peer is ready
  Rejected,         // see reason
  Unreachable,      // the peer did not reply in time
  Disconnected,  // by either side; error is ETIMEDOUT or ECONNRESET if there was no DREQ and DREP
  TimewaitExit,  // no packet of the connection can be in flight any more
  SidrRequest,   // passive: call reply_sidr()
  SidrResponse,  // active: see sidr_status; ends the exchange
};

// Large enough for the private data of any message.
struct PrivateData {
  std::array<std::byte, Rtu::kPrivateBytes> bytes{};
  size_t size = 0;

  PrivateData() = default;
  explicit PrivateData(std::span<const std::byte> from)
      : size(std::min(from.size(), bytes.size())) {
    std::copy_n(from.begin(), size, bytes.begin());
  }
  std::span<const std::byte> view() const { return {bytes.data(), size}; }
};

struct Event {
  EventKind kind = EventKind::ConnectRequest;
  uint32_t id = 0;        // of the connection or SIDR exchange
  bool active = false;    // this side sent the request
  wire::Gid peer;         // IP address of the peer
  uint16_t port = 0;      // of the service
  uint32_t listener = 0;  // ConnectRequest and SidrRequest: the listener's ID
  int error = 0;          // errno: Unreachable, Disconnected
  RejectReason reason{};  // Rejected, and Disconnected by a late REJ
  SidrStatus sidr_status = SidrStatus::Success;
  wire::Qpn qpn;  // SidrResponse
  uint32_t qkey = 0;
  PrivateData private_data;  // the whole private data field of the message
};

const char* name_of(EventKind kind);

}  // namespace verbena::cm

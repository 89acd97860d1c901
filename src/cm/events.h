// What an agent tells its owner after a turn. Each event of a connection comes at most once, in the
// order below; Rejected, Unreachable and TimewaitExit end it: its id is free afterwards.
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
  ConnectResponse,  // active: make the queue pair ready, then establish() or reject()
  Established,      // passive: the peer is ready
  Rejected,         // see reason
  Unreachable,      // the peer did not answer in time
  Disconnected,     // by either side; error is ETIMEDOUT or ECONNRESET when it was not orderly
  TimewaitExit,     // no packet of the connection can be under way any more
  SidrRequest,      // passive: answer_sidr() it
  SidrResponse,     // active: see sidr_status; ends the exchange
};

// Room for the private data of any message.
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
  bool active = false;    // we asked
  wire::Gid peer;         // IP address of the other side
  uint16_t port = 0;      // of the service
  uint32_t listener = 0;  // ConnectRequest and SidrRequest: whose it is
  int error = 0;          // errno: Unreachable, Disconnected
  RejectReason reason{};  // Rejected, and Disconnected by a late REJ
  SidrStatus sidr_status = SidrStatus::Success;
  wire::Qpn qpn;  // SidrResponse
  uint32_t qkey = 0;
  PrivateData private_data;  // all the bytes its message has room for
};

const char* name_of(EventKind kind);

}  // namespace verbena::cm

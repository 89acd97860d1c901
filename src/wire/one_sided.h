// One-sided access: where the initiator can reach the peer's memory, it performs a WRITE or READ
// itself, without packets. Like packet_io.h, this is the interface between engine and datapath: an
// engine exposes its regions and queue pairs, and the datapath lets other processes see them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "wire/identifiers.h"
#include "wire/packet_io.h"
#include "wire/psn.h"

namespace verbena::wire {

// Memory that peers may access, with the access rights that its owner gave. Access rights are plain
// numbers here; the engines interpret them.
struct ExposedRegion {
  uint32_t key = 0;
  uint32_t pd = 0;
  uint64_t base = 0;  // in the owner's address space
  uint64_t iova = 0;  // the address that peers use
  uint64_t length = 0;
  uint32_t access = 0;
  bool operator==(const ExposedRegion&) const = default;
};

// A queue pair that executes requests, and the only peer that it accepts requests from.
struct ExposedQp {
  Gid source;       // its own address
  Gid destination;  // its peer's
  Qpn peer;
  uint32_t pd = 0;
  uint32_t access = 0;
  bool operator==(const ExposedQp&) const = default;
};

// The table in which an engine exposes its regions and queue pairs for one-sided access. For
// entries that are not exposed, or do not fit, peers send packets.
class Exposure {
 public:
  virtual ~Exposure() = default;
  virtual void expose(const ExposedRegion& region) = 0;
  virtual void withdraw(uint32_t key) = 0;
  virtual void expose(Qpn qpn, const ExposedQp& qp) = 0;
  virtual void withdraw(Qpn qpn) = 0;
};

// Part of a WRITE or a READ.
struct OneSided {
  PathId path{};
  Qpn source;  // the queue pair of the work request
  Qpn destination;
  bool write = false;
  bool ends_message = false;  // the last word of a WRITE becomes visible last
  uint32_t access = 0;        // the access right that the peer must have granted
  uint32_t rkey = 0;
  uint64_t remote_address = 0;  // of the whole WRITE or READ
  uint32_t length = 0;
  uint32_t offset = 0;  // of this part
  uint32_t bytes = 0;
  // The local memory of this part: source of a WRITE, destination of a READ.
  std::span<const std::span<const std::byte>> local;
};

// Requests of one queue pair that the peer may not have read yet.
struct Unread {
  PathId path{};
  Qpn destination;
  Psn first{0};
  uint32_t packets = 0;
};

}  // namespace verbena::wire

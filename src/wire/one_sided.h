// One-sided requests that need no packet: where a peer's memory can be reached from here, a WRITE
// or a READ is done by whoever posted it. What the peer permits crosses the same border as packets
// do (packet_io.h): an engine shows it, its carrier lets other processes see it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "wire/identifiers.h"
#include "wire/packet_io.h"
#include "wire/psn.h"

namespace verbena::wire {

// Memory that peers may reach, with the rights that its owner gave. Rights are numbers here: the
// engine at each end knows what they mean.
struct ExposedRegion {
  uint32_t key = 0;
  uint32_t pd = 0;
  uint64_t base = 0;  // in the owner's address space
  uint64_t iova = 0;  // what peers call it
  uint64_t length = 0;
  uint32_t access = 0;
  bool operator==(const ExposedRegion&) const = default;
};

// A queue pair that executes requests, and of whom.
struct ExposedQp {
  Gid source;       // its own address
  Gid destination;  // its peer's
  Qpn peer;
  uint32_t pd = 0;
  uint32_t access = 0;
  bool operator==(const ExposedQp&) const = default;
};

// Where an engine shows what its peers may do without it. What is not shown, or does not fit, is
// asked for by packets.
class Exposure {
 public:
  virtual ~Exposure() = default;
  virtual void show(const ExposedRegion& region) = 0;
  virtual void hide(uint32_t key) = 0;
  virtual void show(Qpn qpn, const ExposedQp& qp) = 0;
  virtual void hide(Qpn qpn) = 0;
};

// Part of a WRITE or a READ.
struct OneSided {
  PathId path{};
  Qpn source;  // the queue pair that it was posted to
  Qpn destination;
  bool write = false;
  bool ends_message = false;  // a WRITE's last word becomes visible last
  uint32_t access = 0;        // what the peer must permit
  uint32_t rkey = 0;
  uint64_t remote_address = 0;  // of all of it
  uint32_t length = 0;
  uint32_t offset = 0;  // this part
  uint32_t bytes = 0;
  // This part here: given, or to be filled.
  std::span<const std::span<const std::byte>> local;
};

// Requests of one queue pair, all of which the peer may not have read yet.
struct Unread {
  PathId path{};
  Qpn destination;
  Psn first{0};
  uint32_t packets = 0;
};

}  // namespace verbena::wire

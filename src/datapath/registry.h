// The wires and the local media that exist. A new one is a folder beside udp/ or shm/ and an entry
// in registry.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"
#include "datapath/local_medium.h"
#include "datapath/wire_datapath.h"

namespace verbena::datapath {

struct WireOptions {
  // The device's network interface: the scope of link-local addresses, and the interface whose
  // segmentation is queried.
  uint32_t interface_index = 0;
  uint32_t receive_buffer_bytes = 0;
  bool steering = true;  // off: misrouted packets reach their process only by forwarding
};

struct WireKind {
  const char* name;  // for messages
  // The directory must outlive the wire.
  Result<std::unique_ptr<WireDatapath>> (*open)(const WireOptions& options,
                                                host::SlotDirectory& directory);
};

// In order of preference. A process uses the first one that opens.
std::span<const WireKind> wires();

struct LocalMediumOptions {
  uint8_t slot = 0;                // claimed by this process
  uint32_t interface_index = 0;    // scope of link-local addresses
  bool wire_packets_only = false;  // see LocalLink
};

struct LocalMediumKind {
  const char* name;  // for messages
  Result<std::unique_ptr<LocalMedium>> (*open)(const LocalMediumOptions& options);
};

// In order of preference. A process uses the first one that opens.
std::span<const LocalMediumKind> local_media();

}  // namespace verbena::datapath

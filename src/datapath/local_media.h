// The list of local media. A new one is a folder beside shm/ and an entry in local_media.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"
#include "datapath/local_medium.h"

namespace verbena::datapath {

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

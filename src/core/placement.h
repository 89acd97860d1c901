// Copies payload between packets and registered memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "core/memory_registry.h"
#include "core/types.h"

namespace verbena::core {

// A copy whose last word becomes visible last, by one store. Programs spin on this word, or on its
// last byte, to detect a message; memcpy may store it before the bytes in front of it.
void place_last_word_last(std::byte* to, std::span<const std::byte> from);

// The memory areas of the payload of one packet.
struct Gather {
  Gather() {}  // does not clear the 512 bytes
  union {
    std::array<std::span<const std::byte>, kMaxSges> spans;  // the first `count` are set
  };
  size_t count = 0;
  std::span<const std::span<const std::byte>> view() const { return {spans.data(), count}; }
};

// Bytes [offset, offset + length) of the message that `sges` describe. False if an lkey does not
// grant it, with all of `access`.
bool gather(const MemoryRegistry& memory, uint32_t pd, std::span<const Sge> sges, uint32_t offset,
            uint32_t length, Gather& out, uint32_t access = 0);

// Writes `from` at `offset` of the buffers that `sges` describe. False if an lkey does not grant it
// (nothing is written then). The caller has checked that the buffers are long enough.
bool scatter(const MemoryRegistry& memory, uint32_t pd, std::span<const Sge> sges, uint32_t offset,
             std::span<const std::byte> from, bool ends_message);

}  // namespace verbena::core

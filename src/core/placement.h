// Moving payload between packets and registered memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "core/memory_registry.h"
#include "core/types.h"

namespace verbena::core {

// Copies so that the last word becomes visible last, and whole: programs spin on it, or on its last
// byte, to learn that a message is there, and a plain memcpy may store it before bytes in front of
// it.
void place_last_word_last(std::byte* to, std::span<const std::byte> from);

// A run of message bytes as they lie in registered memory, gathered for one packet.
struct Gather {
  Gather() {}  // half a kilobyte that is not cleared
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

// Copies payload between packets and registered memory. Nothing else in the engine accesses
// registered memory: the CPU may be unable to access it (MemoryBacking::copy_in).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "core/memory_view.h"
#include "core/types.h"
#include "wire/packet_run.h"

namespace verbena::core {

// A copy whose last word becomes visible last, by one store. Programs spin on this word, or on its
// last byte, to detect a message; memcpy may store it before the bytes in front of it.
void place_last_word_last(std::byte* to, std::span<const std::byte> from);

// Writes `from` to resolved memory.
void place(const MemoryArea& to, std::span<const std::byte> from, bool ends_message);

// The payloads of a run as one sequence of bytes.
class PayloadReader {
 public:
  explicit PayloadReader(const wire::PacketRun& run) : run_(run), rest_(run.payload(0)) {}
  // The next bytes, at most `max`, that lie in one packet. Empty at the end.
  std::span<const std::byte> next(size_t max) {
    if (rest_.empty() && ++packet_ < run_.size()) rest_ = run_.payload(packet_);
    const std::span<const std::byte> part = rest_.first(std::min(max, rest_.size()));
    rest_ = rest_.subspan(part.size());
    return part;
  }

 private:
  const wire::PacketRun& run_;
  size_t packet_ = 0;
  std::span<const std::byte> rest_;
};
// Writes the next `bytes` of `from`; the message does not end there.
void place(MemoryArea to, PayloadReader& from, uint32_t bytes);

// Operations on an aligned word, atomic among requests and, in memory that the CPU can access, with
// the program. The first two return the word before.
uint64_t fetch_add(const MemoryArea& at, uint64_t add);
uint64_t compare_swap(const MemoryArea& at, uint64_t compare, uint64_t swap);
void store(const MemoryArea& at, uint64_t value);

// The memory areas of the payload of one packet. Payload that the CPU cannot access is copied, so
// only one Gather is in use at a time.
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
bool gather(const MemoryView& memory, uint32_t pd, std::span<const Sge> sges, uint32_t offset,
            uint32_t length, Gather& out, uint32_t access = 0);

// Bytes [address, address + length) that a peer reads. False if its key does not grant them.
bool gather_remote(const MemoryView& memory, uint32_t rkey, uint32_t pd, wire::Qpn qpn,
                   uint64_t address, uint32_t length, Gather& out);

// Writes `from` at `offset` of the buffers that `sges` describe. False if an lkey does not grant it
// (nothing is written then). The caller has checked that the buffers are long enough.
bool scatter(const MemoryView& memory, uint32_t pd, std::span<const Sge> sges, uint32_t offset,
             std::span<const std::byte> from, bool ends_message);
// The payloads of a run, in front of the message's last byte.
bool scatter(const MemoryView& memory, uint32_t pd, std::span<const Sge> sges, uint32_t offset,
             const wire::PacketRun& from);

}  // namespace verbena::core

// What rsockets of two hosts say to each other, as values with load and store. Nothing here touches
// a queue pair.
//
// A stream: each side tells in its connection data where its receive buffer is, then RDMA-writes
// what it sends into the peer's buffer. Every write carries 32 bits of immediate data, a Message.
// Fresh buffers are told by writing a RemoteBuffer into a short list in the peer's memory.
//
// A datagram carries the sender's address in front. While the receiver's queue pair is unknown, it
// goes through an ordinary UDP socket instead, with a header that tells the sender's queue pair.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "rsocket/address.h"

namespace verbena::rsocket {

// --- streams
// --------------------------------------------------------------------------------------

// Memory that the other side may write.
struct RemoteBuffer {
  static constexpr size_t kSize = 16;
  uint64_t address = 0;
  uint32_t key = 0;
  uint32_t length = 0;

  // As it lies in the memory of the one who reads it. The writer swaps it where the orders differ.
  static RemoteBuffer load(const std::byte* from);
  void store(std::byte* to, bool swapped) const;
};

// One entry of the table of buffers that a peer opened for direct writes.
struct IomapEntry {
  static constexpr size_t kSize = 24;
  uint64_t offset = 0;
  RemoteBuffer buffer;

  static IomapEntry load(const std::byte* from);
  void store(std::byte* to, bool swapped) const;
};

// Private data of the connection request and of its answer.
struct ConnectData {
  static constexpr size_t kSize = 40;
  static constexpr uint8_t kVersion = 1;

  bool big_endian = false;   // of the host that sends it
  uint16_t credits = 0;      // messages that its receive queue takes
  uint32_t iomap_count = 0;  // entries of its table for direct writes, behind the buffer list
  RemoteBuffer buffer_list;  // `length` counts its entries
  RemoteBuffer first_buffer;

  // Nothing for another version, or for what no peer can mean.
  static std::optional<ConnectData> load(std::span<const std::byte> from);
  void store(std::byte* to) const;

  // Where this host expects the peer's answers about buffers and about iomaps.
  uint64_t buffer_entry(uint32_t index) const {
    return buffer_list.address + uint64_t{index} * RemoteBuffer::kSize;
  }
  uint64_t iomap_entry(uint32_t index) const {
    return buffer_entry(buffer_list.length) + uint64_t{index} * IomapEntry::kSize;
  }
};

// The count of iomaps travels in eight bits: up to 128 as it is, above in units of 256.
uint8_t iomap_count_code(uint32_t count);
uint32_t iomap_count_of(uint8_t code);

// Immediate data: three bits of operation, 29 of value.
enum class Op : uint8_t {
  kData = 0,     // value: bytes written into the current buffer
  kCredits = 4,  // value: how many messages may have been sent in all; perhaps also a buffer
  kIomap = 6,    // value: index of the entry written
  kControl = 7,  // value: a Control
};

enum class Control : uint32_t { kDisconnect = 0, kKeepalive = 1, kShutdown = 2 };

struct Message {
  static constexpr uint32_t kMaxValue = (1u << 29) - 1;
  Op op;  // may hold a number without a name: it comes from the peer
  uint32_t value;

  static constexpr Message decode(uint32_t immediate) {
    return {static_cast<Op>(immediate >> 29), immediate & kMaxValue};
  }
  constexpr uint32_t encode() const { return uint32_t{static_cast<uint8_t>(op)} << 29 | value; }
};

// --- datagrams
// ------------------------------------------------------------------------------------

// In front of a datagram that goes through the queue pair: who sent it.
struct DatagramHeader {
  static constexpr size_t kMaxSize = 24;
  SocketAddress source;

  size_t size() const { return source.family() == AF_INET ? 8 : 24; }
  void store(std::byte* to) const;
  // Nothing unless header and length agree; at most `from.size()` bytes are looked at.
  static std::optional<DatagramHeader> load(std::span<const std::byte> from);
};

// In front of a datagram that goes through UDP.
struct UdpHeader {
  static constexpr size_t kMaxSize = 28;
  enum class Op : uint8_t { kData = 0, kAnswer = 7 };
  Op op = Op::kData;
  uint32_t qpn = 0;      // the sender's, 24 bits
  SocketAddress source;  // its IP address; the port is the datagram's own

  size_t size() const { return source.family() == AF_INET ? 16 : 28; }
  void store(std::byte* to) const;
  // `family`: of the socket address it came from.
  static std::optional<UdpHeader> load(std::span<const std::byte> from, int family);
};

}  // namespace verbena::rsocket

// The protocol between two rsockets, as values with load and store. This file uses no queue pair.
//
// Stream: each side announces its receive buffer in its connection data, then RDMA-writes its data
// into the peer's buffer. Every write has 32 bits of immediate data, a Message. A side announces
// further buffers by writing a RemoteBuffer into a short list in the peer's memory.
//
// Datagram: the sender's address precedes the payload. While the receiver's queue pair is unknown,
// the datagram goes through an ordinary UDP socket, with a header that contains the sender's queue
// pair number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "rsocket/address.h"

namespace verbena::rsocket {

// --- streams -------------------------------------------------------------------------------------

// Memory that the peer may write.
struct RemoteBuffer {
  static constexpr size_t kSize = 16;
  uint64_t address = 0;
  uint32_t key = 0;
  uint32_t length = 0;

  // In the byte order of the reader's host. The writer swaps it if the orders differ.
  static RemoteBuffer load(const std::byte* from);
  void store(std::byte* to, bool swapped) const;
};

// One entry of the table of buffers that a peer has opened for direct writes.
struct IomapEntry {
  static constexpr size_t kSize = 24;
  uint64_t offset = 0;
  RemoteBuffer buffer;

  static IomapEntry load(const std::byte* from);
  void store(std::byte* to, bool swapped) const;
};

// Private data of the connection request and of its response.
struct ConnectData {
  static constexpr size_t kSize = 40;
  static constexpr uint8_t kVersion = 1;

  bool big_endian = false;   // byte order of the sending host
  uint16_t credits = 0;      // capacity of its receive queue in messages
  uint32_t iomap_count = 0;  // entries of its table for direct writes, after the buffer list
  RemoteBuffer buffer_list;  // `length` is the number of entries
  RemoteBuffer first_buffer;

  // Returns nothing for another version or for invalid values.
  static std::optional<ConnectData> load(std::span<const std::byte> from);
  void store(std::byte* to) const;

  // Addresses in the memory of the host that sent this data; its peer writes buffers and iomaps
  // there.
  uint64_t buffer_entry(uint32_t index) const {
    return buffer_list.address + uint64_t{index} * RemoteBuffer::kSize;
  }
  uint64_t iomap_entry(uint32_t index) const {
    return buffer_entry(buffer_list.length) + uint64_t{index} * IomapEntry::kSize;
  }
};

// The count of iomaps is encoded in eight bits: up to 128 as it is, above that in units of 256.
uint8_t iomap_count_code(uint32_t count);
uint32_t iomap_count_of(uint8_t code);

// Immediate data: three bits of operation, 29 of value.
enum class Op : uint8_t {
  kData = 0,     // value: bytes written into the current buffer
  kCredits = 4,  // value: total number of messages that may be sent; may announce a buffer too
  kIomap = 6,    // value: index of the entry written
  kControl = 7,  // value: a Control
};

enum class Control : uint32_t { kDisconnect = 0, kKeepalive = 1, kShutdown = 2 };

struct Message {
  static constexpr uint32_t kMaxValue = (1u << 29) - 1;
  Op op;  // may be an undefined value: it comes from the peer
  uint32_t value;

  static constexpr Message decode(uint32_t immediate) {
    return {static_cast<Op>(immediate >> 29), immediate & kMaxValue};
  }
  constexpr uint32_t encode() const { return uint32_t{static_cast<uint8_t>(op)} << 29 | value; }
};

// --- datagrams -----------------------------------------------------------------------------------

// Precedes a datagram through the queue pair: the sender's address.
struct DatagramHeader {
  static constexpr size_t kMaxSize = 24;
  SocketAddress source;

  size_t size() const { return source.family() == AF_INET ? 8 : 24; }
  void store(std::byte* to) const;
  // Returns nothing unless header and length agree. Reads at most `from.size()` bytes.
  static std::optional<DatagramHeader> load(std::span<const std::byte> from);
};

// Precedes a datagram through UDP.
struct UdpHeader {
  static constexpr size_t kMaxSize = 28;
  enum class Op : uint8_t { kData = 0, kReply = 7 };
  Op op = Op::kData;
  uint32_t qpn = 0;      // the sender's, 24 bits
  SocketAddress source;  // the sender's IP address; the port is that of the datagram

  size_t size() const { return source.family() == AF_INET ? 16 : 28; }
  void store(std::byte* to) const;
  // `family` is that of the datagram's source address.
  static std::optional<UdpHeader> load(std::span<const std::byte> from, int family);
};

}  // namespace verbena::rsocket

// verbena perf: the messages between client and server, in network byte order.
#pragma once

#include <endian.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

namespace verbena::perf {

inline constexpr uint32_t kMagic = 0x56506572;  // "VPer"
inline constexpr uint32_t kVersion = 1;
inline constexpr uint32_t kMaxMessage = 4u << 20;
inline constexpr uint16_t kDefaultPort = 7475;

enum class HandshakeResult : uint32_t { Accepted = 0, OtherVersion = 1, Busy = 2 };

// Private data of the connection request, of its acceptance and of its rejection.
struct Handshake {
  uint32_t magic = kMagic;
  uint32_t version = kVersion;
  uint64_t target = 0;  // memory that the other side may WRITE and READ
  uint32_t rkey = 0;
  HandshakeResult result = HandshakeResult::Accepted;

  Handshake swapped() const {
    return {htobe32(magic), htobe32(version), htobe64(target), htobe32(rkey),
            static_cast<HandshakeResult>(htobe32(static_cast<uint32_t>(result)))};
  }

  // nullopt: the sender is not verbena perf.
  static std::optional<Handshake> load(const void* data, size_t size) {
    Handshake raw;
    if (data == nullptr || size < sizeof raw) return std::nullopt;
    std::memcpy(&raw, data, sizeof raw);
    const Handshake handshake = raw.swapped();
    if (handshake.magic != kMagic) return std::nullopt;
    return handshake;
  }
};
static_assert(sizeof(Handshake) == 24);

// The server's part in the next measurement. The server sends the command back when it is ready.
enum class Part : uint32_t {
  ReceiveSends = 1,  // receive `count` messages
  EchoSends,         // reply to each of `count` messages by one of the same size
  EchoWrites,        // the same with WRITEs, detected by their last byte
};

struct Command {
  Part part = Part::ReceiveSends;
  uint32_t size = 0;
  uint64_t count = 0;

  Command swapped() const {
    return {static_cast<Part>(htobe32(static_cast<uint32_t>(part))), htobe32(size), htobe64(count)};
  }
};
static_assert(sizeof(Command) == 16);

// The last byte of WRITE number `i` of a ping-pong: never 0, and different from the previous one.
constexpr uint8_t sequence_byte(uint64_t i) { return static_cast<uint8_t>(1 + i % 255); }

}  // namespace verbena::perf

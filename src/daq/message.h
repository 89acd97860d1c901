// The messages of the detector firmware's connection manager: UDP datagrams of 64 bytes between a
// board that sends data by RoCEv2 and the host that receives them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace verbena::daq {

inline constexpr uint16_t kBoardPort = 0x4321;        // 17185, a board listens here
inline constexpr uint16_t kHostPort = 0x4322;         // 17186, a host's default port
inline constexpr uint16_t kBoardSourcePort = 0x8765;  // source port of a board
inline constexpr size_t kMessageBytes = 64;
inline constexpr uint32_t kFirstQpn = 256;

using MessageBytes = std::array<std::byte, kMessageBytes>;

enum class Request : uint8_t {
  Null = 0,
  OpenQp = 1,
  SendQpInfo = 2,  // defined, but ignored by boards
  ModifyQpRts = 3,
  CloseQp = 4,
  Fetch = 5,  // used inside a board only
  Error = 7,
};

enum class Ack : uint8_t { Null = 0, Ack = 1, NoQp = 2, Nak = 3, Error = 7 };

// One end of a connection. A board has neither key nor address.
struct QpInfo {
  uint32_t qpn = 0;
  uint32_t psn = 0;
  uint32_t rkey = 0;
  uint64_t address = 0;
  uint32_t ip = 0;  // 127.0.0.1 is 0x7F000001
  bool operator==(const QpInfo&) const = default;
};

enum class TransferKind : uint8_t { Send = 0, Write = 1 };

// A command to a board's data generator.
struct Transmit {
  bool valid = false;
  bool start = false;
  bool immediate = false;
  TransferKind kind = TransferKind::Send;
  uint32_t length = 0;      // bytes of each message
  uint32_t count = 0;       // messages
  uint32_t gap_cycles = 0;  // of the board's clock between two messages; 0: no gap
  bool operator==(const Transmit&) const = default;
};

// Layout: 0 info valid:1 request:3 ack valid:1 ack:3 (from the lowest bit) | 2 QPN:24 | 6 PSN:24
// | 9 R_Key | 13 address | 21 IP | 26 to 48 the remote end in the same layout | 49 port | 51
// valid:1 start:1 immediate:1 kind:1 | 52 length | 56 count | 60 gap. Other bytes are zero.
struct Message {
  bool info_valid = false;
  Request request = Request::Null;
  bool ack_valid = false;
  Ack ack = Ack::Null;
  QpInfo local{};  // the sender of the message
  QpInfo remote{};
  uint16_t listening_port = 0;  // destination of responses
  Transmit transmit{};
  bool operator==(const Message&) const = default;

  // nullopt: not 64 bytes; every peer drops such a datagram silently.
  static std::optional<Message> load(std::span<const std::byte> bytes);
  MessageBytes store() const;
};

// A message to send, with its destination.
struct Outgoing {
  uint32_t ip = 0;
  uint16_t port = 0;
  Message message;
};

// "OPEN_QP", "ACK", ...; "unknown" for an unassigned code.
const char* name_of(Request request);
const char* name_of(Ack ack);

}  // namespace verbena::daq

// BTH opcodes and their properties: the operation, the position in the message, the extension
// headers. The table is computed from (transport, operation), so that each fact is written once.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>

namespace verbena::wire {

enum class Transport : uint8_t { Rc, Uc, Rd, Ud, Cnp, Xrc };

enum class Verb : uint8_t {
  Invalid,
  Send,
  Write,
  ReadRequest,
  ReadResponse,
  Ack,
  AtomicAck,
  CompareSwap,
  FetchAdd,
  Flush,
  AtomicWrite,
  Cnp
};

enum class Position : uint8_t { Only, First, Middle, Last };
enum class Direction : uint8_t { Request, Response };

// One byte on the wire: transport in the top three bits, operation below.
enum class Opcode : uint8_t {
  RcSendFirst = 0x00,
  RcSendMiddle = 0x01,
  RcSendLast = 0x02,
  RcSendLastImm = 0x03,
  RcSendOnly = 0x04,
  RcSendOnlyImm = 0x05,
  RcWriteFirst = 0x06,
  RcWriteMiddle = 0x07,
  RcWriteLast = 0x08,
  RcWriteLastImm = 0x09,
  RcWriteOnly = 0x0A,
  RcWriteOnlyImm = 0x0B,
  RcReadRequest = 0x0C,
  RcReadResponseFirst = 0x0D,
  RcReadResponseMiddle = 0x0E,
  RcReadResponseLast = 0x0F,
  RcReadResponseOnly = 0x10,
  RcAck = 0x11,
  RcAtomicAck = 0x12,
  RcCompareSwap = 0x13,
  RcFetchAdd = 0x14,
  RcSendLastInvalidate = 0x16,
  RcSendOnlyInvalidate = 0x17,
  RcFlush = 0x1C,
  RcAtomicWrite = 0x1D,
  UdSendOnly = 0x64,
  UdSendOnlyImm = 0x65,
  Cnp = 0x81,
};

// UC and XRC use RC's operation numbers.
inline constexpr uint8_t kRcBase = 0x00;
inline constexpr uint8_t kUcBase = 0x20;
inline constexpr uint8_t kUdBase = 0x60;
inline constexpr uint8_t kXrcBase = 0xA0;
constexpr uint8_t with_base(uint8_t base, Opcode rc) {
  return static_cast<uint8_t>(base | static_cast<uint8_t>(rc));
}

// One 32-bit word: every packet has a copy.
struct OpcodeInfo {
  Transport transport : 3 = Transport::Rc;
  Verb verb : 5 = Verb::Invalid;
  Position position : 2 = Position::Only;
  Direction direction : 1 = Direction::Request;
  bool has_deth : 1 = false;
  bool has_xrc_eth : 1 = false;
  bool has_flush_eth : 1 = false;
  bool has_reth : 1 = false;
  bool has_aeth : 1 = false;
  bool has_atomic_eth : 1 = false;
  bool has_atomic_ack_eth : 1 = false;
  bool has_immediate : 1 = false;
  bool has_invalidate : 1 = false;
  bool has_rare_headers : 1 = false;  // others than RETH, AETH and immediate
  uint8_t header_bytes = 0;           // BTH and all extension headers

  constexpr bool valid() const { return verb != Verb::Invalid; }
  constexpr bool starts_message() const {
    return position == Position::Only || position == Position::First;
  }
  constexpr bool ends_message() const {
    return position == Position::Only || position == Position::Last;
  }
};

static_assert(sizeof(OpcodeInfo) == 4);

inline constexpr uint8_t kBthBytes = 12;
inline constexpr uint8_t kDethBytes = 8;
inline constexpr uint8_t kXrcEthBytes = 4;
inline constexpr uint8_t kFlushEthBytes = 4;
inline constexpr uint8_t kRethBytes = 16;
inline constexpr uint8_t kAethBytes = 4;
inline constexpr uint8_t kAtomicEthBytes = 28;
inline constexpr uint8_t kAtomicAckEthBytes = 8;
inline constexpr uint8_t kImmediateBytes = 4;
inline constexpr uint8_t kInvalidateBytes = 4;
inline constexpr uint8_t kCnpReservedBytes = 16;  // all zero, behind the BTH of a CNP
inline constexpr uint8_t kIcrcBytes = 4;

constexpr bool is_one_of(uint8_t operation, std::initializer_list<Opcode> opcodes) {
  for (const Opcode opcode : opcodes) {
    if (operation == static_cast<uint8_t>(opcode)) return true;
  }
  return false;
}

constexpr OpcodeInfo describe_rc_operation(uint8_t operation) {
  using enum Opcode;
  using enum Position;
  OpcodeInfo i;
  const auto message = [&](Verb verb, Position position) {
    i.verb = verb;
    i.position = position;
  };
  switch (static_cast<Opcode>(operation)) {
    case RcSendFirst:
      message(Verb::Send, First);
      break;
    case RcSendMiddle:
      message(Verb::Send, Middle);
      break;
    case RcSendLast:
    case RcSendLastImm:
    case RcSendLastInvalidate:
      message(Verb::Send, Last);
      break;
    case RcSendOnly:
    case RcSendOnlyImm:
    case RcSendOnlyInvalidate:
      message(Verb::Send, Only);
      break;
    case RcWriteFirst:
      message(Verb::Write, First);
      break;
    case RcWriteMiddle:
      message(Verb::Write, Middle);
      break;
    case RcWriteLast:
    case RcWriteLastImm:
      message(Verb::Write, Last);
      break;
    case RcWriteOnly:
    case RcWriteOnlyImm:
      message(Verb::Write, Only);
      break;
    case RcReadRequest:
      message(Verb::ReadRequest, Only);
      break;
    case RcReadResponseFirst:
      message(Verb::ReadResponse, First);
      break;
    case RcReadResponseMiddle:
      message(Verb::ReadResponse, Middle);
      break;
    case RcReadResponseLast:
      message(Verb::ReadResponse, Last);
      break;
    case RcReadResponseOnly:
      message(Verb::ReadResponse, Only);
      break;
    case RcAck:
      message(Verb::Ack, Only);
      break;
    case RcAtomicAck:
      message(Verb::AtomicAck, Only);
      break;
    case RcCompareSwap:
      message(Verb::CompareSwap, Only);
      break;
    case RcFetchAdd:
      message(Verb::FetchAdd, Only);
      break;
    case RcFlush:
      message(Verb::Flush, Only);
      break;
    case RcAtomicWrite:
      message(Verb::AtomicWrite, Only);
      break;
    case UdSendOnly:  // not operations of RC
    case UdSendOnlyImm:
    case Opcode::Cnp:
      return OpcodeInfo{};
  }
  if (!i.valid()) return OpcodeInfo{};  // an unassigned operation number
  i.has_immediate =
      is_one_of(operation, {RcSendLastImm, RcSendOnlyImm, RcWriteLastImm, RcWriteOnlyImm});
  i.has_invalidate = is_one_of(operation, {RcSendLastInvalidate, RcSendOnlyInvalidate});
  i.has_flush_eth = i.verb == Verb::Flush;
  i.has_reth = i.verb == Verb::ReadRequest || i.verb == Verb::Flush ||
               i.verb == Verb::AtomicWrite || (i.verb == Verb::Write && i.starts_message());
  i.has_aeth = i.verb == Verb::Ack || i.verb == Verb::AtomicAck ||
               (i.verb == Verb::ReadResponse && i.position != Middle);
  i.has_atomic_eth = i.verb == Verb::CompareSwap || i.verb == Verb::FetchAdd;
  i.has_atomic_ack_eth = i.verb == Verb::AtomicAck;
  if (i.verb == Verb::ReadResponse || i.verb == Verb::Ack || i.verb == Verb::AtomicAck) {
    i.direction = Direction::Response;
  }
  return i;
}

constexpr uint8_t header_bytes_of(const OpcodeInfo& i) {
  return static_cast<uint8_t>(
      kBthBytes + (i.has_deth ? kDethBytes : 0) + (i.has_xrc_eth ? kXrcEthBytes : 0) +
      (i.has_flush_eth ? kFlushEthBytes : 0) + (i.has_reth ? kRethBytes : 0) +
      (i.has_aeth ? kAethBytes : 0) + (i.has_atomic_eth ? kAtomicEthBytes : 0) +
      (i.has_atomic_ack_eth ? kAtomicAckEthBytes : 0) + (i.has_immediate ? kImmediateBytes : 0) +
      (i.has_invalidate ? kInvalidateBytes : 0));
}

// RC's operation restricted to what the transport allows, with the transport's additional headers.
constexpr OpcodeInfo describe_operation(Transport transport, uint8_t operation) {
  OpcodeInfo i = describe_rc_operation(operation);
  switch (transport) {
    case Transport::Rc:
      break;
    case Transport::Uc:
      if ((i.verb != Verb::Send && i.verb != Verb::Write) || i.has_invalidate) return OpcodeInfo{};
      break;
    case Transport::Ud:
      if (i.verb != Verb::Send || i.position != Position::Only || i.has_invalidate)
        return OpcodeInfo{};
      i.has_deth = true;
      break;
    case Transport::Xrc:
      i.has_xrc_eth = i.direction == Direction::Request;
      break;
    default:
      return OpcodeInfo{};
  }
  if (!i.valid()) return OpcodeInfo{};
  i.transport = transport;
  i.has_rare_headers = i.has_deth || i.has_xrc_eth || i.has_flush_eth || i.has_atomic_eth ||
                       i.has_atomic_ack_eth || i.has_invalidate;
  i.header_bytes = header_bytes_of(i);
  return i;
}

inline constexpr std::array<OpcodeInfo, 256> kOpcodes = [] {
  std::array<OpcodeInfo, 256> table{};
  for (uint8_t operation = 0; operation < 32; ++operation) {
    table[kRcBase + operation] = describe_operation(Transport::Rc, operation);
    table[kUcBase + operation] = describe_operation(Transport::Uc, operation);
    table[kUdBase + operation] = describe_operation(Transport::Ud, operation);
    table[kXrcBase + operation] = describe_operation(Transport::Xrc, operation);
  }
  OpcodeInfo& cnp = table[static_cast<uint8_t>(Opcode::Cnp)];
  cnp.transport = Transport::Cnp;
  cnp.verb = Verb::Cnp;
  cnp.has_rare_headers = true;
  cnp.header_bytes = kBthBytes + kCnpReservedBytes;
  return table;
}();

constexpr const OpcodeInfo& info_of(uint8_t opcode) { return kOpcodes[opcode]; }
constexpr const OpcodeInfo& info_of(Opcode opcode) {
  return kOpcodes[static_cast<uint8_t>(opcode)];
}

// The header sizes of the IBA specification (table 38).
static_assert(info_of(Opcode::RcSendMiddle).header_bytes == 12);
static_assert(info_of(Opcode::RcSendOnlyImm).header_bytes == 16);
static_assert(info_of(Opcode::RcWriteFirst).header_bytes == 28);
static_assert(info_of(Opcode::RcWriteMiddle).header_bytes == 12);
static_assert(info_of(Opcode::RcWriteOnlyImm).header_bytes == 32);
static_assert(info_of(Opcode::RcReadRequest).header_bytes == 28);
static_assert(info_of(Opcode::RcReadResponseMiddle).header_bytes == 12);
static_assert(info_of(Opcode::RcReadResponseLast).header_bytes == 16);
static_assert(info_of(Opcode::RcAtomicAck).header_bytes == 24);
static_assert(info_of(Opcode::RcFetchAdd).header_bytes == 40);
static_assert(info_of(Opcode::RcSendOnlyInvalidate).header_bytes == 16);
static_assert(info_of(Opcode::RcFlush).header_bytes == 32);
static_assert(info_of(Opcode::RcAtomicWrite).header_bytes == 28);
static_assert(info_of(Opcode::UdSendOnly).header_bytes == 20);
static_assert(info_of(with_base(kUcBase, Opcode::RcWriteOnlyImm)).header_bytes == 32);
static_assert(info_of(with_base(kXrcBase, Opcode::RcWriteOnlyImm)).header_bytes == 36);
static_assert(info_of(with_base(kXrcBase, Opcode::RcAck)).header_bytes == 16);
static_assert(!info_of(with_base(kUcBase, Opcode::RcReadRequest)).valid());
static_assert(!info_of(0x15).valid() && !info_of(0x18).valid() && !info_of(0x1F).valid());

// The opcode's name as the specification and packet analysers write it.
const char* name_of(uint8_t opcode);

}  // namespace verbena::wire

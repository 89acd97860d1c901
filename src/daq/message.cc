// Encoding and decoding of connection manager messages, and the names of their codes.
#include "daq/message.h"

#include "base/bytes.h"

namespace verbena::daq {
namespace {

constexpr size_t kLocalOffset = 2;
constexpr size_t kRemoteOffset = 26;
constexpr size_t kPortOffset = 49;
constexpr size_t kTransmitOffset = 51;

QpInfo load_info(const std::byte* p) {
  return {load_be24(p), load_be24(p + 4), load_be32(p + 7), load_be64(p + 11), load_be32(p + 19)};
}

void store_info(const QpInfo& info, std::byte* p) {
  store_be24(p, info.qpn);
  store_be24(p + 4, info.psn);
  store_be32(p + 7, info.rkey);
  store_be64(p + 11, info.address);
  store_be32(p + 19, info.ip);
}

Transmit load_transmit(const std::byte* p) {
  const uint8_t flags = load_u8(p);
  return {.valid = (flags & 1) != 0,
          .start = (flags & 2) != 0,
          .immediate = (flags & 4) != 0,
          .kind = (flags & 8) != 0 ? TransferKind::Write : TransferKind::Send,
          .length = load_be32(p + 1),
          .count = load_be32(p + 5),
          .gap_cycles = load_be32(p + 9)};
}

void store_transmit(const Transmit& t, std::byte* p) {
  const bool write = t.kind == TransferKind::Write;
  store_u8(p, static_cast<uint8_t>(t.valid | t.start << 1 | t.immediate << 2 | write << 3));
  store_be32(p + 1, t.length);
  store_be32(p + 5, t.count);
  store_be32(p + 9, t.gap_cycles);
}

}  // namespace

std::optional<Message> Message::load(std::span<const std::byte> bytes) {
  if (bytes.size() != kMessageBytes) return std::nullopt;
  const std::byte* const p = bytes.data();
  const uint8_t flags = load_u8(p);
  return Message{.info_valid = (flags & 1) != 0,
                 .request = static_cast<Request>(flags >> 1 & 7),
                 .ack_valid = (flags & 0x10) != 0,
                 .ack = static_cast<Ack>(flags >> 5),
                 .local = load_info(p + kLocalOffset),
                 .remote = load_info(p + kRemoteOffset),
                 .listening_port = load_be16(p + kPortOffset),
                 .transmit = load_transmit(p + kTransmitOffset)};
}

MessageBytes Message::store() const {
  MessageBytes bytes{};
  store_u8(bytes.data(), static_cast<uint8_t>(info_valid | static_cast<uint8_t>(request) << 1 |
                                              ack_valid << 4 | static_cast<uint8_t>(ack) << 5));
  store_info(local, bytes.data() + kLocalOffset);
  store_info(remote, bytes.data() + kRemoteOffset);
  store_be16(bytes.data() + kPortOffset, listening_port);
  store_transmit(transmit, bytes.data() + kTransmitOffset);
  return bytes;
}

const char* name_of(Request request) {
  switch (request) {
    case Request::Null:
      return "NULL";
    case Request::OpenQp:
      return "OPEN_QP";
    case Request::SendQpInfo:
      return "SEND_QP_INFO";
    case Request::ModifyQpRts:
      return "MODIFY_QP_RTS";
    case Request::CloseQp:
      return "CLOSE_QP";
    case Request::Fetch:
      return "FETCH";
    case Request::Error:
      return "ERROR";
  }
  return "unknown";
}

const char* name_of(Ack ack) {
  switch (ack) {
    case Ack::Null:
      return "NULL";
    case Ack::Ack:
      return "ACK";
    case Ack::NoQp:
      return "NO_QP";
    case Ack::Nak:
      return "NAK";
    case Ack::Error:
      return "ERROR";
  }
  return "unknown";
}

}  // namespace verbena::daq

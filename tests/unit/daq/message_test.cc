// The connection manager's messages, byte for byte.
#include "daq/message.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace verbena::daq {
namespace {

// The text omits trailing zeros.
MessageBytes from_hex(const std::string& hex) {
  MessageBytes bytes{};
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes[i / 2] = static_cast<std::byte>(std::strtoul(hex.substr(i, 2).c_str(), nullptr, 16));
  }
  return bytes;
}

void expect_bytes(const Message& message, const std::string& hex) {
  EXPECT_EQ(message.store(), from_hex(hex));
  const MessageBytes bytes = from_hex(hex);
  ASSERT_TRUE(Message::load(bytes).has_value());
  EXPECT_EQ(*Message::load(bytes), message);
}

const QpInfo kHost{.qpn = 0x010203,
                   .psn = 0x0a0b0c,
                   .rkey = 0xcafe0001,
                   .address = 0x00007f1122334400,
                   .ip = 0x16010203};

TEST(Message, EncodesAnOpenOfAHost) {
  expect_bytes(
      {.info_valid = true, .request = Request::OpenQp, .local = kHost, .listening_port = kHostPort},
      "03"
      "00010203000a0b0ccafe000100007f112233440016010203"
      "000000000000000000000000000000000000000000000000"
      "4322");
}

TEST(Message, EncodesTheOpenReplyOfABoard) {
  expect_bytes({.info_valid = true,
                .request = Request::OpenQp,
                .ack_valid = true,
                .ack = Ack::Ack,
                .local = {.qpn = 0x100, .ip = 0x1601d40a},
                .remote = kHost,
                .listening_port = kBoardPort},
               "33"
               "000001000000000000000000000000000000000"
               "01601d40a"
               "00010203000a0b0ccafe000100007f112233440016010203"
               "4321");
}

TEST(Message, EncodesFlagBytes) {
  const auto flags = [](Request request, bool ack_valid, Ack ack) {
    return std::to_integer<int>(
        Message{.info_valid = true, .request = request, .ack_valid = ack_valid, .ack = ack}
            .store()[0]);
  };
  EXPECT_EQ(flags(Request::OpenQp, false, Ack::Null), 0x03);
  EXPECT_EQ(flags(Request::ModifyQpRts, false, Ack::Null), 0x07);
  EXPECT_EQ(flags(Request::CloseQp, false, Ack::Null), 0x09);
  EXPECT_EQ(flags(Request::OpenQp, true, Ack::Ack), 0x33);
  EXPECT_EQ(flags(Request::CloseQp, true, Ack::Ack), 0x39);
  EXPECT_EQ(flags(Request::OpenQp, true, Ack::Error), 0xF3);
}

TEST(Message, EncodesATransmitCommand) {
  expect_bytes({.info_valid = true,
                .remote = {.qpn = 0x101},
                .listening_port = kHostPort,
                .transmit = {.valid = true,
                             .start = true,
                             .immediate = true,
                             .kind = TransferKind::Write,
                             .length = 0x4000,
                             .count = 10000,
                             .gap_cycles = 0x12345678}},
               "01"
               "000000000000000000000000000000000000000000000000"
               "000001010000000000000000000000000000000000000000"
               "4322"
               "0f000040000000271012345678");
}

TEST(Message, RejectsOtherLengths) {
  const std::array<std::byte, 65> bytes{};
  EXPECT_FALSE(Message::load(std::span(bytes).first(63)).has_value());
  EXPECT_FALSE(Message::load(bytes).has_value());
  EXPECT_FALSE(Message::load({}).has_value());
  EXPECT_TRUE(Message::load(std::span(bytes).first(64)).has_value());
}

TEST(Message, IgnoresReservedBits) {
  MessageBytes ones;
  ones.fill(std::byte{0xFF});
  const Message m = *Message::load(ones);
  EXPECT_EQ(m.local.qpn, 0xFFFFFFu);
  EXPECT_EQ(m.remote.psn, 0xFFFFFFu);
  const MessageBytes again = m.store();
  for (const size_t zero : {1, 5, 25, 29}) EXPECT_EQ(again[zero], std::byte{0}) << zero;
  EXPECT_EQ(again[51], std::byte{0x0F});
}

TEST(Message, CodesHaveNames) {
  EXPECT_STREQ(name_of(Request::ModifyQpRts), "MODIFY_QP_RTS");
  EXPECT_STREQ(name_of(Ack::NoQp), "NO_QP");
  EXPECT_STREQ(name_of(static_cast<Request>(6)), "unknown");
  EXPECT_STREQ(name_of(static_cast<Ack>(5)), "unknown");
}

}  // namespace
}  // namespace verbena::daq

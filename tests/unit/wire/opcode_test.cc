// The opcode table, compared with the specification (IBA table 38).
#include "wire/opcode.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace verbena::wire {
namespace {

struct Row {
  uint8_t opcode;
  Verb verb;
  Position position;
  const char* headers;  // R RETH, A AETH, T AtomicETH, K AtomicAckETH, I ImmDt, V IETH, F FETH
};

constexpr Row kRows[] = {
    {0x00, Verb::Send, Position::First, ""},
    {0x01, Verb::Send, Position::Middle, ""},
    {0x02, Verb::Send, Position::Last, ""},
    {0x03, Verb::Send, Position::Last, "I"},
    {0x04, Verb::Send, Position::Only, ""},
    {0x05, Verb::Send, Position::Only, "I"},
    {0x06, Verb::Write, Position::First, "R"},
    {0x07, Verb::Write, Position::Middle, ""},
    {0x08, Verb::Write, Position::Last, ""},
    {0x09, Verb::Write, Position::Last, "I"},
    {0x0A, Verb::Write, Position::Only, "R"},
    {0x0B, Verb::Write, Position::Only, "RI"},
    {0x0C, Verb::ReadRequest, Position::Only, "R"},
    {0x0D, Verb::ReadResponse, Position::First, "A"},
    {0x0E, Verb::ReadResponse, Position::Middle, ""},
    {0x0F, Verb::ReadResponse, Position::Last, "A"},
    {0x10, Verb::ReadResponse, Position::Only, "A"},
    {0x11, Verb::Ack, Position::Only, "A"},
    {0x12, Verb::AtomicAck, Position::Only, "AK"},
    {0x13, Verb::CompareSwap, Position::Only, "T"},
    {0x14, Verb::FetchAdd, Position::Only, "T"},
    {0x16, Verb::Send, Position::Last, "V"},
    {0x17, Verb::Send, Position::Only, "V"},
    {0x1C, Verb::Flush, Position::Only, "FR"},
    {0x1D, Verb::AtomicWrite, Position::Only, "R"},
};

TEST(Opcode, MatchesTheSpecification) {
  for (const Row& r : kRows) {
    SCOPED_TRACE(name_of(r.opcode));
    const OpcodeInfo& i = info_of(r.opcode);
    const std::string h = r.headers;
    const auto has = [&](char c) { return h.find(c) != std::string::npos; };
    EXPECT_EQ(i.verb, r.verb);
    EXPECT_EQ(i.position, r.position);
    EXPECT_EQ(i.has_reth, has('R'));
    EXPECT_EQ(i.has_aeth, has('A'));
    EXPECT_EQ(i.has_atomic_eth, has('T'));
    EXPECT_EQ(i.has_atomic_ack_eth, has('K'));
    EXPECT_EQ(i.has_immediate, has('I'));
    EXPECT_EQ(i.has_invalidate, has('V'));
    EXPECT_EQ(i.has_flush_eth, has('F'));
    EXPECT_EQ(i.header_bytes, 12 + 16 * has('R') + 4 * has('A') + 28 * has('T') + 8 * has('K') +
                                  4 * has('I') + 4 * has('V') + 4 * has('F'));
    const bool response = r.opcode >= 0x0D && r.opcode <= 0x12;
    EXPECT_EQ(i.direction, response ? Direction::Response : Direction::Request);
    EXPECT_STRNE(name_of(r.opcode), "unknown opcode");
  }
}

TEST(Opcode, HasNoOtherRcOperations) {
  for (int opcode = 0; opcode < 32; ++opcode) {
    bool listed = false;
    for (const Row& r : kRows) listed |= r.opcode == opcode;
    EXPECT_EQ(info_of(static_cast<uint8_t>(opcode)).valid(), listed) << opcode;
    EXPECT_EQ(std::strcmp(name_of(static_cast<uint8_t>(opcode)), "unknown opcode") != 0, listed);
  }
}

TEST(Opcode, UcAndUdHaveASubsetOfTheRcOperations) {
  for (uint8_t operation = 0; operation < 32; ++operation) {
    SCOPED_TRACE(static_cast<int>(operation));
    const bool in_uc = operation <= 0x0B;  // SEND and WRITE, up to WRITE ONLY with immediate
    const OpcodeInfo& uc = info_of(static_cast<uint8_t>(kUcBase + operation));
    EXPECT_EQ(uc.valid(), in_uc);
    if (in_uc) {
      EXPECT_EQ(uc.transport, Transport::Uc);
      EXPECT_EQ(uc.header_bytes, info_of(operation).header_bytes);
    }
    const bool in_ud = operation == 0x04 || operation == 0x05;  // SEND ONLY
    const OpcodeInfo& ud = info_of(static_cast<uint8_t>(kUdBase + operation));
    EXPECT_EQ(ud.valid(), in_ud);
    if (in_ud) {
      EXPECT_EQ(ud.transport, Transport::Ud);
      EXPECT_TRUE(ud.has_deth);
      EXPECT_EQ(ud.header_bytes, info_of(operation).header_bytes + 8);
    }
  }
}

TEST(Opcode, XrcHasTheRcOperationsWithAnXrcethInEveryRequest) {
  for (uint8_t operation = 0; operation < 32; ++operation) {
    const OpcodeInfo& rc = info_of(operation);
    const OpcodeInfo& xrc = info_of(static_cast<uint8_t>(kXrcBase + operation));
    SCOPED_TRACE(int{operation});
    ASSERT_EQ(xrc.valid(), rc.valid());
    if (!rc.valid()) continue;
    EXPECT_EQ(xrc.transport, Transport::Xrc);
    EXPECT_EQ(xrc.verb, rc.verb);
    EXPECT_EQ(xrc.has_xrc_eth, rc.direction == Direction::Request);
    EXPECT_EQ(xrc.header_bytes, rc.header_bytes + (xrc.has_xrc_eth ? 4 : 0));
    EXPECT_EQ(std::string("X") + name_of(operation),
              name_of(static_cast<uint8_t>(kXrcBase + operation)));
  }
}

}  // namespace
}  // namespace verbena::wire

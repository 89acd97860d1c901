// PeerExtensions: detecting the peer's capabilities, and the flags of both ends.
#include "core/ext/peer_extensions.h"

#include <gtest/gtest.h>

#include <array>

namespace verbena::core {
namespace {

constexpr wire::Qpn kOwn(0x010005);
constexpr wire::Qpn kPeer(0x020007);

wire::Bth with(uint8_t flag) {
  wire::Bth bth;
  bth.extension_flags = flag;
  return bth;
}

class PeerExtensionsTest : public testing::Test {
 protected:
  PeerExtensionsTest() { own_.connect(kOwn, kPeer); }
  PeerExtensions own_{true};
  const ExtensionFlags from_peer_ = flags_sent_by(kPeer, kOwn);
  const ExtensionFlags from_us_ = flags_sent_by(kOwn, kPeer);
};

TEST_F(PeerExtensionsTest, UsesNoExtensionBeforeThePeerAnnouncesIts) {
  EXPECT_EQ(own_.request_flag(false), 0);
  EXPECT_EQ(own_.request_flag(true), 0);
  own_.on_response(with(0));
  EXPECT_FALSE(own_.peer_buffers_requests());
  own_.on_response(with(from_peer_.sack_capable));
  EXPECT_TRUE(own_.peer_buffers_requests());
  EXPECT_EQ(own_.request_flag(false), from_us_.sack);
  EXPECT_EQ(own_.request_flag(true), from_us_.reordered);
}

TEST_F(PeerExtensionsTest, IgnoresItsOwnFlagsSentBackByANicThatEchoesReservedBits) {
  for (const uint8_t flag :
       {from_us_.sack_capable, from_us_.sack, from_us_.reordered, from_us_.piggyback}) {
    own_.on_response(with(flag));
    EXPECT_FALSE(own_.peer_buffers_requests());
    EXPECT_FALSE(own_.on_request(with(flag)));
    EXPECT_FALSE(own_.has_piggyback(with(flag)));
  }
}

TEST_F(PeerExtensionsTest, ReportsOnceThatThePeerReadsSackLists) {
  EXPECT_FALSE(own_.on_request(with(0)));
  EXPECT_FALSE(own_.is_reordered(with(from_peer_.reordered)));
  EXPECT_TRUE(own_.on_request(with(from_peer_.sack)));
  EXPECT_TRUE(own_.peer_reads_sack());
  EXPECT_FALSE(own_.on_request(with(from_peer_.sack)));
  EXPECT_TRUE(own_.is_reordered(with(from_peer_.reordered)));
  EXPECT_FALSE(own_.is_reordered(with(from_peer_.sack)));
}

TEST_F(PeerExtensionsTest, AnnouncesItsCapabilityInTheFirstResponseOnly) {
  EXPECT_EQ(own_.response_flag(true), from_us_.sack_capable);
  EXPECT_FALSE(own_.announced());
  EXPECT_EQ(own_.response_flag(false), from_us_.sack_capable);
  EXPECT_TRUE(own_.announced());
  EXPECT_EQ(own_.response_flag(false), 0);
  own_.announce_again();
  EXPECT_EQ(own_.response_flag(false), from_us_.sack_capable);
}

TEST_F(PeerExtensionsTest, TakesThePiggybackedAckOutOfThePayload) {
  const std::array<std::byte, 6> bytes{std::byte{0xFF}, std::byte{0x01}, std::byte{0x02},
                                       std::byte{0x03}, std::byte{0xAA}, std::byte{0xBB}};
  wire::Packet p;
  p.bth = with(from_peer_.piggyback);
  p.payload = bytes;
  EXPECT_EQ(own_.take_piggyback(p), wire::Psn(0x010203));
  ASSERT_EQ(p.payload.size(), 2u);
  EXPECT_EQ(p.payload[0], std::byte{0xAA});
}

TEST_F(PeerExtensionsTest, LeavesATooShortPayloadUnchanged) {
  const std::array<std::byte, 3> bytes{};
  wire::Packet p;
  p.bth = with(from_peer_.piggyback);
  p.payload = bytes;
  EXPECT_FALSE(own_.take_piggyback(p));
  EXPECT_EQ(p.payload.size(), 3u);
}

TEST_F(PeerExtensionsTest, ANewConnectionDetectsCapabilitiesAnew) {
  own_.on_response(with(from_peer_.sack_capable));
  own_.on_request(with(from_peer_.sack));
  own_.response_flag(false);
  own_.connect(kOwn, kPeer);
  EXPECT_FALSE(own_.peer_buffers_requests());
  EXPECT_FALSE(own_.peer_reads_sack());
  EXPECT_FALSE(own_.announced());
}

TEST(PeerExtensionsSwitchedOff, NeitherSendsNorReadsFlags) {
  PeerExtensions off(false);
  off.connect(kOwn, kPeer);
  off.on_response(with(flags_sent_by(kPeer, kOwn).sack_capable));
  EXPECT_FALSE(off.peer_buffers_requests());
  EXPECT_FALSE(off.on_request(with(flags_sent_by(kPeer, kOwn).sack)));
  EXPECT_EQ(off.response_flag(false), 0);
  EXPECT_EQ(off.sack_flag(), 0);
}

}  // namespace
}  // namespace verbena::core

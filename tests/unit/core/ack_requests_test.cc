// Which packets of a requester ask for an ACK.
#include "core/ack_requests.h"

#include <gtest/gtest.h>

namespace verbena::core {
namespace {

// Packets of a long message up to the first that asks for an ACK, which is counted.
uint32_t packets_until_request(AckRequests& requests) {
  for (uint32_t packets = 1; packets <= 100; ++packets) {
    if (requests.next({})) return packets;
  }
  return 0;
}

TEST(AckRequests, LastPacketOfAMessageAsks) {
  AckRequests requests;
  EXPECT_FALSE(requests.next({}));
  EXPECT_TRUE(requests.next({.ends_message = true}));
}

TEST(AckRequests, EveryEighthPacketOfALongMessageAsks) {
  AckRequests requests;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(packets_until_request(requests), 8u);
}

TEST(AckRequests, CountsFromTheLastPacketThatAsked) {
  AckRequests requests;
  for (int i = 0; i < 5; ++i) requests.next({});
  EXPECT_TRUE(requests.next({.ends_message = true}));
  EXPECT_EQ(packets_until_request(requests), 8u);
}

TEST(AckRequests, LastPacketOfABurstAsks) {
  AckRequests requests;
  EXPECT_TRUE(requests.next({.ends_burst = true}));
}

TEST(AckRequests, PacketThatFillsTheWindowAsks) {
  AckRequests requests;
  EXPECT_TRUE(requests.next({.fills_window = true}));
}

TEST(AckRequests, EveryPacketAsksAtASlowRate) {
  AckRequests requests;
  EXPECT_TRUE(requests.next({.rate_limit_kbps = AckRequests::kSlowKbps - 1}));
  EXPECT_FALSE(requests.next({.rate_limit_kbps = AckRequests::kSlowKbps}));
}

TEST(AckRequests, CountsAnewAfterRestart) {
  AckRequests requests;
  for (int i = 0; i < 5; ++i) requests.next({});
  requests.restart();
  EXPECT_EQ(packets_until_request(requests), 8u);
}

}  // namespace
}  // namespace verbena::core

// PSNs, chunks and places of a send queue.
#include "core/send_cursor.h"

#include <vector>

#include "tests/unit/core/requester_parts_support.h"

namespace verbena::core {
namespace {

class SendCursorTest : public RequesterPartTest {};

TEST_F(SendCursorTest, AssignsPsnsInOrder) {
  post(SendOp::Send, 10);
  post(SendOp::Write, 3 * kPayload);
  advance();
  EXPECT_EQ(cursor_.next(), psn(1));
  EXPECT_EQ(cursor_.index(), 1u);
  advance();
  EXPECT_TRUE(cursor_.is_inside_request());
  advance();
  advance();
  EXPECT_FALSE(cursor_.is_inside_request());
  EXPECT_TRUE(cursor_.is_at_end());
  EXPECT_EQ(cursor_.next(), psn(4));
}

TEST_F(SendCursorTest, CountsPacketsOfAMessage) {
  SendWqe wqe;
  wqe.op = SendOp::Write;
  const std::vector<std::pair<uint32_t, uint32_t>> expected = {
      {0, 1}, {1, 1}, {kPayload, 1}, {kPayload + 1, 2}, {10 * kPayload, 10}};
  for (const auto& [length, packets] : expected) {
    wqe.length = length;
    EXPECT_EQ(SendCursor::packets_of(wqe, kPayload), packets) << length;
  }
  wqe.op = SendOp::FetchAdd;
  wqe.length = 8;
  EXPECT_EQ(SendCursor::packets_of(wqe, 4), 1u);
}

TEST_F(SendCursorTest, ChargesPayloadAndOverheadOfEachPacket) {
  post(SendOp::Write, 2 * kPayload + 10);
  const auto first = advance();
  advance();
  const auto last = advance();
  EXPECT_EQ(cursor_.cost_of(first), kPayload + PeerPath::kPacketOverhead);
  EXPECT_EQ(cursor_.cost_of(last), 10 + PeerPath::kPacketOverhead);
  EXPECT_EQ(cursor_.cost_of(psn(1)), kPayload + PeerPath::kPacketOverhead);
  EXPECT_EQ(SendCursor::cost_of(cursor_.queue().front(), 0, 3),
            2 * kPayload + 10 + 3 * PeerPath::kPacketOverhead);
}

TEST_F(SendCursorTest, ChargesAReadForItsResponse) {
  post(SendOp::Read, 4 * kPayload);
  EXPECT_EQ(cursor_.cost_of(advance()), 4 * (kPayload + PeerPath::kPacketOverhead));
}

TEST_F(SendCursorTest, SplitsALongReadIntoChunks) {
  const uint32_t chunk_packets = SendCursor::chunk_packets(kPayload, path_.window());
  post(SendOp::Read, (chunk_packets + 5) * kPayload);
  EXPECT_EQ(advance().packets, chunk_packets);
  const auto rest = advance();
  EXPECT_EQ(rest.packets, 5u);
  EXPECT_EQ(rest.first, psn(chunk_packets));
  EXPECT_TRUE(cursor_.is_at_end());
}

TEST_F(SendCursorTest, KeepsTheChunkSizeWhenTheWindowChanges) {
  post(SendOp::Read, 128 * 1024);
  const uint32_t before = advance().packets;
  for (int i = 0; i < 100; ++i) path_.on_timed_out(kStart);
  EXPECT_LT(SendCursor::chunk_packets(kPayload, path_.window()), before);
  EXPECT_EQ(advance().packets, before);
}

TEST_F(SendCursorTest, AResumedChunkKeepsItsEnd) {
  const uint32_t chunk_packets = SendCursor::chunk_packets(kPayload, path_.window());
  post(SendOp::Read, 2 * chunk_packets * kPayload);
  advance();
  const auto part = cursor_.chunk_at({0, 3});
  EXPECT_EQ(part.first, psn(3));
  EXPECT_EQ(part.end(), psn(chunk_packets));
}

TEST_F(SendCursorTest, FindsThePlaceOfEachOutstandingPsn) {
  for (const uint32_t packets : {1u, 3u, 1u, 2u}) post(SendOp::Write, packets * kPayload);
  while (!cursor_.is_at_end()) advance();
  const std::vector<std::pair<uint64_t, uint32_t>> expected = {{0, 0}, {1, 0}, {1, 1}, {1, 2},
                                                               {2, 0}, {3, 0}, {3, 1}};
  for (uint32_t n = 0; n < expected.size(); ++n) {
    const auto place = cursor_.place_of(psn(n));
    EXPECT_EQ(place.index, expected[n].first) << n;
    EXPECT_EQ(place.packet, expected[n].second) << n;
  }
}

TEST_F(SendCursorTest, FindsThePlaceInsideAPartlySentRequest) {
  post(SendOp::Write, 4 * kPayload);
  advance();
  advance();
  EXPECT_EQ(cursor_.place_of(psn(1)).packet, 1u);
}

TEST_F(SendCursorTest, IteratesOverChunksOfARangeOnly) {
  post(SendOp::Send, 3 * kPayload);
  post(SendOp::Read, 4 * kPayload);
  while (!cursor_.is_at_end()) advance();
  std::vector<std::pair<wire::Psn, uint32_t>> chunks;
  cursor_.for_each_chunk(psn(2), psn(5), [&](const SendWqe&, const SendCursor::Chunk& chunk) {
    chunks.emplace_back(chunk.first, chunk.packets);
  });
  EXPECT_EQ(chunks, (std::vector<std::pair<wire::Psn, uint32_t>>{{psn(2), 1}, {psn(3), 2}}));
  cursor_.for_each_chunk(psn(3), psn(3), [](const auto&, const auto&) { FAIL(); });
}

TEST_F(SendCursorTest, ReportsWhichPsnsAreOutstanding) {
  post(SendOp::Write, 3 * kPayload);
  while (!cursor_.is_at_end()) advance();
  cursor_.acknowledge(1);
  EXPECT_FALSE(cursor_.is_outstanding(psn(0)));
  EXPECT_TRUE(cursor_.is_outstanding(psn(1)));
  EXPECT_TRUE(cursor_.is_outstanding(psn(2)));
  EXPECT_FALSE(cursor_.is_outstanding(psn(3)));
  cursor_.acknowledge(2);
  EXPECT_FALSE(cursor_.has_outstanding());
}

TEST_F(SendCursorTest, RewindGivesOutstandingRequestsNewPsns) {
  post(SendOp::Write, 3 * kPayload);
  post(SendOp::Send, 8);
  post(SendOp::Send, 8);
  for (int i = 0; i < 4; ++i) advance();
  EXPECT_EQ(cursor_.rewind(), 2u);
  EXPECT_TRUE(cursor_.is_at_head());
  EXPECT_EQ(cursor_.next(), psn(0));
  EXPECT_FALSE(cursor_.request().numbered);
  cursor_.skip_request();  // the first request completes without a packet
  EXPECT_EQ(advance().first, psn(0));
}

TEST_F(SendCursorTest, DroppedPsnsAreUsedAgain) {
  post(SendOp::Write, 3 * kPayload);
  advance();
  cursor_.queue().clear();
  cursor_.drop_outstanding();
  EXPECT_TRUE(cursor_.is_at_head());
  EXPECT_FALSE(cursor_.is_inside_request());
  EXPECT_EQ(cursor_.next(), psn(0));
}

TEST_F(SendCursorTest, IsNotStartedAfterReset) {
  EXPECT_TRUE(cursor_.is_started());
  cursor_.reset();
  EXPECT_FALSE(cursor_.is_started());
}

}  // namespace
}  // namespace verbena::core

// Which packets are measured, and what their responses say.
#include "core/round_trip_sampler.h"

#include <gtest/gtest.h>

namespace verbena::core {
namespace {

constexpr Instant kStart{1'000'000'000};
constexpr auto kSent = [](int64_t us) { return kStart + microseconds(us); };

TEST(RoundTripSampler, MeasuresThePacketThatWasAcknowledged) {
  RoundTripSampler sampler;
  sampler.on_sent(wire::Psn(5), kSent(0));
  EXPECT_FALSE(sampler.on_acked_before(wire::Psn(5), kSent(10)));
  EXPECT_EQ(sampler.on_acked_before(wire::Psn(6), kSent(20)), microseconds(20));
  EXPECT_FALSE(sampler.on_acked_before(wire::Psn(7), kSent(30))) << "only once";
}

TEST(RoundTripSampler, AnAckOfSeveralPacketsMeasuresTheLatest) {
  RoundTripSampler sampler;
  sampler.on_sent(wire::Psn(0xFFFFFF), kSent(0));
  sampler.on_sent(wire::Psn(0), kSent(3));
  sampler.on_sent(wire::Psn(1), kSent(7));
  EXPECT_EQ(sampler.on_acked_before(wire::Psn(1), kSent(20)), microseconds(17));
  EXPECT_EQ(sampler.on_acked_before(wire::Psn(2), kSent(21)), microseconds(14));
}

TEST(RoundTripSampler, SpreadsThePacketsOverTheRoundTrip) {
  RoundTripSampler sampler;
  sampler.on_sent(wire::Psn(0), kSent(0));
  sampler.on_acked_before(wire::Psn(1), kSent(80));
  for (uint32_t psn = 1; psn <= 80; ++psn) sampler.on_sent(wire::Psn(psn), kSent(100 + psn));
  int samples = 0;
  for (uint32_t psn = 1; psn <= 80; ++psn) {
    const auto sample = sampler.on_acked_before(wire::Psn(psn + 1), kSent(180 + psn));
    if (!sample) continue;
    ++samples;
    EXPECT_EQ(*sample, microseconds(80));
  }
  EXPECT_EQ(samples, static_cast<int>(RoundTripSampler::kPackets));
}

TEST(RoundTripSampler, MeasuresPacketsBehindAGapAndKeepsTheOthers) {
  RoundTripSampler sampler;
  for (uint32_t psn = 0; psn < 3; ++psn) sampler.on_sent(wire::Psn(psn), kSent(psn));
  const auto is_second = [](wire::Psn psn) { return psn == wire::Psn(1); };
  EXPECT_EQ(sampler.on_received(is_second, kSent(11)), microseconds(10));
  EXPECT_FALSE(sampler.on_received(is_second, kSent(12)));
  EXPECT_EQ(sampler.on_acked_before(wire::Psn(3), kSent(20)), microseconds(18));
}

TEST(RoundTripSampler, ForgetsWhatWasRetransmitted) {
  RoundTripSampler sampler;
  sampler.on_sent(wire::Psn(0), kSent(0));
  sampler.clear();
  EXPECT_FALSE(sampler.on_acked_before(wire::Psn(1), kSent(50)));
}

}  // namespace
}  // namespace verbena::core

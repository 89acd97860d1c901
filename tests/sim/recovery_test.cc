// Lost packets are recovered, and no request is executed twice.
#include <gtest/gtest.h>

#include "tests/sim/pair_support.h"

namespace verbena::sim {
namespace {

using core::CounterId;
using core::WcStatus;
using wire::Verb;

void expect_success(const std::vector<core::Completion>& got, std::vector<uint64_t> wr_ids) {
  ASSERT_EQ(got.size(), wr_ids.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].wr_id, wr_ids[i]);
    EXPECT_EQ(got[i].status, WcStatus::Success) << "wr_id " << got[i].wr_id;
  }
}

TEST(Recovery, NoRetransmissionWithoutLoss) {
  Pair p;
  p.receive(1, 0, 5000);
  p.send(2, 8192, 5000);
  p.write(3, 16384, 40000);
  p.read(4, 65536, 100000);
  const uint64_t before = p.word_b(512 * 1024);
  p.fetch_add(5, 400000, 512 * 1024, 7);
  p.run_until_idle();
  expect_success(p.poll_a(), {2, 3, 4, 5});
  expect_success(p.poll_b(), {1});
  EXPECT_TRUE(equal(p.rb.at(0, 5000), p.ra.at(8192, 5000)));
  EXPECT_TRUE(equal(p.rb.at(16384, 40000), p.ra.at(16384, 40000)));
  EXPECT_TRUE(equal(p.rb.at(65536, 100000), p.ra.at(65536, 100000)));
  EXPECT_EQ(p.word_a(400000), before);
  EXPECT_EQ(p.word_b(512 * 1024), before + 7);
  EXPECT_EQ(p.counter_a(CounterId::retransmitted_packets), 0u);
  EXPECT_EQ(p.counter_a(CounterId::timeouts), 0u);
}

TEST(Recovery, RecoversALostAck) {
  Pair p;
  int lost = 0;
  p.drop_first([](HostId from, const auto& q) { return from == kB && is_verb(q, Verb::Ack); },
               &lost);
  p.receive(1, 0, 64);
  p.receive(2, 64, 64);
  p.send(3, 8192, 64);
  p.run_until_idle();
  EXPECT_EQ(lost, 1);
  expect_success(p.poll_a(), {3});
  expect_success(p.poll_b(), {1});  // delivered once
  EXPECT_EQ(p.counter_a(CounterId::timeouts), 1u);
  EXPECT_EQ(p.counter_b(CounterId::duplicate_requests), 1u);
}

TEST(Recovery, RecoversALostAtomicResponseWithoutASecondExecution) {
  Pair p;
  const uint64_t before = p.word_b(0);
  p.drop_first([](HostId, const auto& q) { return is_verb(q, Verb::AtomicAck); });
  p.fetch_add(1, 4096, 0, 5);
  p.fetch_add(2, 4104, 0, 5);
  p.run_until_idle();
  expect_success(p.poll_a(), {1, 2});
  EXPECT_EQ(p.word_b(0), before + 10);
  EXPECT_EQ(p.word_a(4096), before);
  EXPECT_EQ(p.word_a(4104), before + 5);
}

TEST(Recovery, RecoversALossAtAnyPositionOfALongMessage) {
  constexpr uint32_t kPackets = 12;
  for (uint32_t lost = 0; lost < kPackets; ++lost) {
    for (const Verb verb : {Verb::Send, Verb::Write, Verb::ReadResponse}) {
      Pair p({.psn_a = 0xFFFFFA});
      const wire::Psn psn = wire::Psn(0xFFFFFA) + lost;
      p.drop_first([&](HostId, const auto& q) { return is_verb(q, verb) && q.bth.psn == psn; });
      p.receive(1, 0, 1024 * kPackets);
      if (verb == Verb::Send) p.send(2, 0, 1024 * kPackets - 5);
      if (verb == Verb::Write) p.write(2, 0, 1024 * kPackets - 5);
      if (verb == Verb::ReadResponse) p.read(2, 0, 1024 * kPackets - 5);
      p.run_until_idle();
      expect_success(p.poll_a(), {2});
      EXPECT_TRUE(equal(p.ra.at(0, 1024 * kPackets - 5), p.rb.at(0, 1024 * kPackets - 5)));
    }
  }
}

TEST(Recovery, RequestsReadResponsesFromTheLostOneOn) {
  Pair p({.mtu = wire::Mtu::k1024});
  p.drop_first([](HostId, const auto& q) {
    return is_verb(q, Verb::ReadResponse) && q.bth.psn == wire::Psn(5);
  });
  p.read(1, 0, 16 * 1024);
  p.run_until_idle();
  expect_success(p.poll_a(), {1});
  EXPECT_TRUE(equal(p.ra.at(0, 16384), p.rb.at(0, 16384)));
  EXPECT_EQ(p.counter_a(CounterId::implied_naks), 1u);
  EXPECT_EQ(p.counter_a(CounterId::timeouts), 0u);  // the packets behind the gap reported it
  EXPECT_EQ(p.counter_b(CounterId::duplicate_requests), 1u);
}

// A long READ is sent as several requests. The responder records each separately, so a
// retransmitted one must not extend into the next.
TEST(Recovery, RecoversALongReadAcrossItsRequests) {
  for (uint32_t lost = 0; lost < 300; lost += 7) {
    Pair p({.mtu = wire::Mtu::k1024, .read_depth_a = 2});
    p.drop_first([&](HostId, const auto& q) {
      return is_verb(q, Verb::ReadResponse) && q.bth.psn == wire::Psn(lost);
    });
    p.read(1, 0, 300 * 1024);
    p.run_until_idle();
    expect_success(p.poll_a(), {1});
    EXPECT_TRUE(equal(p.ra.at(0, 300 * 1024), p.rb.at(0, 300 * 1024)));
    EXPECT_EQ(p.counter_b(CounterId::duplicate_dropped), 0u);
    if (testing::Test::HasFailure()) FAIL() << "lost " << lost;
  }
}

TEST(Recovery, DuplicateReadRequestGetsASecondHarmlessResponse) {
  Pair p;
  p.world.network().link(kA, kB).packet.duplicate = 1;
  for (uint64_t i = 0; i < 12; ++i) p.read(i, i * 4096, 4096);
  p.run_until_idle();
  EXPECT_EQ(p.poll_a().size(), 12u);
  EXPECT_TRUE(equal(p.ra.at(0, 12 * 4096), p.rb.at(0, 12 * 4096)));
  EXPECT_EQ(p.qb.state(), core::QpState::Rts);
}

// The region of a completed READ may be deregistered; a late duplicate of its request must not fail
// either side.
TEST(Recovery, IgnoresALateDuplicateReadOfADeregisteredRegion) {
  Pair p;
  p.world.network().link(kA, kB).packet.duplicate = 1;
  p.world.network().link(kA, kB).jitter = milliseconds(1);
  bool dereg = false;
  p.read(1, 0, 64);
  while (p.world.step()) {
    if (!dereg && !p.cq_a.empty()) {
      dereg = true;
      ASSERT_TRUE(p.b.engine().memory().remove_region(p.rb.key).ok());
    }
  }
  p.run_until_idle();
  expect_success(p.poll_a(), {1});
  EXPECT_EQ(p.qb.state(), core::QpState::Rts);
  EXPECT_TRUE(p.b.failures.empty());
}

TEST(Recovery, SurvivesAReorderingNetwork) {
  Pair p({.mtu = wire::Mtu::k256, .psn_a = 0xFFFFF0});
  for (const auto& [from, to] : {std::pair{kA, kB}, std::pair{kB, kA}}) {
    p.world.network().link(from, to).jitter = microseconds(30);
  }
  for (uint64_t i = 0; i < 4; ++i) p.receive(100 + i, i * 20000, 20000);
  for (uint64_t i = 0; i < 4; ++i) {
    p.send(i * 3, 200000 + i * 20000, 20000);
    p.write(i * 3 + 1, 400000 + i * 20000, 20000);
    p.read(i * 3 + 2, 600000 + i * 20000, 20000);
  }
  p.run_until_idle();
  expect_success(p.poll_a(), {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  expect_success(p.poll_b(), {100, 101, 102, 103});
  EXPECT_TRUE(equal(p.rb.at(0, 80000), p.ra.at(200000, 80000)));
  EXPECT_TRUE(equal(p.rb.at(400000, 80000), p.ra.at(400000, 80000)));
  EXPECT_TRUE(equal(p.rb.at(600000, 80000), p.ra.at(600000, 80000)));
}

TEST(Recovery, HandlesPsnWrap) {
  for (uint32_t start = 0xFFFFF8; start <= 0xFFFFFF; ++start) {
    Pair p({.mtu = wire::Mtu::k256, .psn_a = start});
    p.receive(1, 0, 2000);
    p.send(2, 4096, 2000);
    p.read(3, 8192, 2000);
    p.write(4, 16384, 2000);
    p.fetch_add(5, 32768, 65536, 1);
    p.run_until_idle();
    expect_success(p.poll_a(), {2, 3, 4, 5});
    EXPECT_TRUE(equal(p.rb.at(0, 2000), p.ra.at(4096, 2000)));
    EXPECT_TRUE(equal(p.rb.at(8192, 2000), p.ra.at(8192, 2000)));
    EXPECT_TRUE(equal(p.rb.at(16384, 2000), p.ra.at(16384, 2000)));
  }
}

}  // namespace
}  // namespace verbena::sim

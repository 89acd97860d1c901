// Both ends of a connection in one agent, and in two agents of one host.
#include "tests/unit/cm/agent_support.h"

namespace verbena::cm {
namespace {

class LoopbackTest : public AgentTest {
 public:
  // Delivers until it is quiet. `other` is a second process of the same host, or none.
  void deliver(Agent* other = nullptr) {
    for (bool quiet = false; !quiet;) {
      quiet = true;
      for (Agent* from : {&agent_, other}) {
        OutgoingMad mad;
        while (from != nullptr && from->next_mad(mad)) {
          quiet = false;
          EXPECT_EQ(mad.source, us_);
          EXPECT_EQ(mad.destination, us_);
          for (Agent* to : {&agent_, other}) {  // each looks whether it is meant
            if (to != nullptr) to->on_mad({mad.source, mad.destination, mad.bytes}, now_);
          }
        }
      }
    }
  }
  ConnectParameters to_ourselves(uint32_t qpn) const {
    ConnectParameters p = connect_parameters();
    p.addresses = {us_, us_, us_, us_, 4444, 0, kService};
    p.qpn = wire::Qpn(qpn);
    return p;
  }
};

TEST_F(LoopbackTest, OneAgentTalksToItself) {
  listen();
  for (uint32_t round = 0; round < 3; ++round) {
    const uint32_t active = agent_.connect(to_ourselves(0x100 + round), now_).value();
    deliver();
    const uint32_t passive = event_one(EventKind::ConnectRequest).id;
    EXPECT_NE(active, passive);
    AcceptParameters accept = accept_parameters();
    accept.qpn = wire::Qpn(0x200 + round);
    ASSERT_TRUE(agent_.accept(passive, accept, now_).ok());
    deliver();
    EXPECT_EQ(event_one(EventKind::ConnectResponse).id, active);
    ASSERT_TRUE(agent_.establish(active).ok());
    deliver();
    EXPECT_EQ(event_one(EventKind::Established).id, passive);
    EXPECT_EQ(agent_.info(active)->remote_qpn, agent_.info(passive)->local_qpn);
    EXPECT_EQ(agent_.info(passive)->remote_qpn, agent_.info(active)->local_qpn);
    ASSERT_TRUE(agent_.disconnect(active, {}, now_).ok());
    deliver();
    EXPECT_EQ(event_kinds(), std::vector(2, EventKind::Disconnected));
    EXPECT_EQ(agent_.exchange_count(), 2u);
    next_deadline();
    EXPECT_EQ(event_kinds(), std::vector(2, EventKind::TimewaitExit));
    expect_empty();
  }
}

TEST_F(LoopbackTest, BothEndsDisconnectAtOnce) {
  listen();
  const uint32_t active = agent_.connect(to_ourselves(0x100), now_).value();
  deliver();
  const uint32_t passive = event_one(EventKind::ConnectRequest).id;
  ASSERT_TRUE(agent_.accept(passive, accept_parameters(), now_).ok());
  deliver();
  ASSERT_TRUE(agent_.establish(active).ok());
  deliver();
  events();
  ASSERT_TRUE(agent_.disconnect(active, {}, now_).ok());
  ASSERT_TRUE(agent_.disconnect(passive, {}, now_).ok());
  deliver();
  EXPECT_EQ(event_kinds(), std::vector(2, EventKind::Disconnected));
}

TEST_F(LoopbackTest, TwoProcessesOfOneHost) {
  AgentConfig other_config = config();
  other_config.slot = kSlot + 1;
  other_config.secret = {33, 44};
  Agent other(other_config);
  // Requests go to who listens: here only `other` is asked, as an owner's directory would do.
  ASSERT_TRUE(other.listen({.service_id = kService}).ok());
  const uint32_t active = agent_.connect(to_ourselves(0x030001), now_).value();
  OutgoingMad req;
  ASSERT_TRUE(agent_.next_mad(req));
  other.on_mad({req.source, req.destination, req.bytes}, now_);
  Event request;
  ASSERT_TRUE(other.next_event(request));
  EXPECT_EQ(request.id >> 24, kSlot + 1u);
  ASSERT_TRUE(other.accept(request.id, accept_parameters(), now_).ok());
  deliver(&other);
  event_one(EventKind::ConnectResponse);
  ASSERT_TRUE(agent_.establish(active).ok());
  deliver(&other);
  Event established;
  ASSERT_TRUE(other.next_event(established));
  EXPECT_EQ(established.kind, EventKind::Established);
  EXPECT_GT(agent_.counters()[CounterId::wrong_slot], 0u);  // its own RTU, which it overheard
}

}  // namespace
}  // namespace verbena::cm

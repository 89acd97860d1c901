// MADs that belong to no connection, limits, and both ends of a connection in one agent or in two
// agents of one host.
#include "cm/agent.h"

#include "base/bytes.h"
#include "tests/unit/cm/agent_support.h"

namespace verbena::cm {
namespace {

TEST_F(AgentTest, CountsMalformedAndUnsupportedMads) {
  Mad mad;
  peer_req().store(mad);
  agent_.on_mad({peer_, us_, std::span(mad).first(255)}, now_);
  agent_.on_mad({peer_, us_, {}}, now_);
  mad[1] = std::byte{0x03};  // subnet administration
  agent_.on_mad({peer_, us_, mad}, now_);
  EXPECT_EQ(counter(CounterId::malformed_mads), 3u);
  peer_req().store(mad);
  mad[17] = std::byte{0x01};  // ClassPortInfo
  agent_.on_mad({peer_, us_, mad}, now_);
  mad[17] = std::byte{0x1A};  // APR, but we sent no LAP
  agent_.on_mad({peer_, us_, mad}, now_);
  EXPECT_EQ(counter(CounterId::unsupported_mads), 2u);
  EXPECT_EQ(counter(CounterId::mads_received), 5u);
  expect_empty();
}

TEST_F(AgentTest, IgnoresMessagesForOtherSlots) {
  const uint32_t other = uint32_t{kSlot + 1} << 24 | 5;
  receive(peer_rep(other));
  receive(peer_rtu(other));
  receive(peer_dreq(other));
  receive(peer_drep(other));
  receive(peer_rej(other, RejectReason::Consumer, About::Req));
  receive(peer_mra(other, About::Req, 20));
  SidrRep reply;
  reply.request_id = other;
  receive(reply);
  EXPECT_EQ(counter(CounterId::wrong_slot), 7u);
  expect_empty();
}

// The process of that slot was killed, and its messages reach this agent.
TEST_F(AgentTest, RespondsForAnEndedProcess) {
  const uint32_t ended = uint32_t{kSlot + 1} << 24 | 5;
  const auto receive_for_ended = [this](const auto& message) {
    Mad mad;
    message.store(mad);
    agent_.on_mad({.source = peer_, .destination = us_, .bytes = mad, .slot_is_unclaimed = true},
                  now_);
  };
  receive_for_ended(peer_dreq(ended));
  const Drep drep = sent_one<Drep>();
  EXPECT_EQ(drep.local_comm_id, ended);
  EXPECT_EQ(drep.remote_comm_id, kPeerId);
  receive_for_ended(peer_rep(ended));
  EXPECT_EQ(sent_one<Rej>().reason, RejectReason::InvalidCommId);
  receive_for_ended(peer_rtu(ended));
  EXPECT_EQ(sent_one<Rej>().local_comm_id, ended);
  receive_for_ended(peer_drep(ended));
  EXPECT_EQ(counter(CounterId::wrong_slot), 0u);
  expect_empty();
}

TEST_F(AgentTest, RespondsToUnknownIds) {
  const uint32_t id = uint32_t{kSlot} << 24 | 5;
  receive(peer_rtu(id));
  EXPECT_EQ(sent_one<Rej>().reason, RejectReason::InvalidCommId);
  receive(peer_dreq(id));
  EXPECT_EQ(sent_one<Drep>().remote_comm_id, kPeerId);
  receive(peer_drep(id));
  receive(peer_mra(id, About::Req, 20));
  receive(peer_rej(id, RejectReason::Consumer, About::Req));
  EXPECT_EQ(counter(CounterId::unknown_id), 5u);
  expect_empty();
}

TEST_F(AgentTest, RejectsAlternatePaths) {
  const uint32_t id = established_active();
  Mad mad{};
  MadHeader header;
  header.attribute = Attribute::Lap;
  header.tid = 5;
  header.store(mad.data());
  store_be32(mad.data() + 24, kPeerId);
  store_be32(mad.data() + 28, id);
  agent_.on_mad({peer_, us_, mad}, now_);
  const Apr apr = sent_one<Apr>();
  EXPECT_EQ(apr.tid, 5u);
  EXPECT_EQ(apr.local_comm_id, id);
  EXPECT_EQ(apr.remote_comm_id, kPeerId);
  EXPECT_EQ(apr.status, kAlternatePathNotSupported);
  EXPECT_EQ(counter(CounterId::alternate_paths_refused), 1u);
}

TEST_F(AgentTest, LimitsTheNumberOfConnections) {
  listen(1000);
  for (uint32_t i = 1; i <= 64; ++i) receive(peer_req(i, i));
  EXPECT_EQ(events().size(), 64u);
  receive(peer_req(65, 65));
  EXPECT_EQ(sent_one<Rej>().reason, RejectReason::NoResources);
  EXPECT_EQ(counter(CounterId::too_many_connections), 1u);
}

class LoopbackTest : public AgentTest {
 public:
  // Delivers messages until there are none. `other` is a second process of the same host, or null.
  void deliver(Agent* other = nullptr) {
    for (bool idle = false; !idle;) {
      idle = true;
      for (Agent* from : {&agent_, other}) {
        OutgoingMad mad;
        while (from != nullptr && from->next_mad(mad)) {
          idle = false;
          EXPECT_EQ(mad.source, us_);
          EXPECT_EQ(mad.destination, us_);
          for (Agent* to : {&agent_, other}) {  // each agent checks whether the message is for it
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

TEST_F(LoopbackTest, ConnectsOneAgentToItself) {
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

TEST_F(LoopbackTest, ConnectsTwoProcessesOfOneHost) {
  AgentConfig other_config = config();
  other_config.slot = kSlot + 1;
  other_config.secret = {33, 44};
  Agent other(other_config);
  // Only `other` gets the REQ, because a slot directory delivers a REQ to the listening process.
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
  EXPECT_GT(agent_.counters()[CounterId::wrong_slot],
            0u);  // deliver() also gave the agent its own RTU
}

}  // namespace
}  // namespace verbena::cm

// Disconnecting, TIMEWAIT and stale connections.
#include <cerrno>

#include "tests/unit/cm/agent_support.h"

namespace verbena::cm {
namespace {

class ConnectionEndingTest : public AgentTest {};

TEST_F(ConnectionEndingTest, DisconnectSendsDreqAndEntersTimewait) {
  const uint32_t id = established_active();
  ASSERT_TRUE(agent_.disconnect(id, bytes_of("bye"), now_).ok());
  const Dreq dreq = sent_one<Dreq>();
  EXPECT_EQ(dreq.local_comm_id, id);
  EXPECT_EQ(dreq.remote_comm_id, kPeerId);
  EXPECT_EQ(dreq.remote_qpn.value(), kPeerQpn);
  EXPECT_EQ(text_of(dreq.private_data, 3), "bye");
  EXPECT_TRUE(events().empty());
  ASSERT_TRUE(agent_.disconnect(id, {}, now_).ok());  // a second call has no effect
  EXPECT_TRUE(sent().empty());
  next_deadline();
  EXPECT_EQ(sent_one<Dreq>().tid, dreq.tid);
  receive(peer_drep(id));
  const Event disconnected = event_one(EventKind::Disconnected);
  EXPECT_EQ(disconnected.id, id);
  EXPECT_EQ(disconnected.error, 0);
  EXPECT_EQ(agent_.next_deadline(), now_ + iba_time(17));
  receive(peer_drep(id));
  EXPECT_TRUE(events().empty());
  next_deadline();
  EXPECT_EQ(event_one(EventKind::TimewaitExit).id, id);
  expect_empty();
}

TEST_F(ConnectionEndingTest, DreqOfThePeerEndsTheConnection) {
  for (const bool active : {true, false}) {
    const uint32_t id = active ? established_active() : established_passive();
    Dreq dreq = peer_dreq(id);
    dreq.private_data[0] = std::byte{9};
    receive(dreq);
    const Drep drep = sent_one<Drep>();
    EXPECT_EQ(drep.tid, dreq.tid);
    EXPECT_EQ(drep.local_comm_id, id);
    EXPECT_EQ(drep.remote_comm_id, kPeerId);
    const Event disconnected = event_one(EventKind::Disconnected);
    EXPECT_EQ(disconnected.private_data.bytes[0], std::byte{9});
    EXPECT_TRUE(agent_.disconnect(id, {}, now_).ok());  // as programs do on the event
    EXPECT_TRUE(sent().empty());
    receive(dreq);  // DREP was lost
    sent_one<Drep>();
    EXPECT_TRUE(events().empty());
    next_deadline();
    event_one(EventKind::TimewaitExit);
    receive(dreq);  // after TIMEWAIT the ID is unknown
    EXPECT_EQ(sent_one<Drep>().remote_comm_id, kPeerId);
    expect_empty();
  }
}

TEST_F(ConnectionEndingTest, BothDisconnectAtOnce) {
  const uint32_t id = established_active();
  ASSERT_TRUE(agent_.disconnect(id, {}, now_).ok());
  sent();
  receive(peer_dreq(id));
  sent_one<Drep>();
  event_one(EventKind::Disconnected);
  receive(peer_drep(id));
  EXPECT_TRUE(events().empty());
  next_deadline();
  EXPECT_TRUE(sent().empty());  // our DREQ is not retransmitted
  event_one(EventKind::TimewaitExit);
  expect_empty();
}

TEST_F(ConnectionEndingTest, RetransmitsDreqAndGivesUp) {
  const uint32_t id = established_active();
  ASSERT_TRUE(agent_.disconnect(id, {}, now_).ok());
  sent();
  // The peer may have responded and ended: the waits do not grow, and only the last is a full one.
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(agent_.next_deadline(), now_ + milliseconds(250));
    next_deadline();
    sent_one<Dreq>();
  }
  EXPECT_EQ(agent_.next_deadline(), now_ + iba_time(20) + iba_time(17));
  next_deadline();
  EXPECT_EQ(event_one(EventKind::Disconnected).error, ETIMEDOUT);
  next_deadline();
  event_one(EventKind::TimewaitExit);
  expect_empty();
}

TEST_F(ConnectionEndingTest, PortUnreachableEndsTheDisconnect) {
  const uint32_t id = established_active();
  ASSERT_TRUE(agent_.disconnect(id, {}, now_).ok());
  const uint64_t tid = sent_one<Dreq>().tid;
  next_deadline();
  sent();
  return_undelivered(ipv4(9), tid, ECONNREFUSED);
  EXPECT_TRUE(events().empty());
  return_undelivered(peer_, tid, ECONNREFUSED);
  EXPECT_EQ(event_one(EventKind::Disconnected).error, 0);
  EXPECT_TRUE(sent().empty());
  next_deadline();
  event_one(EventKind::TimewaitExit);
  expect_empty();
}

TEST_F(ConnectionEndingTest, AcceptsADreqThatOvertakesRtu) {
  listen();
  const uint32_t id = receive_request();
  ASSERT_TRUE(agent_.accept(id, accept_parameters(), now_).ok());
  sent();
  receive(peer_dreq(id));
  sent_one<Drep>();
  event_one(EventKind::Disconnected);
  receive(peer_rtu(id));
  EXPECT_TRUE(events().empty());
}

TEST_F(ConnectionEndingTest, DisconnectsBeforeRtu) {
  listen();
  const uint32_t id = receive_request();
  ASSERT_TRUE(agent_.accept(id, accept_parameters(), now_).ok());
  sent();
  ASSERT_TRUE(agent_.disconnect(id, {}, now_).ok());
  EXPECT_EQ(sent_one<Dreq>().remote_qpn.value(), kPeerQpn);
  receive(peer_rtu(id));  // too late
  EXPECT_TRUE(events().empty());
  receive(peer_drep(id));
  event_one(EventKind::Disconnected);
  receive(peer_req());  // the peer never saw our REP
  EXPECT_EQ(sent_one<Rej>().reason, RejectReason::StaleConnection);
}

TEST_F(ConnectionEndingTest, AcceptsADreqBeforeEstablish) {
  const uint32_t id = connect();
  receive(peer_rep(id));
  sent();
  events();
  receive(peer_dreq(id));
  sent_one<Drep>();
  event_one(EventKind::Disconnected);
  EXPECT_EQ(agent_.establish(id).error().code, EINVAL);
}

TEST_F(ConnectionEndingTest, AcceptsADreqBeforeRep) {
  const uint32_t id = connect();
  sent();
  receive(peer_dreq(id));
  sent_one<Drep>();
  EXPECT_TRUE(events().empty());
  receive(peer_rej(id, RejectReason::StaleConnection, About::Req));
  event_one(EventKind::Rejected);
  expect_empty();
}

TEST_F(ConnectionEndingTest, ALateRejEndsTheConnection) {
  const uint32_t id = established_active();
  receive(peer_rej(id, RejectReason::Timeout, About::Other));
  const Event disconnected = event_one(EventKind::Disconnected);
  EXPECT_EQ(disconnected.error, ECONNRESET);
  EXPECT_EQ(disconnected.reason, RejectReason::Timeout);
  receive(peer_rej(id, RejectReason::Timeout, About::Other));
  EXPECT_TRUE(events().empty());
  next_deadline();
  event_one(EventKind::TimewaitExit);
}

TEST_F(ConnectionEndingTest, DropsADreqOfAnotherQueuePair) {
  const uint32_t id = established_active();
  Dreq dreq = peer_dreq(id);
  dreq.remote_qpn = wire::Qpn(kOurQpn + 1);
  receive(dreq);
  EXPECT_EQ(counter(CounterId::wrong_qpn), 1u);
  receive(peer_dreq(id), ipv4(66));
  EXPECT_EQ(counter(CounterId::wrong_source), 1u);
  dreq = peer_dreq(id);
  dreq.local_comm_id ^= 1;
  receive(dreq);
  EXPECT_EQ(counter(CounterId::unexpected), 1u);
  EXPECT_TRUE(sent().empty());
  EXPECT_TRUE(events().empty());
}

TEST_F(ConnectionEndingTest, DestroyedConnectionDisconnectsSilently) {
  const uint32_t id = established_active();
  agent_.destroy(id, now_);
  sent_one<Dreq>();
  EXPECT_EQ(agent_.info(id), nullptr);
  EXPECT_EQ(agent_.disconnect(id, {}, now_).error().code, EINVAL);
  next_deadline();
  sent_one<Dreq>();  // it is retransmitted nevertheless
  receive(peer_drep(id));
  next_deadline();
  expect_empty();
}

TEST_F(ConnectionEndingTest, CanBeDestroyedInEveryLateState) {
  uint32_t id = established_active();
  ASSERT_TRUE(agent_.disconnect(id, {}, now_).ok());
  sent();
  agent_.destroy(id, now_);
  EXPECT_TRUE(sent().empty());
  receive(peer_drep(id));
  agent_.destroy(id, now_);  // twice is harmless
  next_deadline();
  expect_empty();
  id = established_active();
  receive(peer_dreq(id));
  sent();
  events();
  agent_.destroy(id, now_);
  next_deadline();
  expect_empty();
}

TEST_F(ConnectionEndingTest, DestroyRemovesPendingEvents) {
  listen();
  const uint32_t id = connect();
  receive(peer_req(kPeerId + 1, kPeerQpn + 1));
  receive(peer_rep(id));
  agent_.destroy(id, now_);
  EXPECT_NE(event_one(EventKind::ConnectRequest).id, id);
  const uint32_t rejected = connect();
  receive(peer_rej(rejected, RejectReason::Consumer, About::Req));
  agent_.destroy(rejected, now_);  // already ended, but the event is not delivered yet
  EXPECT_TRUE(events().empty());
}

TEST_F(ConnectionEndingTest, SpuriousDeadlinesAreHarmless) {
  connect();
  sent();
  agent_.on_deadline(now_);
  EXPECT_TRUE(sent().empty());
  Agent idle(config());
  idle.on_deadline(now_ + seconds(1000));
  EXPECT_EQ(idle.next_deadline(), kNever);
}

// --------------------------------------------------------------------------------------- stale

// The peer ended and restarted, and its new queue pair has the number of the old one.
TEST_F(ConnectionEndingTest, RejectsAReqFromAConnectedQueuePairAsStale) {
  const uint32_t id = established_passive();
  receive(peer_req(kPeerId + 1));
  const auto all = sent();
  ASSERT_EQ(all.size(), 2u);
  const Rej rej = Rej::load(all[0].bytes);
  EXPECT_EQ(rej.reason, RejectReason::StaleConnection);
  EXPECT_EQ(rej.remote_comm_id, kPeerId + 1);
  EXPECT_EQ(Dreq::load(all[1].bytes).remote_comm_id, kPeerId);
  EXPECT_EQ(counter(CounterId::stale_connections), 1u);
  receive(peer_drep(id));
  event_one(EventKind::Disconnected);
  receive(peer_req(kPeerId + 2));  // still stale until TIMEWAIT ends
  EXPECT_EQ(sent_one<Rej>().reason, RejectReason::StaleConnection);
  next_deadline();
  event_one(EventKind::TimewaitExit);
  receive(peer_req(kPeerId + 3));
  event_one(EventKind::ConnectRequest);
}

TEST_F(ConnectionEndingTest, RejectsAReqWithAUsedIdAsStale) {
  established_passive();
  Req req = peer_req(kPeerId, kPeerQpn + 1);
  req.tid ^= 1;
  receive(req);
  const auto all = sent_attributes();
  EXPECT_EQ(all, (std::vector{Attribute::Rej, Attribute::Dreq}));
  EXPECT_TRUE(events().empty());
}

// Lifelines report processes of this host that end, and any user of the host can send such a REQ.
TEST_F(ConnectionEndingTest, AStaleReqEndsNoConnectionWithinAHost) {
  const uint32_t id = established_passive();
  watched_ = true;
  receive(peer_req(kPeerId + 1));
  EXPECT_EQ(sent_one<Rej>().reason, RejectReason::StaleConnection);
  Req same_id = peer_req(kPeerId, kPeerQpn + 1);
  same_id.tid ^= 1;
  receive(same_id);
  EXPECT_EQ(sent_one<Rej>().reason, RejectReason::StaleConnection);
  EXPECT_EQ(counter(CounterId::stale_connections), 2u);
  EXPECT_TRUE(events().empty());
  receive(peer_dreq(id));
  event_one(EventKind::Disconnected);
}

// A peer that gives up its REQ names only its own ID. A guessed ID must not end a connection.
TEST_F(ConnectionEndingTest, ARejWithoutOurIdEndsNoConnection) {
  const uint32_t id = established_passive();
  Rej rej = peer_rej(id, RejectReason::Timeout, About::Other);
  rej.remote_comm_id = 0;
  receive(rej);
  EXPECT_EQ(counter(CounterId::unexpected), 1u);
  EXPECT_TRUE(events().empty());
  EXPECT_NE(agent_.info(id), nullptr);
}

TEST_F(ConnectionEndingTest, AcceptsTheSameQpnFromAnotherHost) {
  established_passive();
  Req req = peer_req();
  req.primary.local_gid = ipv4(66);
  receive(req, ipv4(66));
  event_one(EventKind::ConnectRequest);
  EXPECT_TRUE(sent().empty());
}

TEST_F(ConnectionEndingTest, RejectsARepFromAConnectedQueuePairAsStale) {
  const uint32_t old = established_active();
  const uint32_t id = connect();
  sent();
  Rep rep = peer_rep(id);
  rep.local_comm_id = kPeerId + 1;
  receive(rep);
  const auto all = sent();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(Rej::load(all[0].bytes).reason, RejectReason::StaleConnection);
  EXPECT_EQ(Rej::load(all[0].bytes).about, About::Rep);
  EXPECT_EQ(Dreq::load(all[1].bytes).local_comm_id, old);
  EXPECT_TRUE(events().empty());
  EXPECT_NE(agent_.info(id), nullptr);  // it still retransmits the REQ
}

TEST_F(ConnectionEndingTest, DropsARepWithAUsedId) {
  established_active();
  const uint32_t id = connect();
  sent();
  receive(peer_rep(id));
  EXPECT_EQ(counter(CounterId::unexpected), 1u);
  EXPECT_TRUE(sent().empty());
  EXPECT_TRUE(events().empty());
}

// Programs without queue pairs send QPN 0, which reserves nothing.
TEST_F(ConnectionEndingTest, QueuePairZeroIsNeverStale) {
  listen();
  receive(peer_req(1, 0));
  receive(peer_req(2, 0));
  EXPECT_EQ(events().size(), 2u);
}

// Every message in every state, from a peer that violates the protocol: the only event is the end
// of the connection.
TEST_F(ConnectionEndingTest, SurvivesAnyMessageInAnyState) {
  using Beginning = uint32_t (*)(AgentTest&);
  const Beginning setups[] = {
      [](AgentTest& t) { return t.connect(); },
      [](AgentTest& t) {
        const uint32_t id = t.connect();
        t.receive(t.peer_rep(id));
        return id;
      },
      [](AgentTest& t) { return t.established_active(); },
      [](AgentTest& t) { return t.listen(), t.receive_request(); },
      [](AgentTest& t) {
        t.listen();
        const uint32_t id = t.receive_request();
        EXPECT_TRUE(t.agent_.accept(id, t.accept_parameters(), t.now_).ok());
        return id;
      },
      [](AgentTest& t) { return t.established_passive(); },
      [](AgentTest& t) {
        const uint32_t id = t.established_active();
        EXPECT_TRUE(t.agent_.disconnect(id, {}, t.now_).ok());
        return id;
      },
      [](AgentTest& t) {
        const uint32_t id = t.established_passive();
        t.receive(t.peer_dreq(id));
        return id;
      },
      [](AgentTest& t) {
        t.listen();
        const uint32_t id = t.receive_request();
        EXPECT_TRUE(t.agent_.reject(id, RejectReason::Consumer, {}, {}, t.now_).ok());
        return id;
      },
  };
  using Message = void (*)(AgentTest&, uint32_t);
  const Message messages[] = {
      [](AgentTest& t, uint32_t) { t.receive(t.peer_req()); },
      [](AgentTest& t, uint32_t id) { t.receive(t.peer_rep(id)); },
      [](AgentTest& t, uint32_t id) { t.receive(t.peer_rtu(id)); },
      [](AgentTest& t, uint32_t id) { t.receive(t.peer_mra(id, About::Req, 10)); },
      [](AgentTest& t, uint32_t id) { t.receive(t.peer_mra(id, About::Rep, 10)); },
      [](AgentTest& t, uint32_t id) {
        t.receive(t.peer_rej(id, RejectReason::Consumer, About::Req));
      },
      [](AgentTest& t, uint32_t id) {
        t.receive(t.peer_rej(id, RejectReason::Timeout, About::Other));
      },
      [](AgentTest& t, uint32_t id) { t.receive(t.peer_dreq(id)); },
      [](AgentTest& t, uint32_t id) { t.receive(t.peer_drep(id)); },
  };
  class OneCase : public AgentTest {
    void TestBody() override {}
  };
  for (size_t s = 0; s < std::size(setups); ++s) {
    for (size_t m = 0; m < std::size(messages); ++m) {
      for (size_t n = 0; n < std::size(messages); ++n) {
        SCOPED_TRACE(testing::Message() << "state " << s << ", messages " << m << ", " << n);
        OneCase t;
        const uint32_t id = setups[s](t);
        t.events();
        t.sent();
        messages[m](t, id);
        messages[n](t, id);
        size_t ends = 0;
        while (t.agent_.next_deadline() != kNever) t.next_deadline();
        for (const Event& e : t.events()) {
          if (e.id != id) continue;
          ends += e.kind == EventKind::Rejected || e.kind == EventKind::Unreachable ||
                  e.kind == EventKind::TimewaitExit;
        }
        EXPECT_LE(ends, 1u);
        EXPECT_LE(t.agent_.exchange_count(), 2u);
        EXPECT_EQ(t.agent_.info(id) == nullptr, ends == 1 || s == 8);
      }
    }
  }
}

}  // namespace
}  // namespace verbena::cm

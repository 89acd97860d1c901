// The active side of a connection: REQ, the responses to it, RTU.
#include <cerrno>

#include "tests/unit/cm/agent_support.h"

namespace verbena::cm {
namespace {

class ConnectionActiveTest : public AgentTest {};

TEST_F(ConnectionActiveTest, ReqContainsTheParameters) {
  ConnectParameters p = connect_parameters();
  p.private_data = bytes_of("hello");
  p.srq = true;
  p.flow_control = true;
  p.mtu = wire::Mtu::k4096;
  p.ece = {0x123456, 0x77};
  const uint32_t id = agent_.connect(p, now_).value();
  EXPECT_EQ(id >> 24, kSlot);
  const Req req = sent_one<Req>();
  EXPECT_EQ(req.local_comm_id, id);
  EXPECT_NE(req.tid, 0u);
  EXPECT_EQ(req.service_id, kService);
  EXPECT_EQ(req.local_ca_guid, 0xC0FFEEu);
  EXPECT_EQ(req.local_qpn.value(), kOurQpn);
  EXPECT_EQ(req.starting_psn.value(), 66u);
  EXPECT_EQ(req.responder_resources, 5);
  EXPECT_EQ(req.initiator_depth, 7);
  EXPECT_EQ(req.remote_response_timeout, 20);
  EXPECT_EQ(req.local_response_timeout, 20);
  EXPECT_EQ(req.retry_count, 7);
  EXPECT_EQ(req.rnr_retry_count, 7);
  EXPECT_EQ(req.max_cm_retries, 3);
  EXPECT_EQ(req.path_mtu, 5);
  EXPECT_TRUE(req.srq);
  EXPECT_TRUE(req.flow_control);
  EXPECT_EQ(req.vendor_id, 0x123456u);
  EXPECT_EQ(req.ece_options, 0x77u);
  EXPECT_EQ(req.primary.local_gid, us_);
  EXPECT_EQ(req.primary.remote_gid, peer_);
  EXPECT_EQ(req.primary.local_lid, 0xFFFF);
  EXPECT_EQ(req.primary.ack_timeout, 17);
  const auto ip = IpHeader::load(req.private_data.data());
  ASSERT_TRUE(ip);
  EXPECT_EQ(ip->source_port, 4444);
  EXPECT_EQ(text_of(std::span(req.private_data).subspan(36), 5), "hello");
  EXPECT_EQ(agent_.info(id)->addresses.peer_port, 7174);
}

// With the kernel's parameters the agent writes the same bytes as the kernel.
TEST_F(ConnectionActiveTest, ReqEqualsTheKernels) {
  const uint8_t client[] = {10, 77, 0, 3};
  const uint8_t server[] = {10, 77, 0, 2};
  ConnectParameters p;
  const wire::Gid from = wire::Gid::from_ipv4(client);
  const wire::Gid to = wire::Gid::from_ipv4(server);
  p.addresses = {from, to, from, to, 0xac43, 0, service_id(PortSpace::Tcp, 7174)};
  p.qpn = wire::Qpn(0x11);
  p.starting_psn = wire::Psn(0x25b92c);
  p.responder_resources = p.initiator_depth = 1;
  p.mtu = wire::Mtu::k1024;
  p.flow_label = 0x4f823;
  p.ack_timeout = 19;
  (void)agent_.connect(p, now_);
  const Mad ours = sent()[0].bytes;
  // The bytes behind the IDs and the CA GUID, up to the last that is not zero.
  const uint8_t kernel[] = {0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x11, 0x01,
                            0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0xa0, 0x25, 0xb9, 0x2c, 0xa7,
                            0xff, 0xff, 0x37, 0xf0, 0xff, 0xff, 0xff, 0xff, 0x00, 0x00, 0x00, 0x00,
                            0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xff, 0xff, 0x0a, 0x4d, 0x00, 0x03,
                            0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xff, 0xff,
                            0x0a, 0x4d, 0x00, 0x02, 0x4f, 0x82, 0x30, 0x00, 0x00, 0x40, 0x00, 0x98};
  EXPECT_EQ(std::memcmp(ours.data() + 48, kernel, sizeof kernel), 0);
}

TEST_F(ConnectionActiveTest, Connects) {
  const uint32_t id = connect();
  const Req req = sent_one<Req>();
  receive(peer_rep(id));
  const Event response = event_one(EventKind::ConnectResponse);
  EXPECT_EQ(response.id, id);
  EXPECT_EQ(text_of(response.private_data.view(), 7), "welcome");
  EXPECT_EQ(response.private_data.size, 196u);
  const ConnectionInfo* info = agent_.info(id);
  ASSERT_NE(info, nullptr);
  EXPECT_TRUE(info->active);
  EXPECT_EQ(info->remote_qpn.value(), kPeerQpn);
  EXPECT_EQ(info->rq_psn.value(), 66u);     // sent in the REQ
  EXPECT_EQ(info->sq_psn.value(), 88u);     // received in the REP
  EXPECT_EQ(info->responder_resources, 1);  // the peer's initiator depth
  EXPECT_EQ(info->initiator_depth, 3);
  EXPECT_EQ(info->rnr_retry_count, 4);
  EXPECT_EQ(info->target_ack_delay, 9);
  EXPECT_EQ(agent_.next_deadline(), kNever);  // the agent waits for the application

  ASSERT_TRUE(agent_.establish(id, bytes_of("ready")).ok());
  const Rtu rtu = sent_one<Rtu>();
  EXPECT_EQ(rtu.tid, req.tid);
  EXPECT_EQ(rtu.local_comm_id, id);
  EXPECT_EQ(rtu.remote_comm_id, kPeerId);
  EXPECT_EQ(text_of(rtu.private_data, 5), "ready");
  EXPECT_TRUE(events().empty());
  EXPECT_EQ(agent_.establish(id).error().code, EINVAL);
}

TEST_F(ConnectionActiveTest, RetransmitsReqAndGivesUp) {
  const uint32_t id = connect();
  const Req first = sent_one<Req>();
  std::vector<Duration> waits;
  for (;;) {
    const Instant before = now_;
    ASSERT_TRUE(next_deadline());
    waits.push_back(now_ - before);
    const auto all = sent();
    ASSERT_EQ(all.size(), 1u);
    if (MadHeader::load(all[0].bytes.data()).attribute == Attribute::Rej) {
      const Rej rej = Rej::load(all[0].bytes);
      EXPECT_EQ(rej.reason, RejectReason::Timeout);
      EXPECT_EQ(rej.local_comm_id, id);
      EXPECT_EQ(rej.remote_comm_id, 0u);
      EXPECT_EQ(rej.ari_length, 8);
      EXPECT_EQ(load_be64(rej.ari.data()), 0xC0FFEEu);
      break;
    }
    EXPECT_EQ(Req::load(all[0].bytes).tid, first.tid);
    EXPECT_TRUE(events().empty());
  }
  // The first waits are short; the last is the full response time of the peer.
  const Duration full = iba_time(20) + iba_time(17);
  EXPECT_EQ(waits, (std::vector<Duration>{milliseconds(250), milliseconds(500), seconds(1), full}));
  const Event unreachable = event_one(EventKind::Unreachable);
  EXPECT_EQ(unreachable.id, id);
  EXPECT_EQ(unreachable.error, ETIMEDOUT);
  EXPECT_EQ(counter(CounterId::retransmissions), 3u);
  EXPECT_EQ(counter(CounterId::timeouts), 1u);
  expect_empty();
}

TEST_F(ConnectionActiveTest, PortUnreachableRejectsTheReq) {
  const uint32_t id = connect();
  const uint64_t tid = sent_one<Req>().tid;
  next_deadline();
  sent();
  return_undelivered(ipv4(9), tid, ECONNREFUSED);
  EXPECT_TRUE(events().empty());
  return_undelivered(peer_, tid, ECONNREFUSED);
  const Event rejected = event_one(EventKind::Rejected);
  EXPECT_EQ(rejected.id, id);
  EXPECT_EQ(rejected.reason, RejectReason::InvalidServiceId);
  EXPECT_TRUE(sent().empty());
  expect_empty();
}

TEST_F(ConnectionActiveTest, HostUnreachableEndsTheReq) {
  const uint32_t id = connect();
  const uint64_t tid = sent_one<Req>().tid;
  next_deadline();
  sent();
  return_undelivered(peer_, tid, EHOSTUNREACH);
  const Event unreachable = event_one(EventKind::Unreachable);
  EXPECT_EQ(unreachable.id, id);
  EXPECT_EQ(unreachable.error, EHOSTUNREACH);
  EXPECT_TRUE(sent().empty());
  expect_empty();
}

// Both ends may start at the same time.
TEST_F(ConnectionActiveTest, RetransmitsReqOnceBeforePortUnreachableRejectsIt) {
  connect();
  const uint64_t tid = sent_one<Req>().tid;
  return_undelivered(peer_, tid, ECONNREFUSED);
  EXPECT_TRUE(events().empty());
  next_deadline();
  EXPECT_EQ(sent_one<Req>().tid, tid);
  return_undelivered(peer_, tid, ECONNREFUSED);
  event_one(EventKind::Rejected);
  expect_empty();
}

// ICMP errors for data, for an earlier connection, and forged ones.
TEST_F(ConnectionActiveTest, IgnoresIcmpErrorsOfOtherTransactions) {
  const uint32_t id = connect();
  const uint64_t tid = sent_one<Req>().tid;
  next_deadline();
  sent();
  return_undelivered(peer_, tid + 1, ECONNREFUSED);
  return_undelivered(peer_, 0, EHOSTUNREACH);
  EXPECT_TRUE(events().empty());
  receive(peer_rep(id));
  event_one(EventKind::ConnectResponse);
  return_undelivered(peer_, tid, ECONNREFUSED);
  EXPECT_TRUE(events().empty());
}

TEST_F(ConnectionActiveTest, IcmpErrorOfAnEarlierReqDoesNotRejectALaterOne) {
  const uint32_t first = connect();
  const uint64_t tid = sent_one<Req>().tid;
  next_deadline();
  sent();
  now_ = now_ + milliseconds(10);  // a service starts at the peer
  const uint32_t late = connect();
  next_deadline();
  EXPECT_NE(sent_attributes().size(), 0u);
  return_undelivered(peer_, tid, ECONNREFUSED);
  EXPECT_EQ(event_one(EventKind::Rejected).id, first);
  receive(peer_rep(late));
  EXPECT_EQ(event_one(EventKind::ConnectResponse).id, late);
}

// A host sends ICMP errors for only a few of many datagrams.
TEST_F(ConnectionActiveTest, PortUnreachableRejectsAllReqsSentBefore) {
  connect();
  connect();
  const uint64_t tid = Req::load(sent()[0].bytes).tid;
  next_deadline();
  EXPECT_EQ(sent().size(), 2u);
  return_undelivered(peer_, tid, ECONNREFUSED);
  EXPECT_EQ(event_kinds(), (std::vector<EventKind>(2, EventKind::Rejected)));
  expect_empty();
}

TEST_F(ConnectionActiveTest, UsesTheStandardsTimeoutsOnRequest) {
  AgentConfig standard = config();
  standard.first_retry = {};
  Agent agent(standard);
  ConnectParameters p = connect_parameters();
  p.max_cm_retries = 255;  // more than a REQ can hold
  (void)agent.connect(p, now_);
  const Duration full = iba_time(20) + iba_time(17);
  for (int i = 1; i <= 16; ++i) {
    EXPECT_EQ(agent.next_deadline(), now_ + full * i);
    agent.on_deadline(agent.next_deadline());
  }
  EXPECT_EQ(agent.exchange_count(), 0u);
  EXPECT_EQ(agent.counters()[CounterId::retransmissions], 15u);
}

TEST_F(ConnectionActiveTest, MraExtendsTheTimeoutOfReq) {
  const uint32_t id = connect();
  sent();
  receive(peer_mra(id, About::Req, 20));
  const Duration full = iba_time(20) + iba_time(17);
  EXPECT_EQ(agent_.next_deadline(), now_ + iba_time(20) + full);
  // Only one MRA per REQ counts: more of them do not extend the timeout.
  const Instant deadline = agent_.next_deadline();
  now_ = now_ + seconds(2);
  receive(peer_mra(id, About::Req, 24));
  EXPECT_EQ(agent_.next_deadline(), deadline);
  next_deadline();
  EXPECT_EQ(sent_attributes(), std::vector{Attribute::Req});
  receive(peer_mra(id, About::Req, 31));  // hours; limited to kMaxServiceTimeout
  EXPECT_EQ(agent_.next_deadline(), now_ + iba_time(kMaxServiceTimeout) + full);
  receive(peer_rep(id));
  event_one(EventKind::ConnectResponse);
  EXPECT_EQ(counter(CounterId::mras_received), 3u);
  receive(peer_mra(id, About::Req, 20));
  receive(peer_mra(id, About::Rep, 20));
  EXPECT_EQ(counter(CounterId::unexpected), 2u);
}

TEST_F(ConnectionActiveTest, ReportsARejection) {
  const uint32_t id = connect();
  sent();
  receive(peer_rej(id, RejectReason::Consumer, About::Req));
  const Event rejected = event_one(EventKind::Rejected);
  EXPECT_EQ(rejected.id, id);
  EXPECT_EQ(rejected.reason, RejectReason::Consumer);
  EXPECT_EQ(text_of(rejected.private_data.view(), 7), "go away");
  EXPECT_EQ(rejected.private_data.size, 148u);
  EXPECT_EQ(agent_.info(id), nullptr);
  expect_empty();
  receive(peer_rej(id, RejectReason::Consumer, About::Req));
  EXPECT_EQ(counter(CounterId::unknown_id), 1u);
  expect_empty();
}

// Both ends may start at the same time, or a listener may be closed and opened again.
TEST_F(ConnectionActiveTest, RetransmitsReqForAServiceThatDoesNotExistYet) {
  const uint32_t id = connect();
  const Req first = sent_one<Req>();
  for (const Duration delay : {milliseconds(50), milliseconds(200)}) {
    receive(peer_rej(id, RejectReason::InvalidServiceId, About::Req));
    EXPECT_TRUE(events().empty());
    EXPECT_TRUE(sent().empty());
    const Instant rejected_at = now_;
    ASSERT_TRUE(next_deadline());
    EXPECT_EQ((now_ - rejected_at).ns, delay.ns);
    EXPECT_EQ(sent_one<Req>().tid, first.tid);
  }
  receive(peer_rej(id, RejectReason::InvalidServiceId, About::Req));
  EXPECT_EQ(event_one(EventKind::Rejected).reason, RejectReason::InvalidServiceId);
  EXPECT_EQ(counter(CounterId::rejects_received), 3u);
  expect_empty();
}

TEST_F(ConnectionActiveTest, ConnectsToAServiceThatStartsMeanwhile) {
  const uint32_t id = connect();
  sent();
  receive(peer_rej(id, RejectReason::InvalidServiceId, About::Req));
  ASSERT_TRUE(next_deadline());
  sent_one<Req>();
  receive(peer_rep(id));
  event_one(EventKind::ConnectResponse);
  // A late duplicate of the REJ has no effect.
  receive(peer_rej(id, RejectReason::InvalidServiceId, About::Req));
  ASSERT_TRUE(agent_.establish(id).ok());
  receive(peer_rej(id, RejectReason::InvalidServiceId, About::Req));
  EXPECT_EQ(counter(CounterId::unexpected), 2u);
  EXPECT_TRUE(events().empty());
}

TEST_F(ConnectionActiveTest, ReportsARejectionAfterRep) {
  const uint32_t id = connect();
  receive(peer_rep(id));
  events();
  sent();
  receive(peer_rej(id, RejectReason::Timeout, About::Other));
  EXPECT_EQ(event_one(EventKind::Rejected).reason, RejectReason::Timeout);
  EXPECT_EQ(agent_.establish(id).error().code, EINVAL);
  expect_empty();
}

TEST_F(ConnectionActiveTest, RejectsTheRep) {
  const uint32_t id = connect();
  const Req req = sent_one<Req>();
  receive(peer_rep(id));
  events();
  ASSERT_TRUE(agent_.reject(id, RejectReason::Consumer, {}, bytes_of("no"), now_).ok());
  const Rej rej = sent_one<Rej>();
  EXPECT_EQ(rej.about, About::Rep);
  EXPECT_EQ(rej.local_comm_id, id);
  EXPECT_EQ(rej.remote_comm_id, kPeerId);
  EXPECT_EQ(rej.tid, req.tid);
  // The REJ was lost: the peer retransmits the REP and gets the REJ again.
  receive(peer_rep(id));
  EXPECT_EQ(text_of(sent_one<Rej>().private_data, 2), "no");
  next_deadline();
  expect_empty();
}

TEST_F(ConnectionActiveTest, RepliesToADuplicateRepWithRtu) {
  const uint32_t id = established_active();
  receive(peer_rep(id));
  EXPECT_EQ(sent_one<Rtu>().remote_comm_id, kPeerId);
  EXPECT_TRUE(events().empty());
  EXPECT_EQ(counter(CounterId::duplicates), 1u);
}

TEST_F(ConnectionActiveTest, RepliesToADuplicateRepWithMraBeforeEstablish) {
  const uint32_t id = connect();
  receive(peer_rep(id));
  sent();
  events();
  receive(peer_rep(id));
  const Mra mra = sent_one<Mra>();
  EXPECT_EQ(mra.about, About::Rep);
  EXPECT_EQ(mra.local_comm_id, id);
  EXPECT_EQ(mra.remote_comm_id, kPeerId);
  EXPECT_TRUE(events().empty());
}

TEST_F(ConnectionActiveTest, MraRequestsAShortTimeoutSoThatALostRtuIsSoonRetransmitted) {
  const uint32_t id = connect();
  receive(peer_rep(id));
  sent();
  events();
  receive(peer_rep(id));
  EXPECT_LE(iba_time(sent_one<Mra>().service_timeout), milliseconds(500));
  ASSERT_TRUE(agent_.establish(id, {}).ok());
  sent_one<Rtu>();  // lost
  receive(peer_rep(id));
  EXPECT_EQ(sent_one<Rtu>().remote_comm_id, kPeerId);
}

TEST_F(ConnectionActiveTest, RejectsARepWithAnUnknownId) {
  const uint32_t id = uint32_t{kSlot} << 24 | 77;
  receive(peer_rep(id));
  const Rej rej = sent_one<Rej>();
  EXPECT_EQ(rej.reason, RejectReason::InvalidCommId);
  EXPECT_EQ(rej.about, About::Rep);
  EXPECT_EQ(rej.remote_comm_id, kPeerId);
  EXPECT_EQ(rej.local_comm_id, id);
  EXPECT_EQ(counter(CounterId::unknown_id), 1u);
}

TEST_F(ConnectionActiveTest, DropsResponsesOfOtherPeers) {
  const uint32_t id = connect();
  sent();
  const wire::Gid other_host = ipv4(66);
  receive(peer_rep(id), other_host);
  receive(peer_rej(id, RejectReason::Consumer, About::Req), other_host);
  receive(peer_mra(id, About::Req, 24), other_host);
  EXPECT_EQ(counter(CounterId::wrong_source), 3u);
  EXPECT_TRUE(sent().empty());
  EXPECT_TRUE(events().empty());
  receive(peer_rep(id));
  event_one(EventKind::ConnectResponse);
  Rep other = peer_rep(id);  // the right address, but another connection
  other.local_comm_id ^= 1;
  receive(other);
  EXPECT_EQ(counter(CounterId::unexpected), 1u);
  EXPECT_TRUE(sent().empty());
}

TEST_F(ConnectionActiveTest, DestroyBeforeRepSendsRej) {
  const uint32_t id = connect();
  sent();
  agent_.destroy(id, now_);
  const Rej rej = sent_one<Rej>();
  EXPECT_EQ(rej.reason, RejectReason::Timeout);
  EXPECT_EQ(rej.local_comm_id, id);
  EXPECT_EQ(rej.remote_comm_id, 0u);
  expect_empty();
}

TEST_F(ConnectionActiveTest, DestroyAfterRepSendsRej) {
  const uint32_t id = connect();
  receive(peer_rep(id));
  sent();
  events();
  agent_.destroy(id, now_);
  EXPECT_EQ(sent_one<Rej>().reason, RejectReason::Consumer);
  EXPECT_EQ(agent_.info(id), nullptr);
  next_deadline();
  expect_empty();
}

TEST_F(ConnectionActiveTest, RejectsInvalidCallsWithoutEffect) {
  ConnectParameters p = connect_parameters();
  const std::vector<std::byte> too_long(57);
  p.private_data = too_long;
  EXPECT_EQ(agent_.connect(p, now_).error().code, EINVAL);
  expect_empty();
  const uint32_t id = connect();
  sent();
  EXPECT_EQ(agent_.establish(id).error().code, EINVAL);
  EXPECT_EQ(agent_.accept(id, accept_parameters(), now_).error().code, EINVAL);
  EXPECT_EQ(agent_.disconnect(id, {}, now_).error().code, EINVAL);
  EXPECT_EQ(agent_.notify_established(id).error().code, EINVAL);
  EXPECT_EQ(agent_.reject(id, RejectReason::Consumer, {}, {}, now_).error().code, EINVAL);
  EXPECT_EQ(agent_.establish(id + 1).error().code, EINVAL);
  receive(peer_rep(id));
  const std::vector<std::byte> too_much(225);
  EXPECT_EQ(agent_.establish(id, too_much).error().code, EINVAL);
  EXPECT_TRUE(sent().empty());
  EXPECT_TRUE(agent_.establish(id).ok());
}

TEST_F(ConnectionActiveTest, IdsAreScatteredAndStartWithTheSlot) {
  std::set<uint32_t> ids;
  std::set<uint64_t> tids;
  for (int i = 0; i < 60; ++i) {
    ids.insert(connect());
    tids.insert(sent_one<Req>().tid);
  }
  EXPECT_EQ(ids.size(), 60u);
  EXPECT_EQ(tids.size(), 60u);
  uint32_t steps = 0;  // consecutive IDs would differ by one
  for (auto it = ids.begin(); std::next(it) != ids.end(); ++it) {
    EXPECT_EQ(*it >> 24, kSlot);
    steps += *std::next(it) - *it < 16;
  }
  EXPECT_LT(steps, 3u);
}

TEST_F(ConnectionActiveTest, LimitsTheNumberOfConnections) {
  for (int i = 0; i < 64; ++i) connect();
  EXPECT_EQ(agent_.connect(connect_parameters(), now_).error().code, ENOMEM);
}

TEST_F(ConnectionActiveTest, ReadsTheQpnOfAnXrcTargetFromTheEecn) {
  ConnectParameters p = connect_parameters();
  p.qp_kind = QpKind::Xrc;
  const uint32_t id = agent_.connect(p, now_).value();
  EXPECT_TRUE(sent_one<Req>().is_xrc());
  Rep rep = peer_rep(id);
  rep.local_qpn = wire::Qpn(0);
  rep.local_eecn = 0x4321;
  receive(rep);
  EXPECT_EQ(agent_.info(id)->remote_qpn.value(), 0x4321u);
}

}  // namespace
}  // namespace verbena::cm

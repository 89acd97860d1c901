// The passive side of a connection: REP and the responses to it.
#include <cerrno>

#include "tests/unit/cm/agent_support.h"

namespace verbena::cm {
namespace {

class ConnectionPassiveTest : public AgentTest {};

TEST_F(ConnectionPassiveTest, ReportsAConnectionRequest) {
  const uint32_t listener = listen();
  receive(peer_req());
  const Event request = event_one(EventKind::ConnectRequest);
  EXPECT_EQ(request.listener, listener);
  EXPECT_EQ(request.id >> 24, kSlot);
  EXPECT_EQ(request.private_data.size, 56u);
  EXPECT_EQ(text_of(request.private_data.view(), 5), "hello");
  EXPECT_TRUE(sent().empty());
  const ConnectionInfo* info = agent_.info(request.id);
  ASSERT_NE(info, nullptr);
  EXPECT_FALSE(info->active);
  EXPECT_EQ(info->addresses.local_gid, us_);
  EXPECT_EQ(info->addresses.peer_gid, peer_);
  EXPECT_EQ(info->addresses.local_ip, us_);
  EXPECT_EQ(info->addresses.peer_ip, peer_);
  EXPECT_EQ(info->addresses.local_port, 7174);
  EXPECT_EQ(info->addresses.peer_port, 5555);
  EXPECT_EQ(info->remote_qpn.value(), kPeerQpn);
  EXPECT_EQ(info->sq_psn.value(), 77u);
  EXPECT_EQ(info->responder_resources, 2);  // the peer's initiator depth
  EXPECT_EQ(info->initiator_depth, 4);
  EXPECT_EQ(info->retry_count, 6);
  EXPECT_EQ(info->rnr_retry_count, 5);
  EXPECT_EQ(info->mtu, wire::Mtu::k2048);
  EXPECT_EQ(info->ack_timeout, 17);
}

TEST_F(ConnectionPassiveTest, Accepts) {
  listen();
  const uint32_t id = receive_request();
  AcceptParameters p = accept_parameters();
  p.private_data = bytes_of("welcome");
  p.srq = true;
  p.ece = {0xABCDEF, 5};
  ASSERT_TRUE(agent_.accept(id, p, now_).ok());
  const Rep rep = sent_one<Rep>();
  EXPECT_EQ(rep.tid, peer_req().tid);
  EXPECT_EQ(rep.local_comm_id, id);
  EXPECT_EQ(rep.remote_comm_id, kPeerId);
  EXPECT_EQ(rep.local_qpn.value(), kOurQpn);
  EXPECT_EQ(rep.starting_psn.value(), 99u);
  EXPECT_EQ(rep.responder_resources, 2);
  EXPECT_EQ(rep.initiator_depth, 4);
  EXPECT_EQ(rep.target_ack_delay, 15);
  EXPECT_EQ(rep.rnr_retry_count, 7);
  EXPECT_TRUE(rep.srq);
  EXPECT_EQ(rep.local_ca_guid, 0xC0FFEEu);
  EXPECT_EQ(rep.vendor_id, 0xABCDEFu);
  EXPECT_EQ(text_of(rep.private_data, 7), "welcome");
  EXPECT_TRUE(events().empty());

  Rtu rtu = peer_rtu(id);
  rtu.private_data[0] = std::byte{42};
  receive(rtu);
  const Event established = event_one(EventKind::Established);
  EXPECT_EQ(established.id, id);
  EXPECT_EQ(established.private_data.bytes[0], std::byte{42});
  EXPECT_EQ(agent_.next_deadline(), kNever);
  receive(rtu);
  EXPECT_TRUE(events().empty());
  EXPECT_EQ(counter(CounterId::duplicates), 1u);
}

TEST_F(ConnectionPassiveTest, RetransmitsRepAndGivesUp) {
  listen();
  const uint32_t id = receive_request();
  ASSERT_TRUE(agent_.accept(id, accept_parameters(), now_).ok());
  const Rep first = sent_one<Rep>();
  for (int i = 0; i < 3; ++i) {  // as often as the peer's REQ allows
    ASSERT_TRUE(next_deadline());
    EXPECT_EQ(sent_one<Rep>().tid, first.tid);
    EXPECT_TRUE(events().empty());
  }
  ASSERT_TRUE(next_deadline());
  EXPECT_EQ(sent_one<Rej>().reason, RejectReason::Timeout);
  const Event unreachable = event_one(EventKind::Unreachable);
  EXPECT_EQ(unreachable.error, ETIMEDOUT);
  EXPECT_EQ(agent_.info(id), nullptr);
  // A peer that believes it is connected gets a REJ, and so does one that still sends REQs.
  receive(peer_rtu(id));
  EXPECT_EQ(sent_one<Rej>().reason, RejectReason::Timeout);
  receive(peer_req());
  const Rej rej = sent_one<Rej>();
  EXPECT_EQ(rej.reason, RejectReason::StaleConnection);
  EXPECT_EQ(rej.about, About::Req);
  EXPECT_TRUE(events().empty());
  next_deadline();
  expect_empty();
}

TEST_F(ConnectionPassiveTest, MraExtendsTheTimeoutOfRep) {
  listen();
  const uint32_t id = receive_request();
  ASSERT_TRUE(agent_.accept(id, accept_parameters(), now_).ok());
  receive(peer_mra(id, About::Req, 20));  // of the wrong message
  EXPECT_EQ(counter(CounterId::unexpected), 1u);
  receive(peer_mra(id, About::Rep, 20));
  EXPECT_EQ(agent_.next_deadline(), now_ + iba_time(20) + iba_time(20) + iba_time(17));
}

TEST_F(ConnectionPassiveTest, ReceivedDataEstablishesWithoutRtu) {
  listen();
  const uint32_t id = receive_request();
  ASSERT_TRUE(agent_.accept(id, accept_parameters(), now_).ok());
  ASSERT_TRUE(agent_.notify_established(id).ok());
  event_one(EventKind::Established);
  EXPECT_EQ(agent_.next_deadline(), kNever);
  receive(peer_rtu(id));
  ASSERT_TRUE(agent_.notify_established(id).ok());
  EXPECT_TRUE(events().empty());
}

TEST_F(ConnectionPassiveTest, RepliesToADuplicateReqWithMraThenRep) {
  listen();
  const uint32_t id = receive_request();
  receive(peer_req());
  const Mra mra = sent_one<Mra>();
  EXPECT_EQ(mra.about, About::Req);
  EXPECT_EQ(mra.local_comm_id, id);
  EXPECT_EQ(mra.remote_comm_id, kPeerId);
  EXPECT_EQ(mra.service_timeout, 24);
  ASSERT_TRUE(agent_.accept(id, accept_parameters(), now_).ok());
  sent();
  receive(peer_req());
  EXPECT_EQ(sent_one<Rep>().local_comm_id, id);
  receive(peer_rtu(id));
  event_one(EventKind::Established);
  receive(peer_req());  // late
  EXPECT_TRUE(sent().empty());
  EXPECT_TRUE(events().empty());
  EXPECT_EQ(counter(CounterId::duplicates), 3u);
}

TEST_F(ConnectionPassiveTest, Rejects) {
  listen();
  const uint32_t id = receive_request();
  const std::byte ari[] = {std::byte{1}, std::byte{2}};
  ASSERT_TRUE(agent_.reject(id, RejectReason::Consumer, ari, bytes_of("go away"), now_).ok());
  const Rej rej = sent_one<Rej>();
  EXPECT_EQ(rej.tid, peer_req().tid);
  EXPECT_EQ(rej.local_comm_id, 0u);  // the peer does not know the ID
  EXPECT_EQ(rej.remote_comm_id, kPeerId);
  EXPECT_EQ(rej.about, About::Req);
  EXPECT_EQ(rej.reason, RejectReason::Consumer);
  EXPECT_EQ(rej.ari_length, 2);
  EXPECT_EQ(rej.ari[1], std::byte{2});
  EXPECT_EQ(text_of(rej.private_data, 7), "go away");
  EXPECT_EQ(agent_.info(id), nullptr);
  EXPECT_EQ(agent_.accept(id, accept_parameters(), now_).error().code, EINVAL);
  // A late duplicate of the REQ gets the same REJ, and the application gets no second request.
  receive(peer_req());
  EXPECT_EQ(text_of(sent_one<Rej>().private_data, 7), "go away");
  EXPECT_TRUE(events().empty());
  // The same queue pair may try again at once, with a new id.
  receive(peer_req(kPeerId + 1));
  event_one(EventKind::ConnectRequest);
  next_deadline();
  EXPECT_EQ(agent_.exchange_count(), 1u);
}

TEST_F(ConnectionPassiveTest, RejectsAfterAccepting) {
  listen();
  const uint32_t id = receive_request();
  ASSERT_TRUE(agent_.accept(id, accept_parameters(), now_).ok());
  (void)sent();
  ASSERT_TRUE(agent_.reject(id, RejectReason::Consumer, {}, bytes_of("no"), now_).ok());
  const Rej rej = sent_one<Rej>();
  EXPECT_EQ(rej.local_comm_id, id);
  EXPECT_EQ(rej.remote_comm_id, kPeerId);
  EXPECT_EQ(rej.reason, RejectReason::Consumer);
  EXPECT_EQ(agent_.info(id), nullptr);
  receive(peer_rtu(id));  // sent before the REJ was received
  EXPECT_EQ(sent_one<Rej>().reason, RejectReason::Consumer);
  EXPECT_TRUE(events().empty());
  while (next_deadline()) {
  }
  expect_empty();
}

TEST_F(ConnectionPassiveTest, RejAfterMraContainsTheLocalId) {
  listen();
  const uint32_t id = receive_request();
  receive(peer_req());
  sent();
  ASSERT_TRUE(agent_.reject(id, RejectReason::Consumer, {}, {}, now_).ok());
  EXPECT_EQ(sent_one<Rej>().local_comm_id, id);
}

TEST_F(ConnectionPassiveTest, RejWithOnlyThePeersIdEndsTheRequest) {
  listen();
  const uint32_t id = receive_request();
  Rej rej;
  rej.local_comm_id = kPeerId;
  rej.about = About::Other;
  rej.reason = RejectReason::Timeout;
  receive(rej, ipv4(66));  // another host cannot do this
  EXPECT_EQ(counter(CounterId::unknown_id), 1u);
  receive(rej);
  const Event rejected = event_one(EventKind::Rejected);
  EXPECT_EQ(rejected.id, id);
  EXPECT_EQ(rejected.reason, RejectReason::Timeout);
  EXPECT_EQ(agent_.accept(id, accept_parameters(), now_).error().code, EINVAL);
  receive(peer_req());
  EXPECT_EQ(sent_one<Rej>().reason, RejectReason::StaleConnection);
  next_deadline();
  expect_empty();
}

TEST_F(ConnectionPassiveTest, PeerRejectsRep) {
  listen();
  const uint32_t id = receive_request();
  ASSERT_TRUE(agent_.accept(id, accept_parameters(), now_).ok());
  sent();
  Rej other = peer_rej(id, RejectReason::Consumer, About::Rep);
  other.local_comm_id ^= 1;  // not of this connection
  receive(other);
  EXPECT_EQ(counter(CounterId::unexpected), 1u);
  receive(peer_rej(id, RejectReason::Consumer, About::Rep));
  EXPECT_EQ(event_one(EventKind::Rejected).reason, RejectReason::Consumer);
  next_deadline();
  expect_empty();
}

TEST_F(ConnectionPassiveTest, DestroyRejectsTheRequest) {
  listen(1);
  const uint32_t id = receive_request();
  agent_.destroy(id, now_);
  EXPECT_EQ(sent_one<Rej>().reason, RejectReason::Consumer);
  receive(peer_req(kPeerId + 1));  // and frees its entry in the backlog
  event_one(EventKind::ConnectRequest);
}

TEST_F(ConnectionPassiveTest, RejectsInvalidRequests) {
  listen();
  struct Case {
    RejectReason reason;
    void (*corrupt)(Req&);
  };
  const Case cases[] = {
      {RejectReason::InvalidTransportType, [](Req& r) { r.transport = TransportType::Rd; }},
      {RejectReason::InvalidTransportType, [](Req& r) { r.transport = TransportType::Extended; }},
      {RejectReason::InvalidGid, [](Req& r) { r.primary.local_gid = ipv4(66); }},
      {RejectReason::InvalidMtu, [](Req& r) { r.path_mtu = 0; }},
      {RejectReason::InvalidMtu, [](Req& r) { r.path_mtu = 6; }},
      {RejectReason::UnsupportedRequest, [](Req& r) { r.private_data[0] = std::byte{0x20}; }},
      {RejectReason::UnsupportedRequest, [](Req& r) { r.private_data[1] = std::byte{0x50}; }},
      {RejectReason::InvalidServiceId, [](Req& r) { r.service_id += 1; }},
      {RejectReason::InvalidServiceId, [](Req& r) { r.service_id |= uint64_t{1} << 60; }},
  };
  for (const Case& c : cases) {
    Req req = peer_req();
    c.corrupt(req);
    receive(req);
    EXPECT_EQ(sent_one<Rej>().reason, c.reason);
    expect_empty();
  }
  EXPECT_EQ(counter(CounterId::bad_requests), 7u);
  Req anonymous = peer_req(0);
  receive(anonymous);
  EXPECT_EQ(counter(CounterId::bad_requests), 8u);
  expect_empty();
}

TEST_F(ConnectionPassiveTest, ReportsUcAndXrcRequests) {
  listen();
  Req req = peer_req(1, 1);
  req.transport = TransportType::Uc;
  receive(req);
  EXPECT_EQ(agent_.info(event_one(EventKind::ConnectRequest).id)->qp_kind, QpKind::Uc);
  req = peer_req(2, 2);
  req.transport = TransportType::Extended;
  req.extended_transport = kExtendedXrc;
  receive(req);
  const uint32_t id = event_one(EventKind::ConnectRequest).id;
  EXPECT_EQ(agent_.info(id)->qp_kind, QpKind::Xrc);
  ASSERT_TRUE(agent_.accept(id, accept_parameters(), now_).ok());
  const Rep rep = sent_one<Rep>();
  EXPECT_EQ(rep.local_eecn, kOurQpn);
  EXPECT_EQ(rep.local_qpn.value(), 0u);
  EXPECT_TRUE(rep.srq);
}

}  // namespace
}  // namespace verbena::cm

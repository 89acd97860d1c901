// SIDR: finding the queue pair of a datagram service.
#include <cerrno>

#include "tests/unit/cm/agent_support.h"

namespace verbena::cm {
namespace {

class SidrTest : public AgentTest {
 public:
  static constexpr uint64_t kUdpService = service_id(PortSpace::Udp, 7174);

  uint32_t send_request() {
    SidrParameters p;
    p.addresses = {us_, peer_, us_, peer_, 4444, 0, kUdpService};
    p.max_cm_retries = 2;
    p.private_data = bytes_of("where?");
    auto id = agent_.resolve_sidr(p, now_);
    EXPECT_TRUE(id.ok());
    return id.value();
  }
  SidrReq peer_request(uint32_t request_id = kPeerId) const {
    SidrReq request;
    request.tid = kPeerTid;
    request.request_id = request_id;
    request.service_id = kUdpService;
    IpHeader{5555, peer_, us_}.store(request.private_data.data());
    return request;
  }
  SidrRep peer_reply(uint32_t id) const {
    SidrRep reply;
    reply.request_id = id;
    reply.qpn = wire::Qpn(kPeerQpn);
    reply.qkey = 0x01234567;
    reply.service_id = kUdpService;
    return reply;
  }
  uint32_t listen_udp(uint32_t backlog = 4) {
    return agent_.listen({.service_id = kUdpService, .backlog = backlog}).value();
  }
};

TEST_F(SidrTest, ReportsTheReply) {
  const uint32_t id = send_request();
  EXPECT_EQ(id >> 24, kSlot);
  const SidrReq request = sent_one<SidrReq>();
  EXPECT_EQ(request.request_id, id);
  EXPECT_EQ(request.service_id, kUdpService);
  EXPECT_EQ(IpHeader::load(request.private_data.data())->source_port, 4444);
  EXPECT_EQ(text_of(std::span(request.private_data).subspan(36), 6), "where?");
  EXPECT_EQ(agent_.sidr_info(id)->addresses.peer_port, 7174);
  receive(peer_reply(id), ipv4(66));
  EXPECT_EQ(counter(CounterId::wrong_source), 1u);
  receive(peer_reply(id));
  const Event response = event_one(EventKind::SidrResponse);
  EXPECT_EQ(response.id, id);
  EXPECT_EQ(response.sidr_status, SidrStatus::Success);
  EXPECT_EQ(response.qpn.value(), kPeerQpn);
  EXPECT_EQ(response.qkey, 0x01234567u);
  EXPECT_EQ(response.private_data.size, 136u);
  receive(peer_reply(id));
  EXPECT_EQ(counter(CounterId::unknown_id), 1u);
  expect_empty();
}

TEST_F(SidrTest, ReportsARejection) {
  const uint32_t id = send_request();
  sent();
  SidrRep reply = peer_reply(id);
  reply.status = SidrStatus::Reject;
  receive(reply);
  EXPECT_EQ(event_one(EventKind::SidrResponse).sidr_status, SidrStatus::Reject);
  expect_empty();
}

TEST_F(SidrTest, RetransmitsForAServiceThatDoesNotExistYet) {
  const uint32_t id = send_request();
  sent();
  SidrRep reply = peer_reply(id);
  reply.status = SidrStatus::UnsupportedServiceId;
  for (int i = 0; i < 2; ++i) {
    receive(reply);
    EXPECT_TRUE(events().empty());
    EXPECT_TRUE(sent().empty());
    ASSERT_TRUE(next_deadline());
    EXPECT_EQ(sent_one<SidrReq>().request_id, id);
  }
  receive(reply);
  EXPECT_EQ(event_one(EventKind::SidrResponse).sidr_status, SidrStatus::UnsupportedServiceId);
  expect_empty();
}

TEST_F(SidrTest, PortUnreachableEndsTheRequest) {
  send_request();
  const uint64_t tid = sent_one<SidrReq>().tid;
  next_deadline();
  sent();
  return_undelivered(peer_, tid, ECONNREFUSED);
  EXPECT_EQ(event_one(EventKind::SidrResponse).sidr_status, SidrStatus::UnsupportedServiceId);
  EXPECT_TRUE(sent().empty());
  expect_empty();
}

TEST_F(SidrTest, HostUnreachableEndsTheRequest) {
  send_request();
  const uint64_t tid = sent_one<SidrReq>().tid;
  next_deadline();
  sent();
  return_undelivered(peer_, tid, EHOSTUNREACH);
  EXPECT_EQ(event_one(EventKind::Unreachable).error, EHOSTUNREACH);
  expect_empty();
}

TEST_F(SidrTest, RetransmitsAndGivesUp) {
  const uint32_t id = send_request();
  sent();
  next_deadline();
  EXPECT_EQ(sent_one<SidrReq>().request_id, id);
  next_deadline();
  sent_one<SidrReq>();
  next_deadline();
  const Event unreachable = event_one(EventKind::Unreachable);
  EXPECT_EQ(unreachable.id, id);
  EXPECT_EQ(unreachable.error, ETIMEDOUT);
  expect_empty();
}

TEST_F(SidrTest, RepliesToARequest) {
  const uint32_t listener = listen_udp();
  receive(peer_request());
  const Event request = event_one(EventKind::SidrRequest);
  EXPECT_EQ(request.listener, listener);
  EXPECT_EQ(request.private_data.size, 180u);
  EXPECT_EQ(agent_.sidr_info(request.id)->addresses.peer_port, 5555);
  EXPECT_EQ(agent_.sidr_info(request.id)->addresses.peer_gid, peer_);
  receive(peer_request());  // not decided yet
  EXPECT_TRUE(sent().empty());
  EXPECT_TRUE(events().empty());
  SidrReply accepted;
  accepted.qpn = wire::Qpn(kOurQpn);
  accepted.qkey = 0x1ee7;
  accepted.private_data = bytes_of("here");
  ASSERT_TRUE(agent_.reply_sidr(request.id, accepted, now_).ok());
  const SidrRep reply = sent_one<SidrRep>();
  EXPECT_EQ(reply.request_id, kPeerId);
  EXPECT_EQ(reply.tid, kPeerTid);
  EXPECT_EQ(reply.status, SidrStatus::Success);
  EXPECT_EQ(reply.qpn.value(), kOurQpn);
  EXPECT_EQ(reply.qkey, 0x1ee7u);
  EXPECT_EQ(reply.service_id, kUdpService);
  EXPECT_EQ(text_of(reply.private_data, 4), "here");
  EXPECT_EQ(agent_.reply_sidr(request.id, accepted, now_).error().code, EINVAL);
  receive(peer_request());  // the reply was lost
  EXPECT_EQ(sent_one<SidrRep>().qpn.value(), kOurQpn);
  EXPECT_TRUE(events().empty());
  next_deadline();
  expect_empty();
}

TEST_F(SidrTest, RejectsRequestsWithoutServiceOrBacklog) {
  receive(peer_request());
  EXPECT_EQ(sent_one<SidrRep>().status, SidrStatus::UnsupportedServiceId);
  listen_udp(1);
  receive(peer_request(1));
  const uint32_t id = event_one(EventKind::SidrRequest).id;
  receive(peer_request(2));
  EXPECT_EQ(sent_one<SidrRep>().status, SidrStatus::Reject);
  EXPECT_EQ(counter(CounterId::backlog_full), 1u);
  SidrReq odd = peer_request(3);
  odd.private_data[1] = std::byte{0x90};
  receive(odd);
  EXPECT_EQ(sent_one<SidrRep>().status, SidrStatus::UnsupportedVersion);
  agent_.destroy(id, now_);
  EXPECT_EQ(sent_one<SidrRep>().status, SidrStatus::Reject);
  receive(peer_request(4));
  event_one(EventKind::SidrRequest);
}

TEST_F(SidrTest, DestroyEndsTheRequestSilently) {
  const uint32_t id = send_request();
  sent();
  agent_.destroy(id, now_);
  expect_empty();
  receive(peer_reply(id));
  expect_empty();
}

}  // namespace
}  // namespace verbena::cm

// Messages of a correct peer, and access to the messages and events of the agent.
#include "tests/unit/cm/agent_support.h"

namespace verbena::cm {

Req AgentTest::peer_req(uint32_t peer_id, uint32_t qpn) const {
  Req req;
  req.tid = kPeerTid ^ peer_id;
  req.local_comm_id = peer_id;
  req.service_id = kService;
  req.local_ca_guid = 0xBEEF;
  req.local_qpn = wire::Qpn(qpn);
  req.responder_resources = 4;
  req.initiator_depth = 2;
  req.remote_response_timeout = 20;
  req.local_response_timeout = 20;
  req.starting_psn = wire::Psn(77);
  req.retry_count = 6;
  req.rnr_retry_count = 5;
  req.path_mtu = 4;
  req.max_cm_retries = 3;
  req.primary.local_gid = peer_;
  req.primary.remote_gid = us_;
  req.primary.hop_limit = 64;
  req.primary.ack_timeout = 17;
  IpHeader{5555, peer_, us_}.store(req.private_data.data());
  const auto text = bytes_of("hello");
  std::copy(text.begin(), text.end(), req.private_data.begin() + IpHeader::kBytes);
  return req;
}

Rep AgentTest::peer_rep(uint32_t our_id) const {
  Rep rep;
  rep.local_comm_id = kPeerId;
  rep.remote_comm_id = our_id;
  rep.local_qpn = wire::Qpn(kPeerQpn);
  rep.starting_psn = wire::Psn(88);
  rep.responder_resources = 3;
  rep.initiator_depth = 1;
  rep.target_ack_delay = 9;
  rep.rnr_retry_count = 4;
  const auto text = bytes_of("welcome");
  std::copy(text.begin(), text.end(), rep.private_data.begin());
  return rep;
}

Rtu AgentTest::peer_rtu(uint32_t our_id) const { return {kPeerTid, kPeerId, our_id, {}}; }

Dreq AgentTest::peer_dreq(uint32_t our_id) const {
  return {kPeerTid + 1, kPeerId, our_id, wire::Qpn(kOurQpn), {}};
}

Drep AgentTest::peer_drep(uint32_t our_id) const { return {kPeerTid + 1, kPeerId, our_id, {}}; }

Rej AgentTest::peer_rej(uint32_t our_id, RejectReason reason, About about) const {
  Rej rej;
  rej.tid = kPeerTid;
  rej.local_comm_id = about == About::Req ? 0 : kPeerId;
  rej.remote_comm_id = our_id;
  rej.about = about;
  rej.reason = reason;
  const auto text = bytes_of("go away");
  std::copy(text.begin(), text.end(), rej.private_data.begin());
  return rej;
}

Mra AgentTest::peer_mra(uint32_t our_id, About about, uint8_t service_timeout) const {
  return {kPeerTid, kPeerId, our_id, about, service_timeout, {}};
}

ConnectParameters AgentTest::connect_parameters() const {
  ConnectParameters p;
  p.addresses = {us_, peer_, us_, peer_, 4444, 0, kService};
  p.qpn = wire::Qpn(kOurQpn);
  p.starting_psn = wire::Psn(66);
  p.responder_resources = 5;
  p.initiator_depth = 7;
  p.max_cm_retries = 3;
  return p;
}

AcceptParameters AgentTest::accept_parameters() const {
  AcceptParameters p;
  p.qpn = wire::Qpn(kOurQpn);
  p.starting_psn = wire::Psn(99);
  p.responder_resources = 2;
  p.initiator_depth = 4;
  return p;
}

uint32_t AgentTest::connect() {
  auto id = agent_.connect(connect_parameters(), now_);
  EXPECT_TRUE(id.ok());
  return id.value();
}

uint32_t AgentTest::listen(uint32_t backlog) {
  auto id = agent_.listen({.service_id = kService, .backlog = backlog});
  EXPECT_TRUE(id.ok());
  return id.value();
}

uint32_t AgentTest::receive_request() {
  receive(peer_req());
  return event_one(EventKind::ConnectRequest).id;
}

uint32_t AgentTest::established_active() {
  const uint32_t id = connect();
  receive(peer_rep(id));
  EXPECT_TRUE(agent_.establish(id).ok());
  events();
  sent();
  return id;
}

uint32_t AgentTest::established_passive() {
  listen();
  const uint32_t id = receive_request();
  EXPECT_TRUE(agent_.accept(id, accept_parameters(), now_).ok());
  receive(peer_rtu(id));
  events();
  sent();
  return id;
}

std::vector<OutgoingMad> AgentTest::sent() {
  std::vector<OutgoingMad> all;
  OutgoingMad mad;
  while (agent_.next_mad(mad)) all.push_back(mad);
  return all;
}

std::vector<Attribute> AgentTest::sent_attributes() {
  std::vector<Attribute> all;
  for (const OutgoingMad& mad : sent()) all.push_back(MadHeader::load(mad.bytes.data()).attribute);
  return all;
}

std::vector<Event> AgentTest::events() {
  std::vector<Event> all;
  Event event;
  while (agent_.next_event(event)) all.push_back(event);
  return all;
}

std::vector<EventKind> AgentTest::event_kinds() {
  std::vector<EventKind> all;
  for (const Event& event : events()) all.push_back(event.kind);
  return all;
}

Event AgentTest::event_one(EventKind kind) {
  const std::vector<Event> all = events();
  EXPECT_EQ(all.size(), 1u) << "waiting for " << name_of(kind);
  if (all.size() != 1) return {};
  EXPECT_STREQ(name_of(all[0].kind), name_of(kind));
  return all[0];
}

bool AgentTest::next_deadline() {
  if (agent_.next_deadline() == kNever) return false;
  now_ = std::max(now_, agent_.next_deadline());
  agent_.on_deadline(now_);
  return true;
}

void AgentTest::expect_empty() {
  EXPECT_EQ(agent_.exchange_count(), 0u);
  EXPECT_EQ(agent_.index_count(), 0u);
  EXPECT_EQ(agent_.next_deadline(), kNever);
  EXPECT_TRUE(sent().empty());
  EXPECT_TRUE(events().empty());
}

}  // namespace verbena::cm

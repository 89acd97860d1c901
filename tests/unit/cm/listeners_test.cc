// Listeners: addresses, and the backlog of their requests.
#include "cm/listeners.h"

#include <cerrno>

#include "tests/unit/cm/agent_support.h"

namespace verbena::cm {
namespace {

class ListenersTest : public AgentTest {};

TEST_F(ListenersTest, RejectsARequestWithoutAListener) {
  receive(peer_req());
  const Rej rej = sent_one<Rej>();
  EXPECT_EQ(rej.reason, RejectReason::InvalidServiceId);
  EXPECT_EQ(rej.about, About::Req);
  EXPECT_EQ(rej.remote_comm_id, kPeerId);
  EXPECT_EQ(rej.tid, peer_req().tid);
  EXPECT_EQ(counter(CounterId::no_listener), 1u);
  expect_empty();
  const uint32_t listener = listen();
  ASSERT_TRUE(agent_.stop_listening(listener).ok());
  EXPECT_EQ(agent_.stop_listening(listener).error().code, EINVAL);
  receive(peer_req());
  EXPECT_EQ(sent_one<Rej>().reason, RejectReason::InvalidServiceId);
}

TEST_F(ListenersTest, BacklogIsBounded) {
  listen(2);
  receive(peer_req(1, 1));
  receive(peer_req(2, 2));
  const std::vector<Event> requests = events();
  ASSERT_EQ(requests.size(), 2u);
  for (uint32_t i = 3; i < 1000; ++i) {
    receive(peer_req(i, i));
    EXPECT_EQ(sent_one<Rej>().reason, RejectReason::NoResources);
  }
  EXPECT_TRUE(events().empty());
  EXPECT_EQ(agent_.exchange_count(), 2u);
  EXPECT_EQ(counter(CounterId::backlog_full), 997u);

  agent_.request_taken(requests[0].id);
  agent_.request_taken(requests[0].id);  // counts once
  receive(peer_req(1000, 1000));
  event_one(EventKind::ConnectRequest);
  receive(peer_req(1001, 1001));
  EXPECT_EQ(sent_one<Rej>().reason, RejectReason::NoResources);
  ASSERT_TRUE(agent_.accept(requests[1].id, accept_parameters(), now_).ok());
  sent();
  receive(peer_req(1002, 1002));
  event_one(EventKind::ConnectRequest);
  receive(peer_req(1003, 1003));
  EXPECT_EQ(sent_one<Rej>().reason, RejectReason::NoResources);
}

TEST_F(ListenersTest, RequestsOutliveTheirListener) {
  const uint32_t listener = listen();
  const uint32_t id = receive_request();
  ASSERT_TRUE(agent_.stop_listening(listener).ok());
  ASSERT_TRUE(agent_.accept(id, accept_parameters(), now_).ok());
  sent_one<Rep>();
  receive(peer_rtu(id));
  event_one(EventKind::Established);
}

TEST_F(ListenersTest, MatchesAddressesAndRejectsConflicts) {
  Listeners listeners;
  const uint32_t any4 = listeners.add({.service_id = 1, .family = Family::Ipv4}).value();
  const uint32_t any6 = listeners.add({.service_id = 1, .family = Family::Ipv6}).value();
  const uint32_t one = listeners.add({.service_id = 2, .address = ipv4(1)}).value();
  const uint32_t two = listeners.add({.service_id = 2, .address = ipv4(2)}).value();
  const uint32_t both = listeners.add({.service_id = 3}).value();
  EXPECT_EQ(listeners.match(1, ipv4(9))->id, any4);
  EXPECT_EQ(listeners.match(1, ipv6(9))->id, any6);
  EXPECT_EQ(listeners.match(2, ipv4(1))->id, one);
  EXPECT_EQ(listeners.match(2, ipv4(2))->id, two);
  EXPECT_EQ(listeners.match(2, ipv4(3)), nullptr);
  EXPECT_EQ(listeners.match(3, ipv6(3))->id, both);
  EXPECT_EQ(listeners.match(3, ipv4(3))->id, both);
  EXPECT_EQ(listeners.match(4, ipv4(3)), nullptr);
  EXPECT_EQ(listeners.add({.service_id = 1}).error().code, EADDRINUSE);
  EXPECT_EQ(listeners.add({.service_id = 1, .address = ipv4(1)}).error().code, EADDRINUSE);
  EXPECT_EQ(listeners.add({.service_id = 2, .address = ipv4(1)}).error().code, EADDRINUSE);
  EXPECT_EQ(listeners.add({.service_id = 2, .family = Family::Ipv4}).error().code, EADDRINUSE);
  EXPECT_TRUE(listeners.add({.service_id = 2, .family = Family::Ipv6}).ok());
  EXPECT_EQ(listeners.add({.service_id = 3, .family = Family::Ipv6}).error().code, EADDRINUSE);
  EXPECT_TRUE(listeners.remove(one));
  EXPECT_FALSE(listeners.remove(one));
  EXPECT_EQ(listeners.find(one), nullptr);
  EXPECT_TRUE(listeners.add({.service_id = 2, .address = ipv4(1)}).ok());
  EXPECT_EQ(listeners.size(), 6u);
}

}  // namespace
}  // namespace verbena::cm

// Multicast groups: joining, the event, data to all members, leaving.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "tests/rdmacm/cm_support.h"

namespace verbena::test {
namespace {

struct Member {
  ChannelPtr channel = make_channel();
  IdPtr id = make_id(channel.get(), RDMA_PS_UDP);

  explicit Member(const std::string& address) {
    Address at = ip(address);  // loopback, for which bind finds no device
    EXPECT_EQ(rdma_resolve_addr(id.get(), at.get(), at.get(), 2000), 0);
    expect_event(channel.get(), RDMA_CM_EVENT_ADDR_RESOLVED);
    ibv_qp_init_attr attr = qp_attributes(IBV_QPT_UD);
    EXPECT_EQ(rdma_create_qp(id.get(), nullptr, &attr), 0) << strerror(errno);
  }
};

void join_send_leave(const std::string& own, const std::string& group) {
  Member sender(own);
  Member receiver(own);
  Address to = ip(group);
  int context = 0;
  ASSERT_EQ(rdma_join_multicast(receiver.id.get(), to.get(), &context), 0) << strerror(errno);
  EventPtr joined = expect_event(receiver.channel.get(), RDMA_CM_EVENT_MULTICAST_JOIN);
  ASSERT_NE(joined, nullptr);
  EXPECT_EQ(joined->param.ud.private_data, &context);
  EXPECT_EQ(joined->param.ud.qp_num, 0xFFFFFFu);
  EXPECT_EQ(joined->param.ud.qkey, uint32_t{RDMA_UDP_QKEY});
  joined.reset();

  rdma_cm_join_mc_attr_ex sending{};
  sending.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
  sending.join_flags = RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER;
  sending.addr = to.get();
  ASSERT_EQ(rdma_join_multicast_ex(sender.id.get(), &sending, nullptr), 0) << strerror(errno);
  joined = expect_event(sender.channel.get(), RDMA_CM_EVENT_MULTICAST_JOIN);
  ASSERT_NE(joined, nullptr);
  ibv_ah* ah = ibv_create_ah(sender.id->pd, &joined->param.ud.ah_attr);
  ASSERT_NE(ah, nullptr);
  joined.reset();

  char sent[32] = "to all";
  char received[32 + kGrhBytes] = "";
  ibv_mr* out = rdma_reg_msgs(sender.id.get(), sent, sizeof sent);
  ibv_mr* in = rdma_reg_msgs(receiver.id.get(), received, sizeof received);
  ASSERT_EQ(rdma_post_recv(receiver.id.get(), nullptr, received, sizeof received, in), 0);
  ASSERT_EQ(rdma_post_ud_send(sender.id.get(), nullptr, sent, sizeof sent, out, 0, ah, 0xFFFFFF),
            0);
  ibv_wc wc{};
  EXPECT_EQ(rdma_get_send_comp(sender.id.get(), &wc), 1);
  EXPECT_EQ(rdma_get_recv_comp(receiver.id.get(), &wc), 1);
  EXPECT_STREQ(received + kGrhBytes, "to all");

  // A member that left receives no more datagrams and can join again.
  EXPECT_EQ(rdma_leave_multicast(receiver.id.get(), to.get()), 0);
  EXPECT_ERRNO(rdma_leave_multicast(receiver.id.get(), to.get()), EADDRNOTAVAIL);
  ASSERT_EQ(rdma_post_recv(receiver.id.get(), nullptr, received, sizeof received, in), 0);
  ASSERT_EQ(rdma_post_ud_send(sender.id.get(), nullptr, sent, sizeof sent, out, 0, ah, 0xFFFFFF),
            0);
  EXPECT_EQ(rdma_get_send_comp(sender.id.get(), &wc), 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(ibv_poll_cq(receiver.id->recv_cq, 1, &wc), 0);
  ASSERT_EQ(rdma_join_multicast(receiver.id.get(), to.get(), nullptr), 0);
  expect_event(receiver.channel.get(), RDMA_CM_EVENT_MULTICAST_JOIN);

  EXPECT_EQ(ibv_destroy_ah(ah), 0);
  rdma_destroy_qp(receiver.id.get());
  rdma_dereg_mr(out);
  rdma_dereg_mr(in);
}

TEST(Multicast, JoinsSendsAndLeavesOverIpv4) { join_send_leave("127.0.0.1", "239.77.2.1"); }
bool has_route(const std::string& group) {
  const int fd = ::socket(AF_INET6, SOCK_DGRAM, 0);
  Address to = ip(group, 4791);
  // On the loopback interface, since other interfaces may have a route.
  const bool found = ::setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "lo", 2) == 0 &&
                     ::connect(fd, to.get(), sizeof(sockaddr_in6)) == 0;
  ::close(fd);
  return found;
}

TEST(Multicast, JoinsSendsAndLeavesOverIpv6) {
  if (!has_ipv6()) GTEST_SKIP() << "no IPv6 on this host";
  if (!has_route("ff0e::77:99")) GTEST_SKIP() << "no route: ip -6 route add ff00::/8 dev lo";
  join_send_leave("::1", "ff0e::77:99");
}

TEST(Multicast, LeaveWaitsForTheAcknowledgement) {
  Member member("127.0.0.1");
  Address group = ip("239.77.2.2");
  ASSERT_EQ(rdma_join_multicast(member.id.get(), group.get(), nullptr), 0);
  EventPtr joined = expect_event(member.channel.get(), RDMA_CM_EVENT_MULTICAST_JOIN);
  std::atomic<bool> left{false};
  std::thread leaver([&] {
    EXPECT_EQ(rdma_leave_multicast(member.id.get(), group.get()), 0);
    left = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(left);
  joined.reset();
  leaver.join();
}

TEST(Multicast, LeaveRemovesAnUnreadEvent) {
  Member member("127.0.0.1");
  Address group = ip("239.77.2.3");
  ASSERT_EQ(rdma_join_multicast(member.id.get(), group.get(), nullptr), 0);
  EXPECT_EQ(rdma_leave_multicast(member.id.get(), group.get()), 0);
  EXPECT_FALSE(event_within_ms(member.channel.get(), 0));
}

TEST(Multicast, WorksWithASynchronousIdentifier) {
  const IdPtr id = make_id(nullptr, RDMA_PS_UDP);
  Address at = ip("127.0.0.1");
  ASSERT_EQ(rdma_resolve_addr(id.get(), at.get(), at.get(), 2000), 0);
  Address group = ip("239.77.2.4");
  ASSERT_EQ(rdma_join_multicast(id.get(), group.get(), nullptr), 0);
  EXPECT_EQ(id->event->event, RDMA_CM_EVENT_MULTICAST_JOIN);
  EXPECT_EQ(rdma_leave_multicast(id.get(), group.get()), 0);
}

TEST(Multicast, RejectsInvalidJoins) {
  ChannelPtr channel = make_channel();
  Address group = ip("239.77.2.5");
  const IdPtr unbound = make_id(channel.get(), RDMA_PS_UDP);
  EXPECT_ERRNO(rdma_join_multicast(unbound.get(), group.get(), nullptr), EINVAL);
  const IdPtr connected = make_id(channel.get(), RDMA_PS_TCP);
  Address at = ip("127.0.0.1");
  ASSERT_EQ(rdma_resolve_addr(connected.get(), at.get(), at.get(), 2000), 0);
  EXPECT_ERRNO(rdma_join_multicast(connected.get(), group.get(), nullptr), EINVAL);
  ASSERT_EQ(rdma_resolve_addr(unbound.get(), at.get(), at.get(), 2000), 0);
  Address host = ip("127.0.0.1");
  EXPECT_ERRNO(rdma_join_multicast(unbound.get(), host.get(), nullptr), EINVAL);
  sockaddr_storage infiniband{};
  infiniband.ss_family = 27;  // AF_IB
  EXPECT_ERRNO(
      rdma_join_multicast(unbound.get(), reinterpret_cast<sockaddr*>(&infiniband), nullptr),
      EAFNOSUPPORT);
}

TEST(Multicast, RejectsInvalidExtendedAttributes) {
  Member member("127.0.0.1");
  Address group = ip("239.77.2.6");
  rdma_cm_join_mc_attr_ex attr{};
  attr.addr = group.get();
  attr.comp_mask = RDMA_CM_JOIN_MC_ATTR_RESERVED;
  EXPECT_ERRNO(rdma_join_multicast_ex(member.id.get(), &attr, nullptr), ENOTSUP);
  attr.comp_mask = RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
  EXPECT_ERRNO(rdma_join_multicast_ex(member.id.get(), &attr, nullptr), EINVAL);
  attr.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS;
  EXPECT_ERRNO(rdma_join_multicast_ex(member.id.get(), &attr, nullptr), EINVAL);
  attr.comp_mask |= RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
  attr.join_flags = RDMA_MC_JOIN_FLAG_RESERVED;
  EXPECT_ERRNO(rdma_join_multicast_ex(member.id.get(), &attr, nullptr), EINVAL);
}

}  // namespace
}  // namespace verbena::test

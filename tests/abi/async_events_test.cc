// Every asynchronous event of this NIC: ibv_get_async_event waits for it, and its object cannot be
// destroyed until it is acknowledged.
#include <arpa/inet.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <set>

#include "tests/abi/datagram_support.h"

namespace verbena::test {
namespace {

using SrqPtr = std::unique_ptr<ibv_srq, Destroy<ibv_destroy_srq>>;

bool event_waits(const ibv_context* context) {
  pollfd fd{context->async_fd, POLLIN, 0};
  return poll(&fd, 1, 0) == 1;
}

class AsyncEvents : public LoopbackTest {
 protected:
  // Sends a message from a to a receive of b whose memory region is deregistered.
  void send_to_deregistered_receive() {
    ibv_mr* mr = ibv_reg_mr(b_.pd.get(), b_.memory.data(), 64, IBV_ACCESS_LOCAL_WRITE);
    ASSERT_NE(mr, nullptr);
    ibv_sge sge{b_.address(), 64, mr->lkey};
    ibv_recv_wr wr{1, nullptr, &sge, 1};
    ibv_recv_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_recv(b_.qp.get(), &wr, &bad), 0);
    ASSERT_EQ(ibv_dereg_mr(mr), 0);
    send(8);
  }
  void send(uint32_t bytes) {
    ibv_sge sge = a_.sge(0, bytes);
    ibv_send_wr wr = rdma(IBV_WR_SEND, &sge, b_, 0);
    ASSERT_EQ(a_.send(wr), 0);
  }
  void write(uint32_t rkey) {
    ibv_sge sge = a_.sge(0, 8);
    ibv_send_wr wr = rdma(IBV_WR_RDMA_WRITE, &sge, b_, 0);
    wr.wr.rdma.rkey = rkey;
    ASSERT_EQ(a_.send(wr), 0);
  }
  // Expects exactly one event, for b's queue pair.
  void expect_about_b(ibv_event_type type) {
    const ibv_async_event event = wait_for_async_event(context_.get());
    ASSERT_EQ(event.event_type, type) << ibv_event_type_str(event.event_type);
    EXPECT_EQ(event.element.qp, b_.qp.get());
    EXPECT_FALSE(event_waits(context_.get()));
    expect_destroy_waits_for_ack(event, [&] { b_.qp.reset(); });
  }
};

TEST_F(AsyncEvents, ADeregisteredReceiveRaisesQpFatal) {
  send_to_deregistered_receive();
  EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_REM_OP_ERR);
  EXPECT_EQ(wait_for_completion(b_.receive_cq.get()).status, IBV_WC_LOC_PROT_ERR);
  expect_about_b(IBV_EVENT_QP_FATAL);
}

TEST_F(AsyncEvents, ADeregisteredReceiveRaisesQpFatalOnUc) {
  for (Side* side : {&a_, &b_}) {
    ibv_qp_init_attr init = rc_attributes(side->cq.get(), side->receive_cq.get());
    init.qp_type = IBV_QPT_UC;
    side->qp.reset(ibv_create_qp(side->pd.get(), &init));
    ASSERT_EQ(to_init(side->qp.get()), 0);
  }
  ASSERT_EQ(uc_to_rts(a_.qp.get(), b_.qp->qp_num), 0);
  ASSERT_EQ(uc_to_rts(b_.qp.get(), a_.qp->qp_num), 0);
  send_to_deregistered_receive();
  EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_SUCCESS);
  EXPECT_EQ(wait_for_completion(b_.receive_cq.get()).status, IBV_WC_LOC_PROT_ERR);
  expect_about_b(IBV_EVENT_QP_FATAL);
}

TEST_F(AsyncEvents, ATooLongSendRaisesQpRequestError) {
  ASSERT_EQ(b_.receive(1, 0, 16), 0);
  send(17);
  EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_REM_INV_REQ_ERR);
  expect_about_b(IBV_EVENT_QP_REQ_ERR);
}

TEST_F(AsyncEvents, AWrongKeyRaisesQpAccessError) {
  write(b_.mr->rkey ^ 1);
  EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_REM_ACCESS_ERR);
  expect_about_b(IBV_EVENT_QP_ACCESS_ERR);
}

// The peer's first request is received before the program changes to RTS.
TEST_F(AsyncEvents, TheFirstRequestInRtrRaisesCommEstablished) {
  for (Side* side : {&a_, &b_}) {
    ibv_qp_init_attr init = rc_attributes(side->cq.get(), side->receive_cq.get());
    side->qp.reset(ibv_create_qp(side->pd.get(), &init));
    ASSERT_EQ(to_init(side->qp.get()), 0);
  }
  ASSERT_EQ(to_rtr(a_.qp.get(), b_.qp->qp_num), 0);
  ASSERT_EQ(to_rtr(b_.qp.get(), a_.qp->qp_num), 0);
  ASSERT_EQ(to_rts(a_.qp.get()), 0);
  for (int i = 0; i < 2; ++i) {  // the event is raised once
    write(b_.mr->rkey);
    EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_SUCCESS);
  }
  expect_about_b(IBV_EVENT_COMM_EST);
}

// A queue pair whose completion queue lost a completion fails.
TEST_F(AsyncEvents, CqOverrunRaisesCqErrorAndQpFatal) {
  a_.qp.reset();
  b_.qp.reset();
  a_.cq.reset(ibv_create_cq(context_.get(), 2, nullptr, nullptr, 0));
  ASSERT_NO_FATAL_FAILURE(connect());
  for (int i = 0; i < 3; ++i) write(b_.mr->rkey);
  const ibv_async_event of_cq = wait_for_async_event(context_.get());
  ASSERT_EQ(of_cq.event_type, IBV_EVENT_CQ_ERR);
  EXPECT_EQ(of_cq.element.cq, a_.cq.get());
  const ibv_async_event of_qp = wait_for_async_event(context_.get());
  ASSERT_EQ(of_qp.event_type, IBV_EVENT_QP_FATAL);
  EXPECT_EQ(of_qp.element.qp, a_.qp.get());
  expect_destroy_waits_for_ack(of_qp, [&] { a_.qp.reset(); });
  expect_destroy_waits_for_ack(of_cq, [&] { a_.cq.reset(); });
}

TEST_F(AsyncEvents, AQueuePairWithSrqRaisesLastWqeReached) {
  ibv_srq_init_attr shared{};
  shared.attr = {8, 1, 0};
  const SrqPtr srq(ibv_create_srq(b_.pd.get(), &shared));
  ASSERT_NE(srq, nullptr);
  ibv_qp_init_attr init = rc_attributes(b_.cq.get(), b_.receive_cq.get());
  init.srq = srq.get();
  b_.qp.reset(ibv_create_qp(b_.pd.get(), &init));
  ASSERT_EQ(to_init(b_.qp.get()), 0);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  ASSERT_EQ(ibv_modify_qp(b_.qp.get(), &attr, IBV_QP_STATE), 0);
  expect_about_b(IBV_EVENT_QP_LAST_WQE_REACHED);
}

// One event is read and acknowledged, one is read, one is not read: destroy waits for the second
// only.
TEST_F(AsyncEvents, DestroyWaitsForEachUnacknowledgedEvent) {
  ibv_qp_attr attr{};
  attr.en_sqd_async_notify = 1;
  const auto drain = [&] {
    attr.qp_state = IBV_QPS_RTS;
    EXPECT_EQ(ibv_modify_qp(a_.qp.get(), &attr, IBV_QP_STATE), 0);
    attr.qp_state = IBV_QPS_SQD;
    EXPECT_EQ(ibv_modify_qp(a_.qp.get(), &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
  };
  drain();
  ibv_async_event event = wait_for_async_event(context_.get());
  ibv_ack_async_event(&event);
  drain();
  event = wait_for_async_event(context_.get());
  drain();
  EXPECT_TRUE(within_ms(10'000, [&] { return event_waits(context_.get()); }));
  expect_destroy_waits_for_ack(event, [&] { a_.qp.reset(); });
  EXPECT_FALSE(event_waits(context_.get()));
}

using DatagramEvents = DatagramTest;

TEST_F(DatagramEvents, ADeregisteredReceiveRaisesQpFatal) {
  ibv_mr* mr = ibv_reg_mr(b_.pd.get(), b_.memory.data(), 256, IBV_ACCESS_LOCAL_WRITE);
  ASSERT_NE(mr, nullptr);
  ibv_sge room{b_.address(), 256, mr->lkey};
  ibv_recv_wr receive{1, nullptr, &room, 1};
  ibv_recv_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_recv(b_.qp.get(), &receive, &bad), 0);
  ASSERT_EQ(ibv_dereg_mr(mr), 0);
  ibv_ah_attr to = address();
  const AhPtr ah(ibv_create_ah(a_.pd.get(), &to));
  ibv_sge sge = a_.sge(0, 8);
  ibv_send_wr wr = datagram(&sge, ah.get(), b_.qp->qp_num);
  ASSERT_EQ(a_.send(wr), 0);
  const ibv_async_event event = wait_for_async_event(context_.get());
  ASSERT_EQ(event.event_type, IBV_EVENT_QP_FATAL);
  EXPECT_EQ(event.element.qp, b_.qp.get());
  expect_destroy_waits_for_ack(event, [&] { b_.qp.reset(); });
}

// The test changes links and addresses in a child with its own network namespace.
class OwnNetwork {
 public:
  OwnNetwork() : fd_(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {}
  ~OwnNetwork() { close(fd_); }

  bool set_link(bool up) const {
    ifreq request = about("lo");
    if (ioctl(fd_, SIOCGIFFLAGS, &request) != 0) return false;
    const int flags = request.ifr_flags;
    request.ifr_flags = static_cast<short>(up ? flags | IFF_UP : flags & ~IFF_UP);
    return ioctl(fd_, SIOCSIFFLAGS, &request) == 0;
  }
  bool add_address(const char* text) const {
    ifreq request = about("lo:1");
    sockaddr_in address{};
    address.sin_family = AF_INET;
    inet_pton(AF_INET, text, &address.sin_addr);
    std::memcpy(&request.ifr_addr, &address, sizeof address);
    return ioctl(fd_, SIOCSIFADDR, &request) == 0;
  }

 private:
  static ifreq about(const char* name) {
    ifreq request{};
    std::strncpy(request.ifr_name, name, IFNAMSIZ - 1);
    return request;
  }
  int fd_;
};

constexpr int kNoNamespace = 77;

// Waits for an event of this type and skips others.
bool wait_for_port_event(ibv_context* context, ibv_event_type type) {
  for (;;) {
    pollfd fd{context->async_fd, POLLIN, 0};
    if (poll(&fd, 1, 10'000) != 1) return false;
    ibv_async_event event{};
    if (ibv_get_async_event(context, &event) != 0) return false;
    ibv_ack_async_event(&event);
    if (event.event_type == type) return event.element.port_num == 1;
  }
}

int watch_port() {
  if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return kNoNamespace;
  const OwnNetwork network;
  if (!network.set_link(true)) return kNoNamespace;
  const ContextPtr context = open_loopback();
  if (context == nullptr) return 1;
  if (!network.add_address("127.0.0.9")) return 2;
  if (!wait_for_port_event(context.get(), IBV_EVENT_GID_CHANGE)) return 3;
  ibv_port_attr port{};
  if (!network.set_link(false)) return 4;
  if (!wait_for_port_event(context.get(), IBV_EVENT_PORT_ERR)) return 5;
  if (ibv_query_port(context.get(), 1, &port) != 0 || port.state != IBV_PORT_DOWN) return 6;
  if (!network.set_link(true)) return 7;
  if (!wait_for_port_event(context.get(), IBV_EVENT_PORT_ACTIVE)) return 8;
  if (ibv_query_port(context.get(), 1, &port) != 0 || port.state != IBV_PORT_ACTIVE) return 9;
  return 0;
}

TEST(PortEvents, ReportAddressAndLinkChanges) {
  const int status = in_child(watch_port);
  if (status == kNoNamespace) GTEST_SKIP() << "cannot create a network namespace";
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace verbena::test

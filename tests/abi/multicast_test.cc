// Multicast on the loopback interface: which queue pairs get a copy, and when.
#include <arpa/inet.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "tests/abi/datagram_support.h"

namespace verbena::test {
namespace {

ibv_gid ipv4_group(const char* text) {
  ibv_gid gid{};
  gid.raw[10] = gid.raw[11] = 0xFF;
  EXPECT_EQ(inet_pton(AF_INET, text, gid.raw + 12), 1);
  return gid;
}

class MulticastTest : public DatagramTest {
 protected:
  AhPtr to_group(const ibv_gid& group) {
    ibv_ah_attr attr = address();
    attr.grh.dgid = group;
    return AhPtr(ibv_create_ah(a_.pd.get(), &attr));
  }
  int send_to(ibv_ah* ah, uint8_t value) {
    a_.memory[0] = value;
    ibv_sge sge = a_.sge(0, 4);
    ibv_send_wr wr = datagram(&sge, ah, kMulticastQpn);
    const int code = a_.send(wr);
    if (code == 0) {
      EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_SUCCESS);
    }
    return code;
  }
  const ibv_gid group_ = ipv4_group("239.86.66.1");
};

TEST_F(MulticastTest, EveryMemberExceptTheSenderGetsACopy) {
  Side c;
  make_side(c);
  c.qp = make_ud(c);
  for (Side* side : {&a_, &b_, &c}) {
    ASSERT_EQ(ibv_attach_mcast(side->qp.get(), &group_, 0), 0);
    ASSERT_EQ(side->receive(1, 0, 100), 0);
  }
  const AhPtr ah = to_group(group_);
  ASSERT_NE(ah, nullptr);
  ASSERT_EQ(send_to(ah.get(), 42), 0);
  for (Side* side : {&b_, &c}) {
    ibv_wc wc = wait_for_completion(side->receive_cq.get());
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.src_qp, a_.qp->qp_num);
    EXPECT_EQ(wc.byte_len, kHeaderArea + 4);
    EXPECT_EQ(side->memory[kHeaderArea], 42);
    ibv_ah_attr back{};  // a reply goes only to the sender
    auto* const grh = reinterpret_cast<ibv_grh*>(side->memory.data());
    ASSERT_EQ(ibv_init_ah_from_wc(context_.get(), 1, &wc, grh, &back), 0);
    const ibv_gid sender = address().grh.dgid;
    EXPECT_EQ(std::memcmp(&back.grh.dgid, &sender, 16), 0);
  }
  EXPECT_EQ(completions_within_ms(a_.receive_cq.get(), 30), 0);
  for (Side* side : {&a_, &b_, &c}) EXPECT_EQ(ibv_detach_mcast(side->qp.get(), &group_, 0), 0);
}

TEST_F(MulticastTest, DeliversOnlyToAttachedMembersOfTheGroup) {
  const ibv_gid other = ipv4_group("239.86.66.2");
  ASSERT_EQ(ibv_attach_mcast(b_.qp.get(), &group_, 0), 0);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(b_.receive(1, 0, 100), 0);
  const AhPtr to_other = to_group(other);
  const AhPtr to_ours = to_group(group_);
  ASSERT_EQ(send_to(to_other.get(), 1), 0);
  ASSERT_EQ(send_to(to_ours.get(), 2), 0);
  EXPECT_EQ(wait_for_completion(b_.receive_cq.get()).status, IBV_WC_SUCCESS);
  EXPECT_EQ(b_.memory[kHeaderArea], 2);
  ASSERT_EQ(ibv_detach_mcast(b_.qp.get(), &group_, 0), 0);
  ASSERT_EQ(send_to(to_ours.get(), 3), 0);
  EXPECT_EQ(completions_within_ms(b_.receive_cq.get(), 30), 0);
  ASSERT_EQ(ibv_attach_mcast(b_.qp.get(), &group_, 0), 0);  // attached again
  ASSERT_EQ(send_to(to_ours.get(), 4), 0);
  EXPECT_EQ(wait_for_completion(b_.receive_cq.get()).status, IBV_WC_SUCCESS);
  EXPECT_EQ(b_.memory[kHeaderArea], 4);
  EXPECT_EQ(ibv_detach_mcast(b_.qp.get(), &group_, 0), 0);
}

TEST_F(MulticastTest, AnotherProcessOfThisHostGetsACopy) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(ibv_attach_mcast(b_.qp.get(), &group_, 0), 0);
  ASSERT_EQ(b_.receive(1, 0, 100), 0);
  const pid_t child = fork();
  if (child == 0) {
    ContextPtr context = open_loopback();
    const auto run = [&] {
      Side side;
      side.pd.reset(ibv_alloc_pd(context.get()));
      side.cq.reset(ibv_create_cq(context.get(), 16, nullptr, nullptr, 0));
      side.memory.assign(4096, 0);
      side.mr.reset(ibv_reg_mr(side.pd.get(), side.memory.data(), 4096, kAllAccess));
      ibv_qp_init_attr init = datagram_attributes(side);
      init.recv_cq = side.cq.get();
      side.qp.reset(ibv_create_qp(side.pd.get(), &init));
      if (side.qp == nullptr || datagram_to_rts(side.qp.get()) != 0) return 2;
      if (ibv_attach_mcast(side.qp.get(), &group_, 0) != 0) return 3;
      if (side.receive(1, 0, 100) != 0) return 4;
      if (write(ready[1], "r", 1) != 1) return 5;
      const ibv_wc wc = wait_for_completion(side.cq.get());
      if (ibv_detach_mcast(side.qp.get(), &group_, 0) != 0) return 6;
      return wc.status == IBV_WC_SUCCESS && side.memory[kHeaderArea] == 9 ? 0 : 7;
    };
    _exit(run());
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  const AhPtr ah = to_group(group_);
  ASSERT_EQ(send_to(ah.get(), 9), 0);
  EXPECT_EQ(wait_for_completion(b_.receive_cq.get()).status, IBV_WC_SUCCESS);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(ibv_detach_mcast(b_.qp.get(), &group_, 0), 0);
  close(ready[0]);
  close(ready[1]);
}

TEST_F(MulticastTest, RejectsInvalidAttachAndDetach) {
  const ibv_gid host = address().grh.dgid;
  EXPECT_EQ(ibv_attach_mcast(a_.qp.get(), &host, 0), EINVAL);
  EXPECT_EQ(ibv_detach_mcast(a_.qp.get(), &group_, 0), EINVAL);
  ibv_qp_init_attr init = rc_attributes(a_.cq.get(), a_.receive_cq.get());
  const QpPtr rc(ibv_create_qp(a_.pd.get(), &init));
  EXPECT_EQ(ibv_attach_mcast(rc.get(), &group_, 0), EINVAL);
  ASSERT_EQ(ibv_attach_mcast(a_.qp.get(), &group_, 0), 0);
  ASSERT_EQ(ibv_attach_mcast(a_.qp.get(), &group_, 0), 0);  // a second attach has no effect
  EXPECT_EQ(ibv_detach_mcast(b_.qp.get(), &group_, 0), EINVAL);
  EXPECT_EQ(ibv_detach_mcast(a_.qp.get(), &group_, 0), 0);
  EXPECT_EQ(ibv_detach_mcast(a_.qp.get(), &group_, 0), EINVAL);
  const AhPtr ah = to_group(group_);
  ibv_sge sge = a_.sge(0, 4);
  ibv_send_wr wr = datagram(&sge, ah.get(), b_.qp->qp_num);
  EXPECT_EQ(a_.send(wr), EINVAL);  // a multicast address needs the multicast QPN
}

TEST_F(MulticastTest, LeavesTheGroupWithItsLastMember) {
  const auto before = open_descriptors();
  ASSERT_EQ(ibv_attach_mcast(a_.qp.get(), &group_, 0), 0);
  ASSERT_EQ(ibv_attach_mcast(b_.qp.get(), &group_, 0), 0);
  EXPECT_EQ(open_descriptors().size(), before.size() + 1);
  EXPECT_EQ(ibv_detach_mcast(a_.qp.get(), &group_, 0), 0);
  EXPECT_EQ(open_descriptors().size(), before.size() + 1);
  EXPECT_EQ(ibv_destroy_qp(b_.qp.get()), EBUSY);
  EXPECT_EQ(ibv_detach_mcast(b_.qp.get(), &group_, 0), 0);
  EXPECT_EQ(open_descriptors(), before);
}

}  // namespace
}  // namespace verbena::test

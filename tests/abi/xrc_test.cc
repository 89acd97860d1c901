// XRC through the verbs interface: domains by file, queue pairs of one direction, SRQs by number.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/abi/loopback_support.h"
#include "tests/support/fork_watch.h"

namespace verbena::test {
namespace {

using SrqPtr = std::unique_ptr<ibv_srq, Destroy<ibv_destroy_srq>>;
using XrcdPtr = std::unique_ptr<ibv_xrcd, Destroy<ibv_close_xrcd>>;

XrcdPtr open_domain(ibv_context* context, int fd, int oflags) {
  ibv_xrcd_init_attr init{IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, fd, oflags};
  return XrcdPtr(ibv_open_xrcd(context, &init));
}

// A file without a name. Only its inode is used.
class File {
 public:
  File() {
    char name[] = "/tmp/verbena-xrcd-XXXXXX";
    fd_ = mkstemp(name);
    if (fd_ >= 0) unlink(name);
  }
  ~File() { close(fd_); }
  int fd() const { return fd_; }

 private:
  int fd_ = -1;
};

struct Memory {
  std::vector<uint8_t> bytes = std::vector<uint8_t>(64 * 1024);
  MrPtr mr;

  bool register_in(ibv_pd* pd) {
    mr.reset(ibv_reg_mr(pd, bytes.data(), bytes.size(), kAllAccess));
    return mr != nullptr;
  }
  uint64_t address() const { return reinterpret_cast<uint64_t>(bytes.data()); }
  ibv_sge sge(uint32_t length) const { return {address(), length, mr->lkey}; }
};

// The target: an XRC domain, an SRQ and a queue pair.
struct Target {
  ContextPtr context = open_loopback();
  PdPtr pd;
  CqPtr cq;
  XrcdPtr xrcd;
  Memory memory;
  SrqPtr srq;
  QpPtr qp;

  bool make(int fd = -1, int completions = 64) {
    pd.reset(ibv_alloc_pd(context.get()));
    cq.reset(ibv_create_cq(context.get(), completions, nullptr, nullptr, 0));
    xrcd = open_domain(context.get(), fd, O_CREAT);
    if (pd == nullptr || cq == nullptr || xrcd == nullptr) return false;
    srq = make_srq();
    qp = make_qp();
    return memory.register_in(pd.get()) && srq != nullptr && qp != nullptr;
  }
  SrqPtr make_srq() const {
    ibv_srq_init_attr_ex init{};
    init.attr = {16, 1, 0};
    init.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD |
                     IBV_SRQ_INIT_ATTR_CQ;
    init.srq_type = IBV_SRQT_XRC;
    init.pd = pd.get();
    init.xrcd = xrcd.get();
    init.cq = cq.get();
    return SrqPtr(ibv_create_srq_ex(context.get(), &init));
  }
  QpPtr make_qp() const {
    ibv_qp_init_attr_ex init{};
    init.qp_type = IBV_QPT_XRC_RECV;
    init.comp_mask = IBV_QP_INIT_ATTR_XRCD;
    init.xrcd = xrcd.get();
    return QpPtr(ibv_create_qp_ex(context.get(), &init));
  }
  uint32_t srqn() const {
    uint32_t number = 0;
    EXPECT_EQ(ibv_get_srq_num(srq.get(), &number), 0);
    return number;
  }
  int receive(uint64_t wr_id, uint32_t length = 4096) {
    ibv_sge buffer = memory.sge(length);
    ibv_recv_wr wr{wr_id, nullptr, &buffer, 1};
    ibv_recv_wr* bad = nullptr;
    return ibv_post_srq_recv(srq.get(), &wr, &bad);
  }
  // Uses the RC attributes of the receive side.
  int connect(uint32_t peer) {
    if (const int code = to_init(qp.get()); code != 0) return code;
    if (const int code = to_rtr(qp.get(), peer); code != 0) return code;
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 14;
    return ibv_modify_qp(qp.get(), &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_SQ_PSN);
  }
};

struct Initiator {
  ContextPtr context = open_loopback();
  PdPtr pd;
  CqPtr cq;
  Memory memory;
  QpPtr qp;

  bool make() {
    pd.reset(ibv_alloc_pd(context.get()));
    cq.reset(ibv_create_cq(context.get(), 64, nullptr, nullptr, 0));
    if (pd == nullptr || cq == nullptr) return false;
    ibv_qp_init_attr init = rc_attributes(cq.get(), nullptr);
    init.qp_type = IBV_QPT_XRC_SEND;
    qp.reset(ibv_create_qp(pd.get(), &init));
    return memory.register_in(pd.get()) && qp != nullptr;
  }
  int connect(uint32_t peer) {
    if (const int code = to_init(qp.get()); code != 0) return code;
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_1024;
    attr.dest_qp_num = peer;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = 1;
    if (ibv_query_gid(qp->context, 1, 0, &attr.ah_attr.grh.dgid) != 0) return errno;
    const int code =
        ibv_modify_qp(qp.get(), &attr,
                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN);
    return code != 0 ? code : to_rts(qp.get());
  }
  ibv_wc_status run(ibv_send_wr wr, uint32_t length, uint32_t srqn) {
    ibv_sge buffer = memory.sge(length);
    wr.sg_list = &buffer;
    wr.num_sge = 1;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.qp_type.xrc.remote_srqn = srqn;
    ibv_send_wr* bad = nullptr;
    const int code = ibv_post_send(qp.get(), &wr, &bad);
    EXPECT_EQ(code, 0);
    return code == 0 ? wait_for_completion(cq.get()).status : IBV_WC_GENERAL_ERR;
  }
};

// The target's address, numbers and key, which two processes exchange.
struct Address {
  uint32_t qpn = 0, srqn = 0, rkey = 0;
  uint64_t memory = 0;
};

// SEND, WRITE, READ and an atomic. Returns 0 if all succeed.
int exercise(Initiator& from, const Address& to) {
  uint8_t* bytes = from.memory.bytes.data();
  for (size_t i = 0; i < 5000; ++i) bytes[i] = static_cast<uint8_t>(i * 3);
  ibv_send_wr wr{};
  wr.opcode = IBV_WR_SEND;
  if (from.run(wr, 3000, to.srqn) != IBV_WC_SUCCESS) return 1;
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.wr.rdma.remote_addr = to.memory + 8192;
  wr.wr.rdma.rkey = to.rkey;
  if (from.run(wr, 5000, to.srqn) != IBV_WC_SUCCESS) return 2;
  std::memset(bytes, 0, 5000);
  wr.opcode = IBV_WR_RDMA_READ;
  if (from.run(wr, 5000, to.srqn) != IBV_WC_SUCCESS) return 3;
  for (size_t i = 0; i < 5000; ++i) {
    if (bytes[i] != static_cast<uint8_t>(i * 3)) return 4;
  }
  ibv_send_wr add{};
  add.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
  add.wr.atomic.remote_addr = to.memory + 16384;
  add.wr.atomic.rkey = to.rkey;
  add.wr.atomic.compare_add = 41;
  if (from.run(add, 8, to.srqn) != IBV_WC_SUCCESS) return 5;
  wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  if (from.run(wr, 8, to.srqn) != IBV_WC_SUCCESS) return 6;
  return 0;
}

// Checks the effects of exercise() at the target.
void expect_exercised(Target& target) {
  const ibv_wc sent = wait_for_completion(target.cq.get());
  EXPECT_EQ(sent.status, IBV_WC_SUCCESS);
  EXPECT_EQ(sent.opcode, IBV_WC_RECV);
  EXPECT_EQ(sent.wr_id, 1u);
  EXPECT_EQ(sent.byte_len, 3000u);
  EXPECT_EQ(sent.qp_num, target.qp->qp_num);
  const ibv_wc written = wait_for_completion(target.cq.get());
  EXPECT_EQ(written.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_EQ(written.wr_id, 2u);
  EXPECT_EQ(target.memory.bytes[2999], static_cast<uint8_t>(2999 * 3));
  EXPECT_EQ(target.memory.bytes[8192 + 4999], static_cast<uint8_t>(4999 * 3));
  EXPECT_EQ(target.memory.bytes[16384], 41);
}

TEST(Xrc, ExecutesEveryOperationBetweenTwoContexts) {
  ibv_device_attr device{};
  Target target;
  Initiator initiator;
  ASSERT_EQ(ibv_query_device(target.context.get(), &device), 0);
  EXPECT_NE(device.device_cap_flags & IBV_DEVICE_XRC, 0u);
  ASSERT_TRUE(target.make());
  ASSERT_TRUE(initiator.make());
  ASSERT_EQ(target.connect(initiator.qp->qp_num), 0);
  ASSERT_EQ(initiator.connect(target.qp->qp_num), 0);
  ASSERT_EQ(target.receive(1), 0);
  ASSERT_EQ(target.receive(2), 0);
  EXPECT_EQ(exercise(initiator, {target.qp->qp_num, target.srqn(), target.memory.mr->rkey,
                                 target.memory.address()}),
            0);
  expect_exercised(target);
}

TEST(Xrc, ExecutesEveryOperationBetweenTwoProcesses) {
  const File file;
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const auto send_value = [](int fd, const auto& what) {
    return write(fd, &what, sizeof what) == static_cast<ssize_t>(sizeof what);
  };
  const auto receive_value = [](int fd, auto& what) {
    return read(fd, &what, sizeof what) == static_cast<ssize_t>(sizeof what);
  };
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);  // so that the child sees when the parent ends
    Initiator initiator;
    if (!initiator.make()) _exit(20);
    // The same file gives another process its own domain.
    const XrcdPtr own = open_domain(initiator.context.get(), file.fd(), O_CREAT);
    if (own == nullptr) _exit(21);
    Address to;
    if (!send_value(ends[1], initiator.qp->qp_num) || !receive_value(ends[1], to)) _exit(22);
    if (initiator.connect(to.qpn) != 0) _exit(23);
    _exit(exercise(initiator, to));
  }
  close(ends[1]);
  Target target;
  uint32_t peer = 0;
  ASSERT_TRUE(target.make(file.fd()));
  ASSERT_TRUE(receive_value(ends[0], peer));
  ASSERT_EQ(target.connect(peer), 0);
  ASSERT_EQ(target.receive(1), 0);
  ASSERT_EQ(target.receive(2), 0);
  ASSERT_TRUE(send_value(ends[0], Address{target.qp->qp_num, target.srqn(), target.memory.mr->rkey,
                                          target.memory.address()}));
  expect_exercised(target);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  close(ends[0]);
}

TEST(Xrc, AnUnknownSrqNumberFailsTheSender) {
  Target target;
  Initiator initiator;
  ASSERT_TRUE(target.make());
  ASSERT_TRUE(initiator.make());
  ASSERT_EQ(target.connect(initiator.qp->qp_num), 0);
  ASSERT_EQ(initiator.connect(target.qp->qp_num), 0);
  ibv_send_wr wr{};
  wr.opcode = IBV_WR_SEND;
  EXPECT_EQ(initiator.run(wr, 8, target.srqn() ^ 0x8000), IBV_WC_REM_INV_REQ_ERR);
}

TEST(Xrc, AnSrqOfAnotherDomainFailsTheSender) {
  Target target, other;
  Initiator initiator;
  ASSERT_TRUE(target.make());
  ASSERT_TRUE(other.make());
  ASSERT_TRUE(initiator.make());
  ASSERT_EQ(other.receive(1), 0);
  ASSERT_EQ(target.connect(initiator.qp->qp_num), 0);
  ASSERT_EQ(initiator.connect(target.qp->qp_num), 0);
  ibv_send_wr wr{};
  wr.opcode = IBV_WR_SEND;
  EXPECT_EQ(initiator.run(wr, 8, other.srqn()), IBV_WC_REM_INV_REQ_ERR);
  EXPECT_EQ(completions_within_ms(other.cq.get(), 20), 0);
}

TEST(Xrc, AFileIsOneDomainForAllContexts) {
  const File file;
  Target target, other;
  Initiator initiator;
  ASSERT_TRUE(target.make(file.fd()));
  ASSERT_TRUE(other.make(file.fd()));
  ASSERT_TRUE(initiator.make());
  ASSERT_EQ(other.receive(1), 0);
  ASSERT_EQ(target.connect(initiator.qp->qp_num), 0);
  ASSERT_EQ(initiator.connect(target.qp->qp_num), 0);
  ibv_send_wr wr{};
  wr.opcode = IBV_WR_SEND;
  EXPECT_EQ(initiator.run(wr, 8, other.srqn()), IBV_WC_SUCCESS);
  EXPECT_EQ(wait_for_completion(other.cq.get()).qp_num, target.qp->qp_num);
}

TEST(Xrc, OpenFlagsOfDomainsWorkAsForFiles) {
  const ContextPtr context = open_loopback();
  const File file;
  EXPECT_EQ(open_domain(context.get(), file.fd(), 0), nullptr);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(open_domain(context.get(), 1 << 20, O_CREAT), nullptr);
  EXPECT_EQ(errno, EBADF);
  XrcdPtr first = open_domain(context.get(), file.fd(), O_CREAT | O_EXCL);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(open_domain(context.get(), file.fd(), O_CREAT | O_EXCL), nullptr);
  EXPECT_EQ(errno, EINVAL);
  XrcdPtr second = open_domain(context.get(), file.fd(), 0);
  ASSERT_NE(second, nullptr);
  first.reset();
  EXPECT_NE(open_domain(context.get(), file.fd(), 0),
            nullptr);  // the second handle keeps the domain
  second.reset();
  EXPECT_EQ(open_domain(context.get(), file.fd(), 0), nullptr);
  const XrcdPtr a = open_domain(context.get(), -1, O_CREAT | O_EXCL);
  const XrcdPtr b = open_domain(context.get(), -1, O_CREAT | O_EXCL);
  EXPECT_NE(a, nullptr);
  EXPECT_NE(b, nullptr);
  ibv_xrcd_init_attr init{IBV_XRCD_INIT_ATTR_FD, -1, O_CREAT};
  EXPECT_EQ(ibv_open_xrcd(context.get(), &init), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

// The inode number of a deleted file is reused unless the domain keeps the file open.
TEST(Xrc, ADomainOutlivesItsFile) {
  const ContextPtr context = open_loopback();
  const auto before = open_descriptors();
  std::vector<XrcdPtr> domains;
  for (int i = 0; i < 8; ++i) {
    const File file;
    domains.push_back(open_domain(context.get(), file.fd(), O_CREAT | O_EXCL));
    EXPECT_NE(domains.back(), nullptr) << "file " << i;
  }
  const auto open_now = open_descriptors();
  EXPECT_EQ(in_child([&] {
              for (const std::string& entry : open_descriptors())
                if (open_now.contains(entry) && !before.contains(entry)) return 1;
              for (const XrcdPtr& domain : domains)
                if (ibv_close_xrcd(domain.get()) != 0) return 2;
              return 0;
            }),
            0);
  domains.clear();
  EXPECT_EQ(open_descriptors(), before);
}

TEST(Xrc, ForkHandlersNeitherAllocateNorLock) {
  const ContextPtr context = open_loopback();
  const File file;
  const XrcdPtr domain = open_domain(context.get(), file.fd(), O_CREAT);
  ASSERT_NE(domain, nullptr);
  expect_safe_fork_handlers();
}

// Closing a copy of the descriptor would release the record lock.
TEST(Xrc, KeepsRecordLocksOnTheFile) {
  const ContextPtr context = open_loopback();
  const File file;
  struct flock whole {};
  whole.l_type = F_WRLCK;
  ASSERT_EQ(fcntl(file.fd(), F_SETLK, &whole), 0);
  open_domain(context.get(), file.fd(), O_CREAT).reset();
  EXPECT_EQ(in_child([&] {
              struct flock query {};
              query.l_type = F_WRLCK;
              return fcntl(file.fd(), F_GETLK, &query) == 0 && query.l_type == F_WRLCK ? 0 : 1;
            }),
            0);
}

TEST(Xrc, RejectsDestroyOfObjectsInUse) {
  Target target;
  ASSERT_TRUE(target.make());
  EXPECT_EQ(ibv_close_xrcd(target.xrcd.get()), EBUSY);
  target.qp.reset();
  EXPECT_EQ(ibv_close_xrcd(target.xrcd.get()), EBUSY);
  EXPECT_EQ(ibv_destroy_cq(target.cq.get()), EBUSY);
  EXPECT_EQ(ibv_dealloc_pd(target.pd.get()), EBUSY);
}

TEST(Xrc, RejectsInvalidCalls) {
  Target target;
  Initiator initiator;
  ASSERT_TRUE(target.make());
  ASSERT_TRUE(initiator.make());
  ibv_recv_wr receive{};
  ibv_recv_wr* bad_receive = nullptr;
  ASSERT_EQ(to_init(initiator.qp.get()), 0);
  ASSERT_EQ(to_init(target.qp.get()), 0);
  EXPECT_EQ(ibv_post_recv(initiator.qp.get(), &receive, &bad_receive), EINVAL);
  EXPECT_EQ(ibv_post_recv(target.qp.get(), &receive, &bad_receive), EINVAL);
  ibv_send_wr send{};
  ibv_send_wr* bad_send = nullptr;
  EXPECT_EQ(ibv_post_send(target.qp.get(), &send, &bad_send), EINVAL);

  ibv_qp_init_attr plain = rc_attributes(target.cq.get(), target.cq.get());
  plain.qp_type = IBV_QPT_XRC_RECV;
  EXPECT_EQ(ibv_create_qp(target.pd.get(), &plain), nullptr);
  EXPECT_EQ(errno, EINVAL);
  plain.qp_type = IBV_QPT_RC;
  plain.srq = target.srq.get();
  EXPECT_EQ(ibv_create_qp(target.pd.get(), &plain), nullptr);
  EXPECT_EQ(errno, EINVAL);
  ibv_qp_init_attr_ex extended{};
  extended.qp_type = IBV_QPT_XRC_RECV;
  EXPECT_EQ(ibv_create_qp_ex(target.context.get(), &extended), nullptr);
  EXPECT_EQ(errno, EINVAL);
  extended.comp_mask = IBV_QP_INIT_ATTR_XRCD;
  EXPECT_EQ(ibv_create_qp_ex(target.context.get(), &extended), nullptr);
  EXPECT_EQ(errno, EINVAL);
  extended.xrcd = target.xrcd.get();
  EXPECT_EQ(ibv_create_qp_ex(initiator.context.get(), &extended), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

// Each ibv_wr_* request names an SRQ, which receives the message or gives the protection domain.
TEST(Xrc, BuildersPostEveryOperation) {
  Target target;
  Initiator initiator;
  ASSERT_TRUE(target.make());
  ASSERT_TRUE(initiator.make());
  ibv_qp_init_attr_ex init{};
  init.send_cq = initiator.cq.get();
  init.qp_type = IBV_QPT_XRC_SEND;
  init.cap = {16, 0, 4, 0, 64};
  init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  init.pd = initiator.pd.get();
  init.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
                        IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                        IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
  initiator.qp.reset(ibv_create_qp_ex(initiator.context.get(), &init));
  ASSERT_NE(initiator.qp, nullptr);
  ASSERT_EQ(target.connect(initiator.qp->qp_num), 0);
  ASSERT_EQ(initiator.connect(target.qp->qp_num), 0);
  const SrqPtr other = target.make_srq();
  ASSERT_NE(other, nullptr);
  uint32_t other_number = 0;
  ASSERT_EQ(ibv_get_srq_num(other.get(), &other_number), 0);
  ASSERT_EQ(target.receive(1), 0);
  ibv_sge buffer{target.memory.address() + 4096, 64, target.memory.mr->lkey};
  for (const uint64_t wr_id : {2, 3}) {
    ibv_recv_wr wr{wr_id, nullptr, &buffer, 1};
    ibv_recv_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_srq_recv(other.get(), &wr, &bad), 0);
  }

  ibv_qp_ex* x = ibv_qp_to_qp_ex(initiator.qp.get());
  ASSERT_NE(x, nullptr);
  const uint32_t rkey = target.memory.mr->rkey, lkey = initiator.memory.mr->lkey;
  const uint64_t there = target.memory.address() + 8192, here = initiator.memory.address();
  std::memcpy(initiator.memory.bytes.data(), "0123456789", 10);
  x->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_start(x);
  ibv_wr_send(x);
  ibv_wr_set_xrc_srqn(x, target.srqn());
  ibv_wr_set_sge(x, lkey, here, 10);
  ibv_wr_send_imm(x, 5);
  char word[] = "inline";
  ibv_wr_set_inline_data(x, word, 6);
  ibv_wr_set_xrc_srqn(x, other_number);
  ibv_wr_rdma_write(x, rkey, there);
  ibv_wr_set_xrc_srqn(x, target.srqn());
  ibv_wr_set_sge(x, lkey, here, 10);
  ibv_wr_rdma_write_imm(x, rkey, there + 10, 6);
  ibv_wr_set_xrc_srqn(x, other_number);
  ibv_wr_set_sge(x, lkey, here, 10);
  ibv_wr_rdma_read(x, rkey, there + 5);
  ibv_wr_set_xrc_srqn(x, target.srqn());
  ibv_wr_set_sge(x, lkey, here + 100, 10);
  ibv_wr_atomic_fetch_add(x, rkey, there + 1024, 3);
  ibv_wr_set_xrc_srqn(x, other_number);
  ibv_wr_set_sge(x, lkey, here + 200, 8);
  ASSERT_EQ(ibv_wr_complete(x), 0);
  for (const ibv_wc_opcode opcode : {IBV_WC_SEND, IBV_WC_SEND, IBV_WC_RDMA_WRITE, IBV_WC_RDMA_WRITE,
                                     IBV_WC_RDMA_READ, IBV_WC_FETCH_ADD}) {
    const ibv_wc wc = wait_for_completion(initiator.cq.get());
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.opcode, opcode);
  }
  for (uint64_t wr_id = 1; wr_id <= 3; ++wr_id) {
    const ibv_wc wc = wait_for_completion(target.cq.get());
    EXPECT_EQ(wc.wr_id, wr_id);
    EXPECT_EQ(wc.byte_len, wr_id == 2 ? 6u : 10u);
    if (wr_id != 1) {
      EXPECT_EQ(wc.imm_data, wr_id == 2 ? 5u : 6u);
    }
  }
  const uint8_t* bytes = target.memory.bytes.data();
  EXPECT_EQ(std::memcmp(bytes, "0123456789", 10), 0);
  EXPECT_EQ(std::memcmp(bytes + 4096, "inline", 6), 0);
  EXPECT_EQ(std::memcmp(bytes + 8192, "01234567890123456789", 20), 0);
  EXPECT_EQ(bytes[8192 + 1024], 3);
  EXPECT_EQ(std::memcmp(initiator.memory.bytes.data() + 100, "5678901234", 10), 0);

  ibv_wr_start(x);
  ibv_wr_send(x);
  ibv_wr_set_xrc_srqn(x, other_number ^ 0x8000);
  ibv_wr_set_sge(x, lkey, here, 1);
  ASSERT_EQ(ibv_wr_complete(x), 0);
  EXPECT_EQ(wait_for_completion(initiator.cq.get()).status, IBV_WC_REM_INV_REQ_ERR);
}

// The completion queue of the SRQ lost a completion, so the SRQ fails.
TEST(Xrc, CqOverrunRaisesAnSrqError) {
  Target target;
  Initiator initiator;
  ASSERT_TRUE(target.make(-1, 1));
  ASSERT_TRUE(initiator.make());
  ASSERT_EQ(target.connect(initiator.qp->qp_num), 0);
  ASSERT_EQ(initiator.connect(target.qp->qp_num), 0);
  ASSERT_EQ(target.receive(1), 0);
  ASSERT_EQ(target.receive(2), 0);
  ibv_send_wr wr{};
  wr.opcode = IBV_WR_SEND;
  EXPECT_EQ(initiator.run(wr, 8, target.srqn()), IBV_WC_SUCCESS);
  ibv_sge buffer = initiator.memory.sge(8);
  wr.sg_list = &buffer;
  wr.num_sge = 1;
  wr.qp_type.xrc.remote_srqn = target.srqn();
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(initiator.qp.get(), &wr, &bad), 0);
  ibv_async_event of_srq{};
  for (int i = 0; i < 10 && of_srq.element.srq == nullptr; ++i) {  // other events are in between
    ibv_async_event event = wait_for_async_event(target.context.get());
    if (event.event_type == IBV_EVENT_SRQ_ERR) {
      of_srq = event;
    } else {
      ibv_ack_async_event(&event);
    }
  }
  ASSERT_EQ(of_srq.element.srq, target.srq.get());
  target.qp.reset();
  expect_destroy_waits_for_ack(of_srq, [&] { target.srq.reset(); });
}

// Programs set the RC attributes of both halves. Those of the missing half are ignored.
TEST(Xrc, IgnoresAttributesOfTheMissingHalf) {
  Target target;
  Initiator initiator;
  ASSERT_TRUE(target.make());
  ASSERT_TRUE(initiator.make());
  for (ibv_qp* qp : {initiator.qp.get(), target.qp.get()}) {
    ASSERT_EQ(to_init(qp), 0);
    EXPECT_EQ(to_rtr(qp, 7), 0);
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 14;
    EXPECT_EQ(ibv_modify_qp(qp, &attr,
                            IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
              0);
  }
}

// A second handle of a queue pair: both can modify it, both get its events, and it exists as long
// as the last handle.
TEST(Xrc, OpenQpGivesAnotherHandleOfTheSameQueuePair) {
  const File file;
  Target target;
  Initiator initiator;
  ASSERT_TRUE(target.make(file.fd()));
  ASSERT_TRUE(initiator.make());
  const ContextPtr context = open_loopback();
  const XrcdPtr xrcd = open_domain(context.get(), file.fd(), 0);
  const XrcdPtr elsewhere = open_domain(context.get(), -1, O_CREAT);
  ASSERT_NE(xrcd, nullptr);
  ibv_qp_open_attr open{};
  open.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE |
                   IBV_QP_OPEN_ATTR_CONTEXT;
  open.qp_num = target.qp->qp_num;
  open.qp_context = &open;
  open.qp_type = IBV_QPT_XRC_RECV;
  open.xrcd = elsewhere.get();
  EXPECT_EQ(ibv_open_qp(context.get(), &open), nullptr);
  EXPECT_EQ(errno, EINVAL);
  open.xrcd = xrcd.get();
  open.qp_num ^= 0x4000;
  EXPECT_EQ(ibv_open_qp(context.get(), &open), nullptr);
  EXPECT_EQ(errno, EINVAL);
  open.qp_num = target.qp->qp_num;
  open.qp_type = IBV_QPT_RC;
  EXPECT_EQ(ibv_open_qp(context.get(), &open), nullptr);
  EXPECT_EQ(errno, EINVAL);
  open.qp_type = IBV_QPT_XRC_RECV;
  QpPtr opened(ibv_open_qp(context.get(), &open));
  ASSERT_NE(opened, nullptr);
  EXPECT_EQ(opened->qp_num, target.qp->qp_num);
  EXPECT_EQ(opened->qp_context, &open);
  EXPECT_EQ(ibv_close_xrcd(xrcd.get()), EBUSY);

  ASSERT_EQ(to_init(opened.get()), 0);
  ASSERT_EQ(to_rtr(target.qp.get(), initiator.qp->qp_num), 0);
  ASSERT_EQ(initiator.connect(opened->qp_num), 0);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  ASSERT_EQ(ibv_modify_qp(opened.get(), &attr, IBV_QP_STATE), 0);
  for (ibv_qp* qp : {target.qp.get(), opened.get()}) {
    pollfd fd{qp->context->async_fd, POLLIN, 0};
    ASSERT_EQ(::poll(&fd, 1, 5000), 1);
    ibv_async_event event{};
    ASSERT_EQ(ibv_get_async_event(qp->context, &event), 0);
    EXPECT_EQ(event.event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
    EXPECT_EQ(event.element.qp, qp);
    ibv_ack_async_event(&event);
  }

  target.qp.reset();
  ibv_qp_init_attr init{};
  ASSERT_EQ(ibv_query_qp(opened.get(), &attr, IBV_QP_STATE, &init), 0);
  EXPECT_EQ(attr.qp_state, IBV_QPS_ERR);
  opened.reset();
  EXPECT_EQ(ibv_open_qp(context.get(), &open), nullptr);
}

}  // namespace
}  // namespace verbena::test

// Helpers of the ABI tests.
#include "tests/abi/loopback_support.h"

#include <dirent.h>
#include <poll.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <thread>

namespace verbena::test {
namespace {

int64_t now_ms() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1000 + t.tv_nsec / 1'000'000;
}

}  // namespace

ibv_device* loopback_device() {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  EXPECT_NE(list, nullptr);
  ibv_device* found = nullptr;
  for (int i = 0; i < count; ++i) {
    if (std::string(ibv_get_device_name(list[i])) == "verbena_lo") found = list[i];
  }
  ibv_free_device_list(list);
  EXPECT_NE(found, nullptr) << "is the loopback interface up?";
  return found;
}

ContextPtr open_loopback() {
  ibv_device* device = loopback_device();
  return ContextPtr(device != nullptr ? ibv_open_device(device) : nullptr);
}

ibv_qp_init_attr rc_attributes(ibv_cq* send_cq, ibv_cq* receive_cq) {
  ibv_qp_init_attr init{};
  init.send_cq = send_cq;
  init.recv_cq = receive_cq;
  init.qp_type = IBV_QPT_RC;
  init.cap = {64, 64, 4, 4, 256};
  return init;
}

int to_init(ibv_qp* qp, int access) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 1;
  attr.qp_access_flags = static_cast<unsigned>(access);
  return ibv_modify_qp(qp, &attr,
                       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

int to_rtr(ibv_qp* qp, uint32_t peer_qpn) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = IBV_MTU_1024;
  attr.dest_qp_num = peer_qpn;
  attr.rq_psn = 0xFFFFF0;  // so that it wraps soon
  attr.max_dest_rd_atomic = 16;
  attr.min_rnr_timer = 1;
  attr.ah_attr.is_global = 1;
  attr.ah_attr.port_num = 1;
  attr.ah_attr.grh.hop_limit = 64;
  if (ibv_query_gid(qp->context, 1, 0, &attr.ah_attr.grh.dgid) != 0) return errno;
  return ibv_modify_qp(qp, &attr,
                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                           IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

int to_rts(ibv_qp* qp) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = 14;
  attr.retry_cnt = 7;
  attr.rnr_retry = 7;
  attr.sq_psn = 0xFFFFF0;
  attr.max_rd_atomic = 16;
  return ibv_modify_qp(qp, &attr,
                       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                           IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

int uc_to_rts(ibv_qp* qp, uint32_t peer_qpn) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = IBV_MTU_1024;
  attr.dest_qp_num = peer_qpn;
  attr.rq_psn = attr.sq_psn = 0xFFFFF0;
  attr.ah_attr.is_global = 1;
  attr.ah_attr.port_num = 1;
  if (ibv_query_gid(qp->context, 1, 0, &attr.ah_attr.grh.dgid) != 0) return errno;
  const int code = ibv_modify_qp(
      qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN);
  if (code != 0) return code;
  attr.qp_state = IBV_QPS_RTS;
  return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN);
}

ibv_wc wait_for_completion(ibv_cq* cq) {
  ibv_wc wc{};
  const int64_t deadline = now_ms() + 10'000;
  while (now_ms() < deadline) {
    const int n = ibv_poll_cq(cq, 1, &wc);
    EXPECT_GE(n, 0);
    if (n != 0) return wc;
  }
  ADD_FAILURE() << "no completion within 10 seconds";
  wc.status = IBV_WC_GENERAL_ERR;
  return wc;
}

int completions_within_ms(ibv_cq* cq, int ms) {
  int found = 0;
  ibv_wc wc{};
  const int64_t deadline = now_ms() + ms;
  while (now_ms() < deadline) found += ibv_poll_cq(cq, 1, &wc);
  return found;
}

bool within_ms(int ms, const std::function<bool()>& condition) {
  const int64_t deadline = now_ms() + ms;
  do {
    if (condition()) return true;
    std::this_thread::yield();
  } while (now_ms() < deadline);
  return condition();
}

ibv_async_event wait_for_async_event(ibv_context* context) {
  ibv_async_event event{};
  event.event_type = no_such<ibv_event_type>(-1);
  pollfd fd{context->async_fd, POLLIN, 0};
  const bool has_event = poll(&fd, 1, 10'000) == 1;
  EXPECT_TRUE(has_event) << "no event within 10 seconds";
  if (has_event) {
    EXPECT_EQ(ibv_get_async_event(context, &event), 0);
  }
  return event;
}

void expect_destroy_waits_for_ack(ibv_async_event event, const std::function<void()>& destroy) {
  std::atomic<bool> acknowledged{false}, destroyed{false};
  std::thread destroyer([&] {
    destroy();
    EXPECT_TRUE(acknowledged);
    destroyed = true;
  });
  EXPECT_FALSE(within_ms(50, [&] { return destroyed.load(); }));
  acknowledged = true;
  ibv_ack_async_event(&event);
  destroyer.join();
}

int Side::receive(uint64_t wr_id, size_t offset, uint32_t length) {
  ibv_sge buffer = sge(offset, length);
  ibv_recv_wr wr{wr_id, nullptr, &buffer, 1};
  ibv_recv_wr* bad = nullptr;
  return ibv_post_recv(qp.get(), &wr, &bad);
}

int Side::send(ibv_send_wr& wr) {
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(qp.get(), &wr, &bad);
}

ibv_send_wr rdma(ibv_wr_opcode opcode, ibv_sge* sge, const Side& to, size_t offset) {
  ibv_send_wr wr{};
  wr.wr_id = 77;
  wr.sg_list = sge;
  wr.num_sge = sge != nullptr ? 1 : 0;
  wr.opcode = opcode;
  wr.send_flags = IBV_SEND_SIGNALED;
  if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
    wr.wr.atomic.remote_addr = to.address(offset);
    wr.wr.atomic.rkey = to.mr->rkey;
  } else {
    wr.wr.rdma.remote_addr = to.address(offset);
    wr.wr.rdma.rkey = to.mr->rkey;
  }
  return wr;
}

void LoopbackTest::SetUp() {
  context_ = open_loopback();
  ASSERT_NE(context_, nullptr);
  make_side(a_);
  make_side(b_);
  ASSERT_NO_FATAL_FAILURE(connect());
}

void LoopbackTest::make_side(Side& side, size_t bytes) {
  side.pd.reset(ibv_alloc_pd(context_.get()));
  ASSERT_NE(side.pd, nullptr);
  side.channel.reset(ibv_create_comp_channel(context_.get()));
  ASSERT_NE(side.channel, nullptr);
  side.cq.reset(ibv_create_cq(context_.get(), 256, &side, side.channel.get(), 0));
  ASSERT_NE(side.cq, nullptr);
  side.receive_cq.reset(ibv_create_cq(context_.get(), 256, nullptr, nullptr, 0));
  ASSERT_NE(side.receive_cq, nullptr);
  side.memory.assign(bytes, 0);
  side.mr.reset(ibv_reg_mr(side.pd.get(), side.memory.data(), bytes, kAllAccess));
  ASSERT_NE(side.mr, nullptr);
}

void LoopbackTest::connect() {
  for (Side* side : {&a_, &b_}) {
    ibv_qp_init_attr init = rc_attributes(side->cq.get(), side->receive_cq.get());
    side->qp.reset(ibv_create_qp(side->pd.get(), &init));
    ASSERT_NE(side->qp, nullptr);
    ASSERT_EQ(to_init(side->qp.get()), 0);
  }
  ASSERT_EQ(to_rtr(a_.qp.get(), b_.qp->qp_num), 0);
  ASSERT_EQ(to_rtr(b_.qp.get(), a_.qp->qp_num), 0);
  ASSERT_EQ(to_rts(a_.qp.get()), 0);
  ASSERT_EQ(to_rts(b_.qp.get()), 0);
}

void LoopbackTest::reconnect() {
  a_.qp.reset();
  b_.qp.reset();
  ibv_wc rest[16];
  for (ibv_cq* cq : {a_.cq.get(), a_.receive_cq.get(), b_.cq.get(), b_.receive_cq.get()}) {
    while (ibv_poll_cq(cq, 16, rest) > 0) {
    }
  }
  connect();
}

std::set<std::string> open_descriptors() {
  std::set<std::string> found;
  DIR* folder = opendir("/proc/self/fd");
  if (folder == nullptr) return found;
  while (const dirent* entry = readdir(folder)) {
    if (entry->d_name[0] == '.' || std::stoi(entry->d_name) == dirfd(folder)) continue;
    std::array<char, 256> target{};
    const std::string link = std::string("/proc/self/fd/") + entry->d_name;
    if (readlink(link.c_str(), target.data(), target.size() - 1) < 0) continue;
    found.insert(std::string(entry->d_name) + " " + target.data());
  }
  closedir(folder);
  return found;
}

size_t thread_count() {
  size_t count = 0;
  DIR* folder = opendir("/proc/self/task");
  if (folder == nullptr) return 0;
  while (const dirent* entry = readdir(folder)) count += entry->d_name[0] != '.' ? 1 : 0;
  closedir(folder);
  return count;
}

int in_child(const std::function<int()>& body) {
  const pid_t pid = fork();
  if (pid == 0) _exit(body());
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

}  // namespace verbena::test

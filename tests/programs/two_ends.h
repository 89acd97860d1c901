// Two processes of one host with a reliable connection between them: the resources of each, for
// programs on plain verbs that test one-sided access.
#pragma once

#include <infiniband/verbs.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "tests/programs/rc_by_hand.h"

namespace verbena::programs {

inline constexpr uint32_t kDepth = 256;
inline constexpr uint64_t kReceive = 1000;  // wr_id of all receives
inline constexpr int kAccess =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

inline void must(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%d: %s (errno %d)\n", getpid(), what, errno);
  std::_Exit(1);
}

inline double seconds_now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// The data that each end sends to the other.
struct ConnectionData {
  uint32_t qpn, rkey;
  uint64_t address;
  ibv_gid gid;
};

struct End {
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_cq* cq = nullptr;
  ibv_qp* qp = nullptr;
  ibv_mr* mr = nullptr;
  std::vector<uint8_t> memory;
  int socket = -1;
  ConnectionData peer{};

  explicit End(size_t bytes) : memory(bytes) {}

  void open(const char* device) {
    context = open_device(device);
    must(context != nullptr, "open");
    pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 2 * kDepth, nullptr, nullptr, 0);
    qp = make_qp();
  }
  ibv_qp* make_qp() {
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq;
    init.cap.max_send_wr = init.cap.max_recv_wr = kDepth;
    init.cap.max_send_sge = init.cap.max_recv_sge = 1;
    init.qp_type = IBV_QPT_RC;
    ibv_qp* const made = ibv_create_qp(pd, &init);
    must(made != nullptr, "ibv_create_qp");
    return made;
  }
  void register_memory() {
    mr = ibv_reg_mr(pd, memory.data(), memory.size(), kAccess);
    must(mr != nullptr, "ibv_reg_mr");
  }
  void exchange(void* out, void* in, size_t bytes) {
    must(::write(socket, out, bytes) == static_cast<ssize_t>(bytes), "write");
    must(::recv(socket, in, bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes), "read");
  }
  void synchronize() {
    char mine = 'm', other = 0;
    exchange(&mine, &other, 1);
  }

  // From any state. One receive is posted.
  void connect(uint8_t timeout, uint8_t retries) {
    ConnectionData mine{qp->qp_num, mr->rkey, reinterpret_cast<uint64_t>(memory.data()), {}};
    must(ibv_query_gid(context, 1, 0, &mine.gid) == 0, "ibv_query_gid");
    exchange(&mine, &peer, sizeof mine);
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_RESET;
    must(ibv_modify_qp(qp, &a, IBV_QP_STATE) == 0, "RESET");
    const Connection to{.peer = peer.qpn,
                        .gid = peer.gid,
                        .mtu = IBV_MTU_4096,
                        .access = kAccess,
                        .reads = 4,
                        .timeout = timeout,
                        .retries = retries};
    must(make_ready_for_receives(qp, to) == 0, "INIT");
    receive(0, 64);
    must(programs::connect(qp, to) == 0, "RTS");
    synchronize();
  }

  void post(ibv_wr_opcode op, uint64_t id, size_t local, size_t remote, uint32_t bytes) {
    ibv_sge sge{reinterpret_cast<uint64_t>(memory.data()) + local, bytes, mr->lkey};
    ibv_send_wr wr{}, *bad = nullptr;
    wr.wr_id = id;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = op;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma.remote_addr = peer.address + remote;
    wr.wr.rdma.rkey = peer.rkey;
    must(ibv_post_send(qp, &wr, &bad) == 0, "ibv_post_send");
  }
  void receive(size_t local, uint32_t bytes) {
    ibv_sge sge{reinterpret_cast<uint64_t>(memory.data()) + local, bytes, mr->lkey};
    ibv_recv_wr wr{}, *bad = nullptr;
    wr.wr_id = kReceive;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    must(ibv_post_recv(qp, &wr, &bad) == 0, "ibv_post_recv");
  }
  // False: no completion in that time.
  bool poll(ibv_wc& wc, double seconds) {
    const double end = seconds_now() + seconds;
    for (;;) {
      const int n = ibv_poll_cq(cq, 1, &wc);
      must(n >= 0, "ibv_poll_cq");
      if (n == 1) return true;
      if (seconds_now() > end) return false;
    }
  }
  void complete(uint64_t id, const char* what) {
    ibv_wc wc{};
    must(poll(wc, 20), what);
    must(wc.status == IBV_WC_SUCCESS && wc.wr_id == id, what);
  }
};

}  // namespace verbena::programs

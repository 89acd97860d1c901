// An idle process with connected queue pairs: it sends itself one message on each, prints "ready",
// and sleeps on its completion channel.
//   g++ -std=c++20 -I REPOSITORY idle.cc -libverbs -o idle && idle DEVICE
#include <infiniband/verbs.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "tests/programs/rc_by_hand.h"

namespace {

constexpr int kPairs = 4;

void must(bool holds, const char* what) {
  if (holds) return;
  std::perror(what);
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  must(argc == 2, "usage: idle DEVICE");
  ibv_context* const context = verbena::programs::open_device(argv[1]);
  must(context != nullptr, "open");
  ibv_gid gid{};
  must(ibv_query_gid(context, 1, 0, &gid) == 0, "ibv_query_gid");
  ibv_pd* const pd = ibv_alloc_pd(context);
  ibv_comp_channel* const channel = ibv_create_comp_channel(context);
  ibv_cq* const cq = ibv_create_cq(context, 64, nullptr, channel, 0);
  must(pd != nullptr && channel != nullptr && cq != nullptr, "pd, channel, cq");
  static char buffer[4096];
  ibv_mr* const mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE);
  must(mr != nullptr, "ibv_reg_mr");

  std::vector<ibv_qp*> qps;
  for (int i = 0; i < 2 * kPairs; ++i) {
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq;
    init.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1};
    init.qp_type = IBV_QPT_RC;
    qps.push_back(ibv_create_qp(pd, &init));
    must(qps.back() != nullptr, "ibv_create_qp");
  }
  for (int i = 0; i < 2 * kPairs; ++i) {
    const verbena::programs::Connection to{.peer = qps[i ^ 1]->qp_num, .gid = gid};
    must(make_ready_for_receives(qps[i], to) == 0 && connect(qps[i], to) == 0, "connect");
  }

  for (int i = 0; i < 2 * kPairs; ++i) {
    ibv_sge sge{reinterpret_cast<uintptr_t>(buffer), 64, mr->lkey};
    ibv_recv_wr receive{};
    receive.sg_list = &sge;
    receive.num_sge = 1;
    ibv_recv_wr* bad_receive = nullptr;
    must(ibv_post_recv(qps[i ^ 1], &receive, &bad_receive) == 0, "ibv_post_recv");
    ibv_send_wr send{};
    send.sg_list = &sge;
    send.num_sge = 1;
    send.opcode = IBV_WR_SEND;
    send.send_flags = IBV_SEND_SIGNALED;
    ibv_send_wr* bad_send = nullptr;
    must(ibv_post_send(qps[i], &send, &bad_send) == 0, "ibv_post_send");
  }
  for (int done = 0; done < 4 * kPairs;) {
    ibv_wc wc{};
    const int n = ibv_poll_cq(cq, 1, &wc);
    must(n >= 0 && (n == 0 || wc.status == IBV_WC_SUCCESS), "completion");
    done += n;
  }
  must(ibv_req_notify_cq(cq, 0) == 0, "ibv_req_notify_cq");
  std::puts("ready");
  std::fflush(stdout);
  ibv_cq* woken = nullptr;
  void* unused = nullptr;
  ibv_get_cq_event(channel, &woken, &unused);  // no event ever comes
  return 1;
}

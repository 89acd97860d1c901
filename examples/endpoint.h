// The part that both examples share after they are connected: registered memory, a completion
// queue, and the posting of work requests.
#pragma once

#include <infiniband/verbs.h>
#include <poll.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

// Unless `ok`, prints the error and an advice, and exits.
inline void check(bool ok, const char* what, const char* advice) {
  if (ok) return;
  std::fprintf(stderr, "FAILED: %s%s%s\n  %s\n", what, errno ? ": " : "",
               errno ? std::strerror(errno) : "", advice);
  std::exit(1);
}

// The location of a side's `shared` text; the other side needs both values for WRITE and READ.
struct Shared {
  uint64_t address;
  uint32_t rkey;
};

struct Endpoint {
  struct {
    char outgoing[64];  // source of SEND and WRITE, destination of READ
    char received[64];  // receives the other side's SEND
    char shared[64];    // the client WRITEs and READs the server's copy
  } memory{};
  int other_side;  // a descriptor; readable if the other side has left
  ibv_pd* pd;
  ibv_mr* mr;                     // the registered memory
  ibv_comp_channel* completions;  // wakes the program when a completion arrives
  ibv_cq* cq;
  ibv_qp* qp = nullptr;  // created and connected by the owner of the endpoint

  Endpoint(ibv_context* device, int other) : other_side(other) {
    pd = ibv_alloc_pd(device);
    check(pd, "ibv_alloc_pd", "`ibv_devinfo -v` shows the device's limits.");
    mr = ibv_reg_mr(pd, &memory, sizeof memory,
                    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
    check(mr, "ibv_reg_mr", "Is the limit of locked memory too low? See `ulimit -l`.");
    completions = ibv_create_comp_channel(device);
    cq = completions ? ibv_create_cq(device, 4, nullptr, completions, 0) : nullptr;
    check(cq && ibv_req_notify_cq(cq, 0) == 0, "ibv_create_cq", "Too many open files?");
    std::printf("  device %s\n", ibv_get_device_name(device->device));
  }
  Endpoint(const Endpoint&) = delete;
  ~Endpoint() {  // in reverse order; the owner has destroyed the queue pair
    ibv_destroy_cq(cq);
    ibv_destroy_comp_channel(completions);
    ibv_dereg_mr(mr);
    ibv_dealloc_pd(pd);
  }

  ibv_qp_init_attr queue_pair_wanted() const {
    ibv_qp_init_attr wanted{};
    wanted.qp_type = IBV_QPT_RC;  // reliable connection
    wanted.send_cq = wanted.recv_cq = cq;
    wanted.cap.max_send_wr = wanted.cap.max_recv_wr = 2;
    wanted.cap.max_send_sge = wanted.cap.max_recv_sge = 1;
    return wanted;
  }

  Shared mine() const { return {reinterpret_cast<uintptr_t>(memory.shared), mr->rkey}; }

  // Posts the memory for the next SEND of the other side. A SEND without a posted receive must
  // wait.
  void post_receive() {
    ibv_sge buffer{reinterpret_cast<uintptr_t>(memory.received), sizeof memory.received, mr->lkey};
    ibv_recv_wr receive{.wr_id = 0, .next = nullptr, .sg_list = &buffer, .num_sge = 1}, *bad;
    check((errno = ibv_post_recv(qp, &receive, &bad)) == 0, "ibv_post_recv", "See the errno.");
  }

  // Posts one SEND, WRITE or READ and waits for its completion.
  void work(ibv_wr_opcode opcode, const char* name, const Shared& theirs) {
    ibv_sge local{reinterpret_cast<uintptr_t>(memory.outgoing), sizeof memory.outgoing, mr->lkey};
    ibv_send_wr request{}, *bad;
    request.sg_list = &local;
    request.num_sge = 1;
    request.opcode = opcode;
    request.send_flags = IBV_SEND_SIGNALED;        // report its completion
    request.wr.rdma.remote_addr = theirs.address;  // a SEND ignores this and the rkey
    request.wr.rdma.rkey = theirs.rkey;
    check((errno = ibv_post_send(qp, &request, &bad)) == 0, "ibv_post_send", "See the errno.");
    await_completion(name);
  }

  // A program that needs low latency polls without sleeping; this one sleeps until a completion
  // event.
  void await_completion(const char* name) {
    ibv_wc done{};
    for (bool has_left = false; ibv_poll_cq(cq, 1, &done) == 0;) {
      errno = 0;
      check(!has_left, "the other side left early", "See its output.");
      pollfd wait[] = {{completions->fd, POLLIN, 0}, {other_side, POLLIN, 0}};
      poll(wait, 2, -1);
      has_left = wait[0].revents == 0 && wait[1].revents != 0;
      if (wait[0].revents == 0) continue;
      ibv_cq* ready;
      void* context;
      ibv_get_cq_event(completions, &ready, &context);
      ibv_ack_cq_events(ready, 1);
      ibv_req_notify_cq(cq, 0);  // arm the next event, then poll once more
    }
    errno = 0;
    check(done.status == IBV_WC_SUCCESS, ibv_wc_status_str(done.status),
          "`verbena run --log info` prints the usual cause.");
    std::printf("  completed: %s\n", name);
  }

  // The server's part and the client's part after the connection is set up.
  void run_server_part() {
    std::printf("4. wait for the client's SEND\n");
    await_completion("RECV");
    std::printf("  received: \"%.64s\"\n", memory.received);
    std::printf("5. do nothing: WRITE and READ do not involve this side\n");
  }
  void run_client_part(const Shared& theirs) {
    std::printf("4. SEND into the receive that the server has posted\n");
    std::strcpy(memory.outgoing, "hello, sent");
    work(IBV_WR_SEND, "SEND", theirs);
    std::printf("5. WRITE into the server's memory, then READ it back\n");
    std::strcpy(memory.outgoing, "hello, written");
    work(IBV_WR_RDMA_WRITE, "WRITE", theirs);
    std::memset(memory.outgoing, 0, sizeof memory.outgoing);
    work(IBV_WR_RDMA_READ, "READ", theirs);
    std::printf("  read back: \"%.64s\"\n", memory.outgoing);
  }
};

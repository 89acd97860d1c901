// What both examples have in common, whichever way they are connected: memory that the NIC may
// reach, a completion queue, and how to have work done.
#pragma once

#include <infiniband/verbs.h>
#include <poll.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

// Unless `ok`: says what went wrong and what to do about it, and ends the program.
inline void check(bool ok, const char* what, const char* advice) {
  if (ok) return;
  std::fprintf(stderr, "FAILED: %s%s%s\n  %s\n", what, errno ? ": " : "",
               errno ? std::strerror(errno) : "", advice);
  std::exit(1);
}

// Whoever has these may WRITE and READ a side's `shared` text.
struct Shared {
  uint64_t address;
  uint32_t rkey;
};

struct Endpoint {
  struct {
    char outgoing[64];  // we send, or write, or read, from or to here
    char received[64];  // the other side's SEND arrives here
    char shared[64];    // the client WRITEs and READs this of the server's
  } memory{};
  int other_side;  // a descriptor: something to read means that the other side has left
  ibv_pd* pd;
  ibv_mr* mr;                     // the memory, as the NIC knows it
  ibv_comp_channel* completions;  // to sleep on
  ibv_cq* cq;
  ibv_qp* qp = nullptr;  // made and connected by whoever has the endpoint

  Endpoint(ibv_context* device, int other) : other_side(other) {
    pd = ibv_alloc_pd(device);
    check(pd, "ibv_alloc_pd", "`ibv_devinfo -v` tells the device's limits.");
    mr = ibv_reg_mr(pd, &memory, sizeof memory,
                    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
    check(mr, "ibv_reg_mr", "Too little memory may be locked? See `ulimit -l`.");
    completions = ibv_create_comp_channel(device);
    cq = completions ? ibv_create_cq(device, 4, nullptr, completions, 0) : nullptr;
    check(cq && ibv_req_notify_cq(cq, 0) == 0, "ibv_create_cq", "Too many open files?");
    std::printf("  device %s\n", ibv_get_device_name(device->device));
  }
  Endpoint(const Endpoint&) = delete;
  ~Endpoint() {  // last made first; the queue pair is gone by now
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

  // The memory that the next SEND of the other side takes. A SEND that finds none must wait.
  void post_receive() {
    ibv_sge room{reinterpret_cast<uintptr_t>(memory.received), sizeof memory.received, mr->lkey};
    ibv_recv_wr receive{.wr_id = 0, .next = nullptr, .sg_list = &room, .num_sge = 1}, *bad;
    check((errno = ibv_post_recv(qp, &receive, &bad)) == 0, "ibv_post_recv", "See the errno.");
  }

  // Asks the NIC for one SEND, WRITE or READ, and waits until it is done.
  void work(ibv_wr_opcode opcode, const char* name, const Shared& theirs) {
    ibv_sge local{reinterpret_cast<uintptr_t>(memory.outgoing), sizeof memory.outgoing, mr->lkey};
    ibv_send_wr request{}, *bad;
    request.sg_list = &local;
    request.num_sge = 1;
    request.opcode = opcode;
    request.send_flags = IBV_SEND_SIGNALED;        // tell us when it is done
    request.wr.rdma.remote_addr = theirs.address;  // a SEND does not look at these two
    request.wr.rdma.rkey = theirs.rkey;
    check((errno = ibv_post_send(qp, &request, &bad)) == 0, "ibv_post_send", "See the errno.");
    await_completion(name);
  }

  // Programs in a hurry poll without end; this one sleeps while there is nothing.
  void await_completion(const char* name) {
    ibv_wc done{};
    for (bool left = false; ibv_poll_cq(cq, 1, &done) == 0;) {
      errno = 0;
      check(!left, "the other side left early", "See what it says.");
      pollfd wait[] = {{completions->fd, POLLIN, 0}, {other_side, POLLIN, 0}};
      poll(wait, 2, -1);
      left = wait[0].revents == 0 && wait[1].revents != 0;
      if (wait[0].revents == 0) continue;
      ibv_cq* ready;
      void* context;
      ibv_get_cq_event(completions, &ready, &context);
      ibv_ack_cq_events(ready, 1);
      ibv_req_notify_cq(cq, 0);  // of the next one, too; then poll once more
    }
    errno = 0;
    check(done.status == IBV_WC_SUCCESS, ibv_wc_status_str(done.status),
          "`verbena run --log info` says what usually causes it.");
    std::printf("  completed: %s\n", name);
  }

  // The server's part of the conversation, and the client's.
  void listen_to_client() {
    std::printf("4. wait for the client's SEND\n");
    await_completion("RECV");
    std::printf("  received: \"%.64s\"\n", memory.received);
    std::printf("5. do nothing: WRITE and READ do not involve this side\n");
  }
  void talk_to_server(const Shared& theirs) {
    std::printf("4. SEND: the server has posted where to\n");
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

// Work requests, each with one invalid field: rejected when posted, or completed with the
// documented status.
#include <arpa/inet.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "tests/abi/bad_input_support.h"

namespace verbena::test {
namespace {

constexpr uint32_t kNoSuchFlag = 1u << 20;

class BadWork : public BadInputTest {
 protected:
  // A list of one, with `change` made to a good WRITE.
  template <typename Change>
  std::function<int()> send(ibv_qp* qp, Change change) {
    return [=, this] {
      ibv_sge sge = a_.sge(0, 8);
      ibv_send_wr wr = rdma(IBV_WR_RDMA_WRITE, &sge, b_, 0);
      change(wr);
      ibv_send_wr* bad = nullptr;
      const int code = ibv_post_send(qp, &wr, &bad);
      EXPECT_EQ(bad, &wr);
      return code;
    };
  }
  std::function<int()> send_opcode(ibv_qp* qp, int opcode) {
    return send(qp, [=](auto& w) { w.opcode = no_such<ibv_wr_opcode>(opcode); });
  }
  // A good datagram, changed.
  template <typename Change>
  std::function<int()> send_datagram(Change change) {
    return send(ud_.get(), [=, this](auto& w) {
      w.opcode = IBV_WR_SEND;
      w.wr.ud.ah = ah_.get();
      w.wr.ud.remote_qpn = ud_->qp_num;
      w.wr.ud.remote_qkey = kQkey;
      change(w);
    });
  }
  // Between start and complete.
  template <typename Build>
  std::function<int()> build(ibv_qp* qp, Build body) {
    return [=] {
      ibv_qp_ex* ex = ibv_qp_to_qp_ex(qp);
      ibv_wr_start(ex);
      ex->wr_id = 1;
      ex->wr_flags = IBV_SEND_SIGNALED;
      body(ex);
      return ibv_wr_complete(ex);
    };
  }
};

TEST_F(BadWork, RejectsInvalidSends) {
  static ibv_sge many[33];
  for (ibv_sge& s : many) s = a_.sge(0, 1);
  static ibv_sge huge[2];
  for (ibv_sge& s : huge) s = {a_.address(), 0xFFFFFFFF, a_.mr->lkey};
  static ibv_sge four, nine, datagram;
  four = a_.sge(0, 4);
  nine = a_.sge(0, 257);
  datagram = a_.sge(0, 4097);
  ibv_qp* const qp = a_.qp.get();
  const auto good = [](auto&) {};
  const auto atomic = [this](auto& w) {
    w.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
    w.wr.atomic.remote_addr = b_.address();
    w.wr.atomic.rkey = b_.mr->rkey;
  };
  run({
      {"RESET", EINVAL, send(fresh_.get(), good)},
      {"INIT", EINVAL, send(init_.get(), good)},
      {"RTR", EINVAL, send(rtr_.get(), good)},
      {"XRC receive", EINVAL, send(xrc_receive_.get(), good)},
      {"opcode TSO", EINVAL, send_opcode(qp, IBV_WR_TSO)},
      {"opcode of a driver", EINVAL, send_opcode(qp, IBV_WR_DRIVER1)},
      {"opcode FLUSH", EINVAL, send_opcode(qp, 14)},
      {"opcode 255", EINVAL, send_opcode(qp, 255)},
      {"opcode 256 + SEND", EINVAL, send_opcode(qp, 256 + IBV_WR_SEND)},
      {"opcode -1", EINVAL, send_opcode(qp, -1)},
      {"flag", EINVAL, send(qp, [](auto& w) { w.send_flags |= kNoSuchFlag; })},
      {"checksum flag", EINVAL, send(qp, [](auto& w) { w.send_flags |= IBV_SEND_IP_CSUM; })},
      {"num_sge -1", EINVAL, send(qp, [](auto& w) { w.num_sge = -1; })},
      {"num_sge beyond max_send_sge", EINVAL,
       send(qp, [](auto& w) { w.sg_list = many, w.num_sge = 5; })},
      {"num_sge beyond the device's", EINVAL,
       send(qp, [](auto& w) { w.sg_list = many, w.num_sge = 33; })},
      {"sg_list null", EINVAL, send(qp, [](auto& w) { w.sg_list = nullptr; })},
      {"beyond 2 GiB", EINVAL, send(qp, [](auto& w) { w.sg_list = huge, w.num_sge = 2; })},
      {"inline too long", ENOMEM,
       send(qp, [](auto& w) { w.sg_list = &nine, w.send_flags |= IBV_SEND_INLINE; }), false},
      {"READ inline", EINVAL,
       send(qp,
            [](auto& w) {
              w.opcode = IBV_WR_RDMA_READ;
              w.send_flags |= IBV_SEND_INLINE;
            })},
      {"atomic of 4 bytes", EINVAL,
       send(qp,
            [=](auto& w) {
              atomic(w);
              w.sg_list = &four;
            })},
      {"atomic without a buffer", EINVAL,
       send(qp,
            [=](auto& w) {
              atomic(w);
              w.num_sge = 0;
            })},
      {"atomic misaligned", EINVAL,
       send(qp,
            [=](auto& w) {
              atomic(w);
              w.wr.atomic.remote_addr += 4;
            })},
      {"atomic WRITE of 4 bytes", EINVAL,
       send(qp, [](auto& w) { w.opcode = IBV_WR_ATOMIC_WRITE, w.sg_list = &four; })},
      {"bind of no window", EINVAL,
       send(qp, [](auto& w) { w.opcode = IBV_WR_BIND_MW, w.bind_mw.mw = nullptr; })},
      {"UD: no address handle", EINVAL, send_datagram([](auto& w) { w.wr.ud.ah = nullptr; })},
      {"UD: handle of another PD", EINVAL,
       send_datagram([this](auto& w) { w.wr.ud.ah = second_ah_.get(); })},
      {"UD: beyond the MTU", EINVAL, send_datagram([](auto& w) { w.sg_list = &datagram; })},
      {"UD: WRITE", EINVAL, send_datagram([](auto& w) { w.opcode = IBV_WR_RDMA_WRITE; })},
      {"UD: READ", EINVAL, send_datagram([](auto& w) { w.opcode = IBV_WR_RDMA_READ; })},
      {"UD: SEND with invalidate", EINVAL,
       send_datagram([](auto& w) { w.opcode = IBV_WR_SEND_WITH_INV; })},
      {"UD: flag", EINVAL, send_datagram([](auto& w) { w.send_flags |= kNoSuchFlag; })},
  });
}

TEST_F(BadWork, RejectsOpcodesThatUcLacks) {
  ASSERT_EQ(to_init(uc_.get()), 0);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = IBV_MTU_1024;
  attr.ah_attr = address();
  attr.dest_qp_num = uc_->qp_num;
  ASSERT_EQ(
      ibv_modify_qp(uc_.get(), &attr,
                    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN),
      0);
  attr.qp_state = IBV_QPS_RTS;
  ASSERT_EQ(ibv_modify_qp(uc_.get(), &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
  run({
      {"UC: READ", EINVAL, send_opcode(uc_.get(), IBV_WR_RDMA_READ)},
      {"UC: compare and swap", EINVAL, send_opcode(uc_.get(), IBV_WR_ATOMIC_CMP_AND_SWP)},
      {"UC: fetch and add", EINVAL, send_opcode(uc_.get(), IBV_WR_ATOMIC_FETCH_AND_ADD)},
      {"UC: atomic WRITE", EINVAL, send_opcode(uc_.get(), IBV_WR_ATOMIC_WRITE)},
  });
}

TEST_F(BadWork, RejectsInvalidReceives) {
  static ibv_sge many[33];
  for (ibv_sge& s : many) s = a_.sge(0, 1);
  static ibv_sge huge[2];
  for (ibv_sge& s : huge) s = {a_.address(), 0xFFFFFFFF, a_.mr->lkey};
  const auto receive = [](ibv_qp* qp, ibv_sge* list, int count) {
    return [=] {
      ibv_recv_wr wr{1, nullptr, list, count};
      ibv_recv_wr* bad = nullptr;
      const int code = ibv_post_recv(qp, &wr, &bad);
      EXPECT_EQ(bad, &wr);
      return code;
    };
  };
  const auto shared = [](ibv_srq* srq, ibv_sge* list, int count) {
    return [=] {
      ibv_recv_wr wr{1, nullptr, list, count};
      ibv_recv_wr* bad = nullptr;
      const int code = ibv_post_srq_recv(srq, &wr, &bad);
      EXPECT_EQ(bad, &wr);
      return code;
    };
  };
  ibv_qp* const qp = a_.qp.get();
  ibv_srq* const empty = xrc_srq_.get();
  run({
      {"receive: RESET", EINVAL, receive(fresh_.get(), many, 1)},
      {"receive: num_sge -1", EINVAL, receive(qp, many, -1)},
      {"receive: beyond max_recv_sge", EINVAL, receive(qp, many, 5)},
      {"receive: beyond the device's", EINVAL, receive(qp, many, 33)},
      {"receive: sg_list null", EINVAL, receive(qp, nullptr, 1)},
      {"receive: beyond 2 GiB", EINVAL, receive(qp, huge, 2)},
      {"receive: from an SRQ", EINVAL, receive(on_srq_.get(), many, 1)},
      {"receive: XRC send", EINVAL, receive(xrc_send_.get(), many, 1)},
      {"receive: XRC receive", EINVAL, receive(xrc_receive_.get(), many, 1)},
      {"SRQ: num_sge -1", EINVAL, shared(empty, many, -1)},
      {"SRQ: beyond max_sge", EINVAL, shared(empty, many, 2)},
      {"SRQ: beyond the device's", EINVAL, shared(empty, many, 33)},
      {"SRQ: sg_list null", EINVAL, shared(empty, nullptr, 1)},
      {"SRQ: full", ENOMEM, shared(srq_.get(), many, 1), false},
  });
}

TEST_F(BadWork, RejectsInvalidBuilderCalls) {
  ibv_qp* const qp = builder_.get();
  const uint32_t rkey = a_.mr->rkey;
  const uint64_t at = a_.address(4096);
  const auto write = [=](ibv_qp_ex* ex) { ibv_wr_rdma_write(ex, rkey, at); };
  static ibv_sge many[3];
  for (ibv_sge& s : many) s = a_.sge(0, 1);
  static uint8_t bytes[33];
  static ibv_data_buf buffers[2] = {{bytes, 32}, {bytes, 1}};
  static uint64_t word = 7;
  run({
      {"complete without start", EINVAL, [=] { return ibv_wr_complete(ibv_qp_to_qp_ex(qp)); }},
      {"start twice", EINVAL, build(qp, [](ibv_qp_ex* ex) { ibv_wr_start(ex); })},
      {"not requested at creation: READ", EINVAL,
       build(qp, [=](ibv_qp_ex* ex) { ibv_wr_rdma_read(ex, rkey, at); })},
      {"not requested at creation: SEND", EINVAL,
       build(qp, [](ibv_qp_ex* ex) { ibv_wr_send(ex); })},
      {"not requested at creation: SEND immediate", EINVAL,
       build(qp, [](ibv_qp_ex* ex) { ibv_wr_send_imm(ex, 1); })},
      {"not requested at creation: SEND invalidate", EINVAL,
       build(qp, [](ibv_qp_ex* ex) { ibv_wr_send_inv(ex, 1); })},
      {"not requested at creation: WRITE immediate", EINVAL,
       build(qp, [=](ibv_qp_ex* ex) { ibv_wr_rdma_write_imm(ex, rkey, at, 1); })},
      {"not requested at creation: compare and swap", EINVAL,
       build(qp, [=](ibv_qp_ex* ex) { ibv_wr_atomic_cmp_swp(ex, rkey, at, 1, 2); })},
      {"not requested at creation: local invalidate", EINVAL,
       build(qp, [](ibv_qp_ex* ex) { ibv_wr_local_inv(ex, 1); })},
      {"no TSO", EOPNOTSUPP, build(qp, [](ibv_qp_ex* ex) { ibv_wr_send_tso(ex, bytes, 8, 64); })},
      {"flag", EINVAL,
       build(qp,
             [=](ibv_qp_ex* ex) {
               ex->wr_flags = kNoSuchFlag;
               write(ex);
             })},
      {"SGE before any operation", EINVAL,
       build(qp, [](ibv_qp_ex* ex) { ibv_wr_set_sge_list(ex, 1, many); })},
      {"address before any operation", EINVAL,
       build(ud_builder_.get(),
             [this](ibv_qp_ex* ex) { ibv_wr_set_ud_addr(ex, ah_.get(), 1, 1); })},
      {"SRQ number before any operation", EINVAL,
       build(qp, [](ibv_qp_ex* ex) { ibv_wr_set_xrc_srqn(ex, 1); })},
      {"beyond max_send_sge", EINVAL,
       build(qp,
             [=](ibv_qp_ex* ex) {
               write(ex);
               ibv_wr_set_sge_list(ex, 3, many);
             })},
      {"inline too long", ENOMEM,
       build(qp,
             [=](ibv_qp_ex* ex) {
               write(ex);
               ibv_wr_set_inline_data(ex, bytes, 33);  // every queue pair takes at least 32 bytes
             }),
       false},
      {"inline list too long", ENOMEM,
       build(qp,
             [=](ibv_qp_ex* ex) {
               write(ex);
               ibv_wr_set_inline_data_list(ex, 2, buffers);
             }),
       false},
      {"beyond max_send_wr", ENOMEM,
       build(qp,
             [=](ibv_qp_ex* ex) {
               for (int i = 0; i < 5; ++i) write(ex);
             }),
       false},
      {"the last of three is wrong", EINVAL,
       build(qp,
             [=](ibv_qp_ex* ex) {
               write(ex);
               write(ex);
               ibv_wr_atomic_fetch_add(ex, rkey, at + 4, 1);
               ibv_wr_set_sge_list(ex, 1, many);
             })},
      {"atomic of 1 byte", EINVAL,
       build(qp,
             [=](ibv_qp_ex* ex) {
               ibv_wr_atomic_fetch_add(ex, rkey, at, 1);
               ibv_wr_set_sge_list(ex, 1, many);
             })},
      {"atomic WRITE misaligned", EINVAL,
       build(qp, [=](ibv_qp_ex* ex) { ibv_wr_atomic_write(ex, rkey, at + 4, &word); })},
      {"bind of no window", EINVAL,
       build(qp,
             [](ibv_qp_ex* ex) {
               const ibv_mw_bind_info info{};
               ibv_wr_bind_mw(ex, nullptr, 1, &info);
             })},
      {"datagram without an address", EINVAL,
       build(ud_builder_.get(),
             [](ibv_qp_ex* ex) {
               ibv_wr_send(ex);
               ibv_wr_set_sge_list(ex, 1, many);
             })},
      {"datagram, handle null", EINVAL,
       build(ud_builder_.get(),
             [](ibv_qp_ex* ex) {
               ibv_wr_send(ex);
               ibv_wr_set_ud_addr(ex, nullptr, 1, 1);
             })},
      {"datagram, handle of another PD", EINVAL,
       build(ud_builder_.get(),
             [this](ibv_qp_ex* ex) {
               ibv_wr_send(ex);
               ibv_wr_set_ud_addr(ex, second_ah_.get(), 1, 1);
             })},
  });
}

// An error that is detected only when the request is executed.
struct Failure {
  const char* name;
  ibv_wc_status status;
  std::function<void(ibv_send_wr&)> change;        // to a good WRITE of 8 bytes
  ibv_wc_status receive_status = IBV_WC_SUCCESS;   // of the receive, if there is one
  std::function<void(ibv_recv_wr&)> receive = {};  // changes a good receive of 8 bytes
};

TEST_F(BadWork, CompletesInvalidRequestsWithTheDocumentedStatus) {
  uint32_t stale_lkey, stale_rkey;
  {
    const MrPtr local(ibv_reg_mr(a_.pd.get(), a_.memory.data(), 4096, kAllAccess));
    const MrPtr remote(ibv_reg_mr(b_.pd.get(), b_.memory.data(), 4096, kAllAccess));
    stale_lkey = local->lkey;
    stale_rkey = remote->rkey;
  }
  const MrPtr unwritable(ibv_reg_mr(a_.pd.get(), a_.memory.data(), 4096, 0));
  const auto lkey = [](uint32_t key) { return [=](ibv_send_wr& w) { w.sg_list->lkey = key; }; };
  const auto rkey = [](uint32_t key) { return [=](ibv_send_wr& w) { w.wr.rdma.rkey = key; }; };
  const auto send = [](ibv_send_wr& w) { w.opcode = IBV_WR_SEND; };
  const auto bind = [&](ibv_mw* window, const ibv_mr* mr, uint64_t length, unsigned access) {
    return [=, this](ibv_send_wr& w) {
      w.opcode = IBV_WR_BIND_MW;
      w.bind_mw.mw = window;
      w.bind_mw.rkey = ibv_inc_rkey(window->rkey);
      w.bind_mw.bind_info = {const_cast<ibv_mr*>(mr), a_.address(), length, access};
    };
  };
  const auto atomic_to = [&](uint32_t key) {
    return [=, this](ibv_send_wr& w) {
      w.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
      w.wr.atomic.remote_addr = b_.address();
      w.wr.atomic.rkey = key;
    };
  };
  const MwPtr other_window(ibv_alloc_mw(second_pd_.get(), IBV_MW_TYPE_2));
  const Failure table[] = {
      {"lkey 0", IBV_WC_LOC_PROT_ERR, lkey(0)},
      {"lkey stale", IBV_WC_LOC_PROT_ERR, lkey(stale_lkey)},
      {"lkey of another PD", IBV_WC_LOC_PROT_ERR, lkey(second_mr_->lkey)},
      {"lkey a window's", IBV_WC_LOC_PROT_ERR, lkey(window1_->rkey)},
      {"beyond the local region", IBV_WC_LOC_PROT_ERR,
       [](ibv_send_wr& w) { w.sg_list->addr -= 4096; }},
      {"READ into a read-only region", IBV_WC_LOC_PROT_ERR,
       [&](ibv_send_wr& w) {
         w.opcode = IBV_WR_RDMA_READ;
         w.sg_list->lkey = unwritable->lkey;
       }},
      {"rkey 0", IBV_WC_REM_ACCESS_ERR, rkey(0)},
      {"rkey stale", IBV_WC_REM_ACCESS_ERR, rkey(stale_rkey)},
      {"rkey of another PD", IBV_WC_REM_ACCESS_ERR, rkey(second_mr_->rkey)},
      {"rkey without write access", IBV_WC_REM_ACCESS_ERR, rkey(read_only_->rkey)},
      {"rkey of an unbound window", IBV_WC_REM_ACCESS_ERR, rkey(window2_->rkey)},
      {"READ without read access", IBV_WC_REM_ACCESS_ERR,
       [&](ibv_send_wr& w) {
         w.opcode = IBV_WR_RDMA_READ;
         w.wr.rdma.rkey = read_only_->rkey;
       }},
      {"atomic where none is allowed", IBV_WC_REM_ACCESS_ERR, atomic_to(read_only_->rkey)},
      {"beyond the remote region", IBV_WC_REM_ACCESS_ERR,
       [&](ibv_send_wr& w) { w.wr.rdma.remote_addr = b_.address(b_.memory.size() - 4); }},
      {"before the remote region", IBV_WC_REM_ACCESS_ERR,
       [](ibv_send_wr& w) { w.wr.rdma.remote_addr -= 8; }},
      {"local invalidate of a region", IBV_WC_LOC_QP_OP_ERR,
       [&](ibv_send_wr& w) {
         w.opcode = IBV_WR_LOCAL_INV;
         w.invalidate_rkey = a_.mr->rkey;
       }},
      {"local invalidate of an unbound window", IBV_WC_LOC_QP_OP_ERR,
       [&](ibv_send_wr& w) {
         w.opcode = IBV_WR_LOCAL_INV;
         w.invalidate_rkey = window2_->rkey;
       }},
      {"bind without a region", IBV_WC_MW_BIND_ERR, bind(window2_.get(), nullptr, 64, 0)},
      {"bind to a region without bind access", IBV_WC_MW_BIND_ERR,
       bind(window2_.get(), unwritable.get(), 64, IBV_ACCESS_REMOTE_READ)},
      {"bind to a region of another PD", IBV_WC_MW_BIND_ERR,
       bind(window2_.get(), second_mr_.get(), 64, IBV_ACCESS_REMOTE_READ)},
      {"bind of a window of another PD", IBV_WC_MW_BIND_ERR,
       bind(other_window.get(), a_.mr.get(), 64, IBV_ACCESS_REMOTE_READ)},
      {"bind beyond the region", IBV_WC_MW_BIND_ERR,
       bind(window2_.get(), a_.mr.get(), a_.memory.size() + 1, IBV_ACCESS_REMOTE_READ)},
      {"bind with an unknown access flag", IBV_WC_MW_BIND_ERR,
       bind(window2_.get(), a_.mr.get(), 64, 1u << 12)},
      {"SEND longer than the receive", IBV_WC_REM_INV_REQ_ERR, send, IBV_WC_LOC_LEN_ERR,
       [](ibv_recv_wr& r) { r.sg_list->length = 7; }},
      {"SEND into no buffer at all", IBV_WC_REM_INV_REQ_ERR, send, IBV_WC_LOC_LEN_ERR,
       [](ibv_recv_wr& r) { r.num_sge = 0; }},
      {"SEND into a stale lkey", IBV_WC_REM_OP_ERR, send, IBV_WC_LOC_PROT_ERR,
       [&](ibv_recv_wr& r) { r.sg_list->lkey = stale_rkey; }},
      {"SEND into a read-only region", IBV_WC_REM_OP_ERR, send, IBV_WC_LOC_PROT_ERR,
       [&](ibv_recv_wr& r) { r.sg_list->lkey = read_only_->lkey; }},
  };
  for (const Failure& row : table) {
    SCOPED_TRACE(row.name);
    if (row.receive) {
      ibv_sge room = b_.sge(0, 8);
      ibv_recv_wr receive{3, nullptr, &room, 1};
      row.receive(receive);
      ibv_recv_wr* bad = nullptr;
      ASSERT_EQ(ibv_post_recv(b_.qp.get(), &receive, &bad), 0);
    }
    ibv_sge sge = a_.sge(0, 8);
    ibv_send_wr wr = rdma(IBV_WR_RDMA_WRITE, &sge, b_, 0);
    row.change(wr);
    std::memset(b_.memory.data(), 0x11, 16);
    std::memset(a_.memory.data(), 0x22, 16);
    ASSERT_EQ(a_.send(wr), 0);
    const ibv_wc done = wait_for_completion(a_.cq.get());
    EXPECT_EQ(done.status, row.status) << ibv_wc_status_str(done.status);
    EXPECT_EQ(done.wr_id, wr.wr_id);
    if (row.receive) {
      const ibv_wc received = wait_for_completion(b_.receive_cq.get());
      EXPECT_EQ(received.status, row.receive_status) << ibv_wc_status_str(received.status);
    }
    EXPECT_EQ(b_.memory[0], 0x11);  // no byte was changed
    EXPECT_EQ(a_.memory[0], 0x22);
    // A request posted to a queue pair in the error state is flushed.
    ibv_send_wr next = rdma(IBV_WR_RDMA_WRITE, &sge, b_, 0);
    ASSERT_EQ(a_.send(next), 0);
    EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_WR_FLUSH_ERR);
    ASSERT_NO_FATAL_FAILURE(reconnect());
    ASSERT_NO_FATAL_FAILURE(expect_everything_works());
  }
}

// The peer has no receive posted, or does not exist.
TEST_F(BadWork, UsesUpTheRetriesIfThePeerDoesNotRespond) {
  const auto status_of_send = [&](ibv_qp* qp) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RTS;
    attr.sq_psn = 0xFFFFF0;  // as to_rtr() expects
    attr.timeout = 8;        // 1 ms
    attr.retry_cnt = 1;
    EXPECT_EQ(ibv_modify_qp(qp, &attr,
                            IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
              0);
    ibv_sge sge = a_.sge(0, 8);
    ibv_send_wr wr = rdma(IBV_WR_SEND, &sge, b_, 0);
    ibv_send_wr* bad = nullptr;
    EXPECT_EQ(ibv_post_send(qp, &wr, &bad), 0);
    return wait_for_completion(cq_.get()).status;
  };
  EXPECT_EQ(status_of_send(rtr_.get()), IBV_WC_RNR_RETRY_EXC_ERR);  // connected to itself
  ASSERT_EQ(to_rtr(init_.get(), init_->qp_num ^ 0x8000), 0);
  EXPECT_EQ(status_of_send(init_.get()), IBV_WC_RETRY_EXC_ERR);
  expect_everything_works();
}

// The caller gets an errno; the log states the reason. The tables above check this if the log goes
// to a file.
TEST(BadInputLog, StatesTheReasonOfEveryRejection) {
  char self[4096] = "";
  ASSERT_GT(readlink("/proc/self/exe", self, sizeof self - 1), 0);
  char file[] = "/tmp/verbena-bad-input-XXXXXX";
  const int fd = mkstemp(file);
  ASSERT_GE(fd, 0);
  const std::string command = std::string("VERBENA_LOG=info VERBENA_LOG_FILE=") + file + " '" +
                              self + "' --gtest_brief=1 --gtest_filter='BadObjects.*:BadWork.*'";
  EXPECT_EQ(std::system(command.c_str()), 0);
  close(fd);
  unlink(file);
}

}  // namespace
}  // namespace verbena::test

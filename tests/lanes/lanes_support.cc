// Helpers of the tests of lanes.
#include "tests/lanes/lanes_support.h"

#include <fcntl.h>
#include <time.h>

#include <barrier>
#include <cstdlib>
#include <thread>

namespace verbena::test {
namespace {

size_t number_from_environment(const char* name, size_t otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::strtoul(text, nullptr, 10) : otherwise;
}

uint8_t pattern_at(uint64_t seed, size_t i) {
  return static_cast<uint8_t>((seed * 0x9E3779B97F4A7C15u >> 32) + i * 31 + (i >> 8));
}

}  // namespace

size_t stress_threads() {
  static const size_t threads = number_from_environment("VERBENA_STRESS_THREADS", 8);
  return threads;
}

size_t stress_rounds(size_t rounds) {
  static const size_t factor = number_from_environment("VERBENA_STRESS_FACTOR", 1);
  return rounds * factor;
}

void run_threads(size_t count, const std::function<void(size_t)>& body) {
  std::barrier start(static_cast<ptrdiff_t>(count));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      start.arrive_and_wait();
      body(i);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

ibv_wc take(ibv_cq* cq) {
  ibv_wc wc{};
  wc.status = IBV_WC_GENERAL_ERR;
  int found = 0;
  EXPECT_TRUE(within_ms(60'000, [&] { return (found = ibv_poll_cq(cq, 1, &wc)) != 0; }))
      << "no completion within a minute";
  EXPECT_GE(found, 0);
  return wc;
}

void take(ibv_cq* cq, uint64_t wr_id, ibv_wc_status status) {
  const ibv_wc wc = take(cq);
  EXPECT_EQ(wc.status, status) << ibv_wc_status_str(wc.status);
  EXPECT_EQ(wc.wr_id, wr_id);
}

void fill(std::span<uint8_t> bytes, uint64_t seed) {
  uint8_t* const at = bytes.data();
  for (size_t i = 0, n = bytes.size(); i < n; ++i) at[i] = pattern_at(seed, i);
}

bool has_pattern(std::span<const uint8_t> bytes, uint64_t seed) {
  const uint8_t* const at = bytes.data();
  for (size_t i = 0, n = bytes.size(); i < n; ++i) {
    if (at[i] != pattern_at(seed, i)) return false;
  }
  return true;
}

Region::Region(ibv_pd* pd, size_t bytes, int access) : memory(bytes) {
  mr.reset(ibv_reg_mr(pd, memory.data(), bytes, access));
  EXPECT_NE(mr, nullptr);
}

ibv_xrcd* open_xrc_domain(ibv_context* context) {
  ibv_xrcd_init_attr domain{};
  domain.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
  domain.fd = -1;
  domain.oflags = O_CREAT;
  return ibv_open_xrcd(context, &domain);
}

CqPtr make_cq(ibv_context* context, int entries, ibv_comp_channel* channel) {
  CqPtr cq(ibv_create_cq(context, entries, nullptr, channel, 0));
  EXPECT_NE(cq, nullptr);
  return cq;
}

QpPtr make_qp(ibv_pd* pd, ibv_cq* send_cq, ibv_cq* receive_cq, ibv_srq* srq) {
  ibv_qp_init_attr init = rc_attributes(send_cq, receive_cq);
  init.srq = srq;
  QpPtr qp(ibv_create_qp(pd, &init));
  EXPECT_NE(qp, nullptr);
  return qp;
}

int connect_to(ibv_qp* qp, uint32_t peer) {
  int code = to_init(qp);
  if (code == 0) code = to_rtr(qp, peer);
  return code != 0 ? code : to_rts(qp);
}

void connect_both(ibv_qp* a, ibv_qp* b) {
  EXPECT_EQ(connect_to(a, b->qp_num), 0);
  EXPECT_EQ(connect_to(b, a->qp_num), 0);
}

int post_receive(ibv_qp* qp, uint64_t wr_id, ibv_sge sge) {
  ibv_recv_wr wr{wr_id, nullptr, &sge, 1};
  ibv_recv_wr* bad = nullptr;
  return ibv_post_recv(qp, &wr, &bad);
}

int post_receive(ibv_srq* srq, uint64_t wr_id, ibv_sge sge) {
  ibv_recv_wr wr{wr_id, nullptr, &sge, 1};
  ibv_recv_wr* bad = nullptr;
  return ibv_post_srq_recv(srq, &wr, &bad);
}

namespace {

ibv_send_wr signaled(ibv_wr_opcode opcode, uint64_t wr_id, ibv_sge& sge) {
  ibv_send_wr wr{};
  wr.wr_id = wr_id;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = opcode;
  wr.send_flags = IBV_SEND_SIGNALED;
  return wr;
}

}  // namespace

int post(ibv_qp* qp, ibv_wr_opcode opcode, uint64_t wr_id, ibv_sge sge, uint64_t remote,
         uint32_t rkey) {
  ibv_send_wr wr = signaled(opcode, wr_id, sge);
  wr.wr.rdma = {remote, rkey};
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(qp, &wr, &bad);
}

int post_fetch_add(ibv_qp* qp, uint64_t wr_id, ibv_sge sge, uint64_t remote, uint32_t rkey) {
  ibv_send_wr wr = signaled(IBV_WR_ATOMIC_FETCH_AND_ADD, wr_id, sge);
  wr.wr.atomic = {.remote_addr = remote, .compare_add = 1, .swap = 0, .rkey = rkey};
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(qp, &wr, &bad);
}

Endpoint::Endpoint(ibv_pd* pd, ibv_srq* srq)
    : cq(make_cq(pd->context)), qp(make_qp(pd, cq.get(), cq.get(), srq)) {}

Pair::Pair(ibv_pd* pd) : a(pd), b(pd) { connect_both(a.qp.get(), b.qp.get()); }

void Pair::reconnect() {
  for (Endpoint* end : {&a, &b}) {
    ibv_pd* const pd = end->qp->pd;
    end->qp.reset();
    end->qp = make_qp(pd, end->cq.get(), end->cq.get());
  }
  connect_both(a.qp.get(), b.qp.get());
}

void BusyLanes::Worker::run(const std::atomic<bool>& stopped) {
  constexpr uint32_t kBytes = 16 << 10;
  while (!stopped && !::testing::Test::HasFailure()) {
    const uint64_t seed = rounds + 1;
    const size_t at = seed % 2 * kBytes;
    fill(region.at(at, kBytes), seed);
    EXPECT_EQ(post(pair.a.qp.get(), IBV_WR_RDMA_WRITE, seed, region.sge(at, kBytes),
                   region.address(2 * kBytes), region.mr->rkey),
              0);
    take(pair.a.cq.get(), seed);
    EXPECT_TRUE(has_pattern(region.at(2 * kBytes, kBytes), seed));
    ++rounds;
  }
}

BusyLanes::BusyLanes(ibv_pd* pd, size_t count) {
  for (size_t i = 0; i < count; ++i) workers_.push_back(std::make_unique<Worker>(pd));
  for (auto& worker : workers_) {
    worker->thread = std::thread([this, &worker] { worker->run(stopped_); });
  }
}

BusyLanes::~BusyLanes() {
  stopped_ = true;
  for (auto& worker : workers_) worker->thread.join();
}

void BusyLanes::expect_progress() const {
  for (const auto& worker : workers_) {
    const uint64_t before = worker->rounds;
    EXPECT_TRUE(within_ms(60'000, [&] { return worker->rounds > before; }));
  }
}

void LanesTest::SetUp() {
  context_ = open_loopback();
  ASSERT_NE(context_, nullptr);
  pd_.reset(ibv_alloc_pd(context_.get()));
  ASSERT_NE(pd_, nullptr);
}

}  // namespace verbena::test

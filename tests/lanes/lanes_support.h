// What the tests of lanes share: threads that start together, queue pairs in a lane of their own,
// and memory whose content can be checked. ctest runs these tests with VERBENA_LANES=4.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "tests/abi/loopback_support.h"

namespace verbena::test {

inline constexpr size_t kLanes = 4;

// VERBENA_STRESS_THREADS (8) and VERBENA_STRESS_FACTOR (1): `make soak` runs more and longer.
size_t stress_threads();
size_t stress_rounds(size_t rounds);

// Runs body(0) to body(count - 1) in a thread each.
void run_threads(size_t count, const std::function<void(size_t)>& body);

// The next completion, of any status. Fails the test after a minute.
ibv_wc take(ibv_cq* cq);
// The same. The test fails if it has another status or wr_id.
void take(ibv_cq* cq, uint64_t wr_id, ibv_wc_status status = IBV_WC_SUCCESS);

// The queue pair's number has the slot of its lane in its top byte.
inline uint32_t lane_of(const ibv_qp* qp) { return qp->qp_num >> 16; }

// Bytes that depend on `seed`, and whether they are there.
void fill(std::span<uint8_t> bytes, uint64_t seed);
bool has_pattern(std::span<const uint8_t> bytes, uint64_t seed);

struct Region {
  Region() = default;
  Region(ibv_pd* pd, size_t bytes, int access = kAllAccess);
  uint64_t address(size_t offset = 0) const {
    return reinterpret_cast<uint64_t>(memory.data()) + offset;
  }
  std::span<uint8_t> at(size_t offset, size_t bytes) { return {memory.data() + offset, bytes}; }
  ibv_sge sge(size_t offset, uint32_t bytes) const { return {address(offset), bytes, mr->lkey}; }

  std::vector<uint8_t> memory;
  MrPtr mr;
};

CqPtr make_cq(ibv_context* context, int entries = 256, ibv_comp_channel* channel = nullptr);
// A domain of this process alone; null if that failed.
ibv_xrcd* open_xrc_domain(ibv_context* context);
QpPtr make_qp(ibv_pd* pd, ibv_cq* send_cq, ibv_cq* receive_cq, ibv_srq* srq = nullptr);
// RESET to RTS, towards `peer`.
int connect_to(ibv_qp* qp, uint32_t peer);
void connect_both(ibv_qp* a, ibv_qp* b);

// Each returns the errno of the call.
int post_receive(ibv_qp* qp, uint64_t wr_id, ibv_sge sge);
int post_receive(ibv_srq* srq, uint64_t wr_id, ibv_sge sge);
int post(ibv_qp* qp, ibv_wr_opcode opcode, uint64_t wr_id, ibv_sge sge, uint64_t remote = 0,
         uint32_t rkey = 0);
int post_fetch_add(ibv_qp* qp, uint64_t wr_id, ibv_sge sge, uint64_t remote, uint32_t rkey);

// A queue pair with a completion queue of its own, hence in a lane of its own until there are as
// many as lanes.
struct Endpoint {
  Endpoint() = default;
  explicit Endpoint(ibv_pd* pd, ibv_srq* srq = nullptr);
  CqPtr cq;
  QpPtr qp;
};

// Two connected endpoints. reconnect() replaces the queue pairs: with new numbers, packets of the
// connection before cannot be taken for new ones.
struct Pair {
  explicit Pair(ibv_pd* pd);
  void reconnect();
  Endpoint a, b;
};

// Keeps as many lanes busy as there are, until the end: a thread each writes to a partner and
// checks what is there.
class BusyLanes {
 public:
  explicit BusyLanes(ibv_pd* pd, size_t count = kLanes);
  ~BusyLanes();
  // Each of them makes progress.
  void expect_progress() const;

 private:
  struct Worker {
    explicit Worker(ibv_pd* pd) : pair(pd), region(pd, size_t{64} << 10) {}
    void run(const std::atomic<bool>& stopped);

    Pair pair;
    Region region;
    std::atomic<uint64_t> rounds{0};
    std::thread thread;
  };

  std::atomic<bool> stopped_{false};
  std::vector<std::unique_ptr<Worker>> workers_;
};

class LanesTest : public ::testing::Test {
 protected:
  void SetUp() override;

  ContextPtr context_;
  PdPtr pd_;
};

}  // namespace verbena::test

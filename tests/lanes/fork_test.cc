// Forks of a process whose lanes are busy.
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "tests/lanes/lanes_support.h"
#include "tests/support/fork_watch.h"

namespace verbena::test {
namespace {

class Forks : public LanesTest {};

// Returns the number of the first call that did not fail as it should; 0: none. It allocates
// nothing: a thread of the parent may have held the allocator's locks.
int calls_of_child(const Pair& pair, const Region& region, ibv_mr* mr) {
  ibv_wc wc{};
  if (ibv_poll_cq(pair.a.cq.get(), 1, &wc) != -EIO) return 1;
  const ibv_sge sge = region.sge(0, 64);
  if (post(pair.a.qp.get(), IBV_WR_RDMA_WRITE, 1, sge, region.address(64), mr->rkey) != EIO) {
    return 2;
  }
  if (post_receive(pair.b.qp.get(), 1, sge) != EIO) return 3;
  if (ibv_req_notify_cq(pair.b.cq.get(), 0) != EIO) return 4;
  if (ibv_resize_cq(pair.b.cq.get(), 8) != EIO) return 5;
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  if (ibv_query_qp(pair.a.qp.get(), &attr, IBV_QP_STATE, &init) != 0) return 6;
  attr.qp_state = IBV_QPS_ERR;
  if (ibv_modify_qp(pair.a.qp.get(), &attr, IBV_QP_STATE) != EIO) return 7;
  return 0;
}

TEST_F(Forks, LeaveBusyLanesToTheParent) {
  const BusyLanes busy(pd_.get());
  Pair pair(pd_.get());
  Region region(pd_.get(), 4096);
  for (size_t i = 0; i < stress_rounds(20) && !HasFailure(); ++i) {
    EXPECT_EQ(in_child([&] { return calls_of_child(pair, region, region.mr.get()); }), 0);
    busy.expect_progress();
  }
}

// Otherwise the child waits for ever if a thread of the parent allocates at the fork and the
// allocator has no fork handlers of its own.
TEST_F(Forks, HandlersInTheChildNeitherAllocateNorLock) {
  const BusyLanes busy(pd_.get());
  for (size_t i = 0; i < stress_rounds(20) && !HasFailure(); ++i) expect_safe_fork_handlers();
}

TEST_F(Forks, StartProgramsBesideBusyLanes) {
  const BusyLanes busy(pd_.get());
  for (size_t i = 0; i < stress_rounds(20) && !HasFailure(); ++i) {
    EXPECT_EQ(in_child([] {
                execl("/bin/true", "true", nullptr);
                return 127;
              }),
              0);
    busy.expect_progress();
  }
}

}  // namespace
}  // namespace verbena::test

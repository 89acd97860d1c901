// DMA handles: which CPU they may name, which regions accept them, and when they can be released.
#include <dlfcn.h>
#include <sched.h>
#include <sys/sysinfo.h>

#include <cerrno>

#include "abi/verbs/newer_verbs.h"
#include "tests/abi/loopback_support.h"

namespace verbena::test {
namespace {

using abi::DmaHandle, abi::DmaHandleInit, abi::RegionInit;

class DmaHandles : public LoopbackTest {
 protected:
  template <typename Function>
  static Function* symbol(const char* name) {
    return reinterpret_cast<Function*>(dlvsym(RTLD_DEFAULT, name, "IBVERBS_1.15"));
  }
  DmaHandle* allocate(uint32_t cpu) {
    DmaHandleInit init{};
    init.comp_mask = abi::kDmaHandleCpu | abi::kDmaHandleHint | abi::kDmaHandleMemoryType;
    init.cpu_id = cpu;
    errno = 0;
    return symbol<DmaHandle*(ibv_context*, DmaHandleInit*)>("ibv_alloc_dmah")(context_.get(),
                                                                              &init);
  }
  int release(DmaHandle* handle) { return symbol<int(DmaHandle*)>("ibv_dealloc_dmah")(handle); }
  ibv_mr* register_with(DmaHandle* handle, int access) {
    RegionInit init{};
    init.length = 4096;
    init.access = access;
    init.addr = b_.memory.data();
    init.dmah = handle;
    init.comp_mask = abi::kRegionAddress | abi::kRegionDmaHandle;
    errno = 0;
    return symbol<ibv_mr*(ibv_pd*, RegionInit*)>("ibv_reg_mr_ex")(b_.pd.get(), &init);
  }
};

uint32_t permitted_cpu() { return static_cast<uint32_t>(sched_getcpu()); }

TEST_F(DmaHandles, RejectsACpuThatDoesNotExist) {
  EXPECT_EQ(allocate(0xFFFF), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(allocate(UINT32_MAX), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

TEST_F(DmaHandles, RejectsACpuThatTheThreadMayNotUse) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  if (CPU_COUNT(&before) < 2) GTEST_SKIP() << "one CPU";
  cpu_set_t one;
  CPU_ZERO(&one);
  uint32_t other = UINT32_MAX;
  for (uint32_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &before)) continue;
    if (CPU_COUNT(&one) == 0) {
      CPU_SET(cpu, &one);
    } else {
      other = cpu;
    }
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(allocate(other), nullptr);
  EXPECT_EQ(errno, EPERM);
  DmaHandle* handle = allocate(permitted_cpu());
  EXPECT_NE(handle, nullptr);
  EXPECT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
  EXPECT_EQ(release(handle), 0);
}

TEST_F(DmaHandles, RejectsOnDemandMemory) {
  DmaHandle* handle = allocate(permitted_cpu());
  ASSERT_NE(handle, nullptr);
  EXPECT_EQ(register_with(handle, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND), nullptr);
  EXPECT_EQ(errno, EINVAL);
  {
    MrPtr mr(register_with(handle, IBV_ACCESS_LOCAL_WRITE));
    ASSERT_NE(mr, nullptr);
    EXPECT_EQ(ibv_rereg_mr(mr.get(), IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0,
                           IBV_ACCESS_ON_DEMAND),
              IBV_REREG_MR_ERR_INPUT);
  }
  EXPECT_EQ(release(handle), 0);
}

TEST_F(DmaHandles, CannotBeReleasedWhileARegionUsesIt) {
  DmaHandle* handle = allocate(permitted_cpu());
  ASSERT_NE(handle, nullptr);
  {
    const MrPtr mr(register_with(handle, kAllAccess));
    ASSERT_NE(mr, nullptr);
    EXPECT_EQ(release(handle), EBUSY);
  }
  EXPECT_EQ(release(handle), 0);
}

}  // namespace
}  // namespace verbena::test

// Regions of every kind: re-registered, null, on demand, of device memory, of a descriptor; and the
// calls of newer releases.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "abi/verbs/newer_verbs.h"
#include "tests/abi/loopback_support.h"

namespace verbena::test {
namespace {

using DmPtr = std::unique_ptr<ibv_dm, Destroy<ibv_free_dm>>;

class Regions : public LoopbackTest {
 protected:
  // Executes one request of a_ and returns its status.
  ibv_wc_status run(ibv_wr_opcode opcode, ibv_sge sge, uint64_t remote, uint32_t rkey) {
    ibv_send_wr wr = rdma(opcode, &sge, b_, 0);
    wr.wr.rdma.remote_addr = remote;
    wr.wr.rdma.rkey = rkey;
    EXPECT_EQ(a_.send(wr), 0);
    return wait_for_completion(a_.cq.get()).status;
  }
  ibv_wc_status write(uint64_t remote, uint32_t rkey, uint32_t bytes = 8) {
    return run(IBV_WR_RDMA_WRITE, a_.sge(0, bytes), remote, rkey);
  }
  ibv_wc_status read(uint64_t remote, uint32_t rkey, uint32_t bytes = 8) {
    return run(IBV_WR_RDMA_READ, a_.sge(4096, bytes), remote, rkey);
  }
  void fill(uint8_t value) { std::fill_n(a_.memory.begin(), 4096, value); }

  size_t page_ = static_cast<size_t>(sysconf(_SC_PAGESIZE));
};

struct MemoryFile {
  explicit MemoryFile(size_t bytes) : fd(memfd_create("test", MFD_CLOEXEC)) {
    EXPECT_EQ(ftruncate(fd, static_cast<off_t>(bytes)), 0);
  }
  ~MemoryFile() { close(fd); }
  int fd;
};

// ---------------------------------------------------------------- re-registration

TEST_F(Regions, ReregistersNewMemory) {
  fill(0x11);
  Mapping other(2 * page_);
  ASSERT_EQ(
      ibv_rereg_mr(b_.mr.get(), IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, other.data(), page_, 0),
      0);
  EXPECT_EQ(b_.mr->addr, other.data());
  EXPECT_EQ(b_.mr->length, page_);
  EXPECT_EQ(write(other.address(page_ - 8), b_.mr->rkey), IBV_WC_SUCCESS);
  EXPECT_EQ(other.data()[page_ - 1], 0x11);
  EXPECT_EQ(write(b_.address(), b_.mr->rkey), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(Regions, ReregistersNewAccess) {
  ASSERT_EQ(ibv_rereg_mr(b_.mr.get(), IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0,
                         IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ),
            0);
  EXPECT_EQ(read(b_.address(), b_.mr->rkey), IBV_WC_SUCCESS);
  EXPECT_EQ(write(b_.address(), b_.mr->rkey), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(Regions, ReregistersInANewDomain) {
  PdPtr other(ibv_alloc_pd(context_.get()));
  ASSERT_EQ(ibv_rereg_mr(b_.mr.get(), IBV_REREG_MR_CHANGE_PD, other.get(), nullptr, 0, 0), 0);
  EXPECT_EQ(b_.mr->pd, other.get());
  EXPECT_EQ(ibv_dealloc_pd(other.get()), EBUSY);  // the region uses it now
  EXPECT_EQ(write(b_.address(), b_.mr->rkey), IBV_WC_REM_ACCESS_ERR);
  reconnect();
  ASSERT_EQ(ibv_rereg_mr(b_.mr.get(), IBV_REREG_MR_CHANGE_PD, b_.pd.get(), nullptr, 0, 0), 0);
  EXPECT_EQ(write(b_.address(), b_.mr->rkey), IBV_WC_SUCCESS);
}

TEST_F(Regions, ReregistersMemoryDomainAndAccessAtOnce) {
  fill(0x22);
  Mapping other(page_);
  ibv_mr* mr = ibv_reg_mr(a_.pd.get(), a_.memory.data(), 64, 0);
  ASSERT_NE(mr, nullptr);
  ASSERT_EQ(
      ibv_rereg_mr(
          mr, IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS,
          b_.pd.get(), other.data(), page_, kAllAccess),
      0);
  EXPECT_EQ(write(other.address(), mr->rkey), IBV_WC_SUCCESS);
  EXPECT_EQ(other.data()[7], 0x22);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

TEST_F(Regions, RejectedReregistrationKeepsTheRegion) {
  const auto refused = [&](int code, int flags, ibv_pd* pd, void* address, size_t length,
                           int access) {
    errno = 0;
    EXPECT_EQ(ibv_rereg_mr(b_.mr.get(), flags, pd, address, length, access),
              IBV_REREG_MR_ERR_INPUT);
    EXPECT_EQ(errno, code);
  };
  Mapping gone(page_);
  munmap(gone.at, page_);
  refused(EINVAL, 0, nullptr, nullptr, 0, 0);
  refused(EINVAL, 8, nullptr, nullptr, 0, 0);
  refused(EINVAL, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, nullptr, 64, 0);
  refused(EINVAL, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, b_.memory.data(), 0, 0);
  refused(EFAULT, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, gone.at, page_, 0);
  refused(EINVAL, IBV_REREG_MR_CHANGE_PD, nullptr, nullptr, 0, 0);
  refused(EINVAL, IBV_REREG_MR_CHANGE_PD, b_.pd.get(), nullptr, 0, kAllAccess);
  refused(EINVAL, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, IBV_ACCESS_REMOTE_WRITE);
  refused(EINVAL, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, 1 << 15);
  ContextPtr other = open_loopback();
  PdPtr foreign(ibv_alloc_pd(other.get()));
  refused(EINVAL, IBV_REREG_MR_CHANGE_PD, foreign.get(), nullptr, 0, 0);
  EXPECT_EQ(b_.mr->addr, b_.memory.data());
  EXPECT_EQ(b_.mr->pd, b_.pd.get());
  EXPECT_EQ(write(b_.address(), b_.mr->rkey), IBV_WC_SUCCESS);
}

// ---------------------------------------------------------------- null

TEST_F(Regions, NullRegionDiscardsWritesAndReadsZeros) {
  ibv_mr* null = ibv_alloc_null_mr(a_.pd.get());
  ASSERT_NE(null, nullptr);
  std::fill(b_.memory.begin(), b_.memory.begin() + 10000, 0x5A);
  const ibv_sge discarded{0x1234, 10000, null->lkey};
  EXPECT_EQ(run(IBV_WR_RDMA_READ, discarded, b_.address(), b_.mr->rkey), IBV_WC_SUCCESS);
  EXPECT_EQ(run(IBV_WR_RDMA_WRITE, discarded, b_.address(), b_.mr->rkey), IBV_WC_SUCCESS);
  EXPECT_TRUE(std::all_of(b_.memory.begin(), b_.memory.begin() + 10000,
                          [](uint8_t byte) { return byte == 0; }));
  errno = 0;
  EXPECT_EQ(ibv_rereg_mr(null, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, 0),
            IBV_REREG_MR_ERR_INPUT);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(ibv_dealloc_pd(a_.pd.get()), EBUSY);
  EXPECT_EQ(ibv_dereg_mr(null), 0);
}

// ---------------------------------------------------------------- on demand

TEST_F(Regions, OnDemandPagesMayBeMappedLater) {
  fill(0x33);
  void* at = mmap(nullptr, 4 * page_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  MrPtr mr(ibv_reg_mr(b_.pd.get(), at, 4 * page_, kAllAccess | IBV_ACCESS_ON_DEMAND));
  ASSERT_NE(mr, nullptr);
  mprotect(at, 4 * page_, PROT_READ | PROT_WRITE);
  EXPECT_EQ(write(reinterpret_cast<uint64_t>(at) + page_ - 4, mr->rkey), IBV_WC_SUCCESS);
  EXPECT_EQ(static_cast<uint8_t*>(at)[page_], 0x33);
  munmap(at, 4 * page_);
}

// Unmapped memory fails only the request that accesses it.
TEST_F(Regions, UnmappedMemoryOfAnOnDemandRegionFailsTheRequest) {
  Mapping map(3 * page_);
  MrPtr mr(ibv_reg_mr(b_.pd.get(), map.data(), 3 * page_, kAllAccess | IBV_ACCESS_ON_DEMAND));
  ASSERT_NE(mr, nullptr);
  munmap(map.data() + page_, page_);
  EXPECT_EQ(write(map.address(), mr->rkey), IBV_WC_SUCCESS);
  EXPECT_EQ(write(map.address(2 * page_), mr->rkey), IBV_WC_SUCCESS);
  EXPECT_EQ(write(map.address(page_), mr->rkey), IBV_WC_REM_ACCESS_ERR);
  reconnect();
  EXPECT_EQ(write(map.address(page_ - 4), mr->rkey), IBV_WC_REM_ACCESS_ERR);  // half of it unmapped
  reconnect();
  EXPECT_EQ(read(map.address(page_ + 100), mr->rkey), IBV_WC_REM_ACCESS_ERR);
  reconnect();
  ibv_sge sge = a_.sge(0, 8);
  ibv_send_wr add = rdma(IBV_WR_ATOMIC_FETCH_AND_ADD, &sge, b_, 0);
  add.wr.atomic.remote_addr = map.address(page_);
  add.wr.atomic.rkey = mr->rkey;
  ASSERT_EQ(a_.send(add), 0);
  EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_REM_ACCESS_ERR);
  reconnect();
  mprotect(map.data(), page_, PROT_READ);
  EXPECT_EQ(read(map.address(), mr->rkey), IBV_WC_SUCCESS);
  EXPECT_EQ(write(map.address(), mr->rkey), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(Regions, UnmappedLocalMemoryOfAnOnDemandRegionFailsTheRequest) {
  Mapping map(2 * page_);
  MrPtr mr(ibv_reg_mr(a_.pd.get(), map.data(), 2 * page_, kAllAccess | IBV_ACCESS_ON_DEMAND));
  ASSERT_NE(mr, nullptr);
  munmap(map.data() + page_, page_);
  const ibv_sge across{map.address(page_ - 8), 16, mr->lkey};
  EXPECT_EQ(run(IBV_WR_RDMA_WRITE, across, b_.address(), b_.mr->rkey), IBV_WC_LOC_PROT_ERR);
  reconnect();
  EXPECT_EQ(run(IBV_WR_RDMA_READ, across, b_.address(), b_.mr->rkey), IBV_WC_LOC_PROT_ERR);
}

TEST_F(Regions, RegistersTheWholeAddressSpaceOnDemand) {
  MrPtr all(ibv_reg_mr(b_.pd.get(), nullptr, SIZE_MAX, kAllAccess | IBV_ACCESS_ON_DEMAND));
  ASSERT_NE(all, nullptr);
  fill(0x44);
  Mapping map(2 * page_);  // mapped after the registration
  EXPECT_EQ(write(map.address(page_ - 4), all->rkey), IBV_WC_SUCCESS);
  EXPECT_EQ(map.data()[page_], 0x44);
  ibv_sge sge{map.address(), static_cast<uint32_t>(2 * page_), all->lkey};
  EXPECT_EQ(ibv_advise_mr(b_.pd.get(), IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE,
                          IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1),
            0);
  EXPECT_EQ(write(8, all->rkey), IBV_WC_REM_ACCESS_ERR);  // never mapped
  munmap(map.data() + page_, page_);
  EXPECT_EQ(ibv_advise_mr(b_.pd.get(), IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1), EFAULT);
}

TEST_F(Regions, ReportsOnDemandCapabilities) {
  ibv_device_attr_ex attr{};
  ASSERT_EQ(ibv_query_device_ex(context_.get(), nullptr, &attr), 0);
  EXPECT_EQ(attr.odp_caps.general_caps, uint64_t{IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT});
  EXPECT_NE(attr.odp_caps.per_transport_caps.rc_odp_caps & IBV_ODP_SUPPORT_ATOMIC, 0u);
  EXPECT_GE(attr.max_dm_size, 4096u);
  EXPECT_NE(attr.device_cap_flags_ex & abi::kDeviceAtomicWrite, 0u);
}

// ---------------------------------------------------------------- device memory

TEST_F(Regions, WritesAndReadsDeviceMemory) {
  ibv_alloc_dm_attr attr{.length = 10000, .log_align_req = 3, .comp_mask = 0};
  DmPtr dm(ibv_alloc_dm(context_.get(), &attr));
  ASSERT_NE(dm, nullptr);
  const int access = IBV_ACCESS_ZERO_BASED | kAllAccess;
  MrPtr mr(ibv_reg_dm_mr(b_.pd.get(), dm.get(), 100, 9000, access));
  ASSERT_NE(mr, nullptr);
  fill(0x55);
  EXPECT_EQ(write(8000, mr->rkey, 1000), IBV_WC_SUCCESS);
  std::vector<uint8_t> got(1000);
  ASSERT_EQ(ibv_memcpy_from_dm(got.data(), dm.get(), 8100, 1000), 0);
  EXPECT_TRUE(std::all_of(got.begin(), got.end(), [](uint8_t byte) { return byte == 0x55; }));
  const uint64_t value = 0x0123456789ABCDEF;
  ASSERT_EQ(ibv_memcpy_to_dm(dm.get(), 100, &value, 8), 0);
  EXPECT_EQ(read(0, mr->rkey), IBV_WC_SUCCESS);
  EXPECT_EQ(std::memcmp(a_.memory.data() + 4096, &value, 8), 0);
  EXPECT_EQ(ibv_free_dm(dm.get()), EBUSY);
  EXPECT_EQ(write(8993, mr->rkey), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(Regions, RejectsDeviceMemoryBeyondTheLimits) {
  ibv_device_attr_ex device{};
  ASSERT_EQ(ibv_query_device_ex(context_.get(), nullptr, &device), 0);
  const auto refused = [&](int code, ibv_alloc_dm_attr attr) {
    errno = 0;
    EXPECT_EQ(ibv_alloc_dm(context_.get(), &attr), nullptr);
    EXPECT_EQ(errno, code);
  };
  refused(EINVAL, {.length = 0, .log_align_req = 0, .comp_mask = 0});
  refused(EINVAL, {.length = 8, .log_align_req = 0, .comp_mask = 1});
  refused(EINVAL, {.length = 8, .log_align_req = 40, .comp_mask = 0});
  refused(ENOMEM, {.length = device.max_dm_size + 1, .log_align_req = 0, .comp_mask = 0});
  ibv_alloc_dm_attr all{.length = device.max_dm_size, .log_align_req = 0, .comp_mask = 0};
  {
    DmPtr dm(ibv_alloc_dm(context_.get(), &all));
    ASSERT_NE(dm, nullptr);
    refused(ENOMEM, {.length = 8, .log_align_req = 0, .comp_mask = 0});
  }
  DmPtr again(ibv_alloc_dm(context_.get(), &all));
  ASSERT_NE(again, nullptr);
  const auto no_region = [&](uint64_t offset, size_t length, unsigned access) {
    errno = 0;
    EXPECT_EQ(ibv_reg_dm_mr(b_.pd.get(), again.get(), offset, length, access), nullptr);
    EXPECT_EQ(errno, EINVAL);
  };
  no_region(0, 8, IBV_ACCESS_LOCAL_WRITE);
  no_region(device.max_dm_size - 7, 8, IBV_ACCESS_ZERO_BASED);
  no_region(0, 8, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_REMOTE_WRITE);
}

// ---------------------------------------------------------------- dma-buf descriptors

TEST_F(Regions, RegistersADmaBuf) {
  MemoryFile file(4 * page_);
  const uint64_t iova = 0x7000'0000'0000 + 16;
  MrPtr mr(ibv_reg_dmabuf_mr(b_.pd.get(), page_ + 16, 2 * page_, iova, file.fd, kAllAccess));
  ASSERT_NE(mr, nullptr);
  fill(0x66);
  EXPECT_EQ(write(iova + 2 * page_ - 8, mr->rkey), IBV_WC_SUCCESS);
  uint8_t byte = 0;
  ASSERT_EQ(pread(file.fd, &byte, 1, static_cast<off_t>(3 * page_ + 15)), 1);
  EXPECT_EQ(byte, 0x66);
  byte = 0x77;
  ASSERT_EQ(pwrite(file.fd, &byte, 1, static_cast<off_t>(page_ + 16)), 1);
  EXPECT_EQ(read(iova, mr->rkey), IBV_WC_SUCCESS);
  EXPECT_EQ(a_.memory[4096], 0x77);
}

TEST_F(Regions, RejectsAnInvalidDmaBuf) {
  MemoryFile file(2 * page_);
  const auto refused = [&](int code, uint64_t offset, size_t length, uint64_t iova, int fd,
                           int access) {
    errno = 0;
    EXPECT_EQ(ibv_reg_dmabuf_mr(b_.pd.get(), offset, length, iova, fd, access), nullptr);
    EXPECT_EQ(errno, code);
  };
  refused(EBADF, 0, page_, 0, -1, kAllAccess);
  refused(EBADF, 0, page_, 0, 100000, kAllAccess);
  refused(EINVAL, 0, 0, 0, file.fd, kAllAccess);
  refused(EINVAL, page_, page_ + 1, 0, file.fd, kAllAccess);
  refused(EINVAL, UINT64_MAX - page_ + 1, 2 * page_, 0, file.fd, kAllAccess);
  refused(EINVAL, 8, 8, 16, file.fd, kAllAccess);
  refused(EINVAL, 0, page_, 0, file.fd, kAllAccess | IBV_ACCESS_ON_DEMAND);
  refused(EINVAL, 0, page_, 0, file.fd, IBV_ACCESS_REMOTE_WRITE);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  refused(EINVAL, 0, page_, 0, ends[0], kAllAccess);
  close(ends[0]);
  close(ends[1]);
  const std::string path = "/proc/self/fd/" + std::to_string(file.fd);
  const int read_only = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(read_only, 0);
  refused(EACCES, 0, page_, 0, read_only, kAllAccess);
  MrPtr mr(ibv_reg_dmabuf_mr(b_.pd.get(), 0, page_, 0, read_only, IBV_ACCESS_REMOTE_READ));
  EXPECT_NE(mr, nullptr);
  close(read_only);
}

// ---------------------------------------------------------------- ATOMIC WRITE

TEST_F(Regions, AtomicWriteWritesEightBytes) {
  const uint64_t value = 0x1122334455667788;
  std::memcpy(a_.memory.data(), &value, 8);
  EXPECT_EQ(run(IBV_WR_ATOMIC_WRITE, a_.sge(0, 8), b_.address(64), b_.mr->rkey), IBV_WC_SUCCESS);
  EXPECT_EQ(std::memcmp(b_.memory.data() + 64, &value, 8), 0);
  ibv_sge four = a_.sge(0, 4);
  ibv_send_wr wr = rdma(IBV_WR_ATOMIC_WRITE, &four, b_, 0);
  EXPECT_EQ(a_.send(wr), EINVAL);
  ibv_sge eight = a_.sge(0, 8);
  wr = rdma(IBV_WR_ATOMIC_WRITE, &eight, b_, 4);
  EXPECT_EQ(a_.send(wr), EINVAL);
  wr = rdma(no_such<ibv_wr_opcode>(14), nullptr, b_, 0);
  EXPECT_EQ(a_.send(wr), EINVAL);  // FLUSH has its own function
  EXPECT_EQ(run(IBV_WR_ATOMIC_WRITE, a_.sge(0, 8), b_.address(), b_.mr->rkey ^ 1),
            IBV_WC_REM_ACCESS_ERR);
}

// ---------------------------------------------------------------- newer nodes

template <typename Function>
Function* newer(const char* name, const char* version) {
  void* found = dlvsym(RTLD_DEFAULT, name, version);
  EXPECT_NE(found, nullptr) << name << "@" << version;
  return reinterpret_cast<Function*>(found);
}

// The function pointer that headers of 1.17 find at a fixed distance from the ibv_context.
template <typename Function>
Function slot(ibv_context* context, size_t index) {
  auto* ops = reinterpret_cast<std::byte*>(context) - offsetof(verbs_context, context) -
              sizeof(abi::NewerOps);
  Function function;
  std::memcpy(&function, ops + index * sizeof function, sizeof function);
  return function;
}

TEST_F(Regions, NewerFunctionPointersAreWhereHeadersExpectThem) {
  verbs_context* context = verbs_get_ctx(context_.get());
  EXPECT_EQ(context->sz, 696u);
  for (size_t i = 0; i < sizeof(abi::NewerOps) / sizeof(void*); ++i) {
    EXPECT_NE(slot<void*>(context_.get(), i), nullptr) << i;
  }
  abi::Buffer* buffer = nullptr;
  const auto alloc = slot<decltype(abi::NewerOps::alloc_buf)>(context_.get(), 1);
  const auto release = slot<decltype(abi::NewerOps::free_buf)>(context_.get(), 0);
  EXPECT_NE(alloc(a_.pd.get(), 100, &buffer), nullptr);
  release(buffer);
}

TEST_F(Regions, RegistersAllocatedBuffers) {
  using abi::Buffer;
  auto* alloc = newer<void*(ibv_pd*, size_t, Buffer**)>("ibv_alloc_buf", "IBVERBS_1.17");
  auto* release = newer<void(Buffer*)>("ibv_free_buf", "IBVERBS_1.17");
  auto* reg =
      newer<ibv_mr*(ibv_pd*, Buffer*, void*, size_t, int)>("ibv_reg_buf_mr", "IBVERBS_1.17");
  Buffer* buffer = nullptr;
  auto* at = static_cast<uint8_t*>(alloc(b_.pd.get(), 3 * page_, &buffer));
  ASSERT_NE(at, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(at) % page_, 0u);
  errno = 0;
  EXPECT_EQ(reg(a_.pd.get(), buffer, at, 8, kAllAccess), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(reg(b_.pd.get(), buffer, at + 1, 3 * page_, kAllAccess), nullptr);
  EXPECT_EQ(reg(b_.pd.get(), buffer, at - 1, 8, kAllAccess), nullptr);
  MrPtr mr(reg(b_.pd.get(), buffer, at + 64, page_, kAllAccess));
  ASSERT_NE(mr, nullptr);
  fill(0x88);
  EXPECT_EQ(write(reinterpret_cast<uint64_t>(at) + 64, mr->rkey), IBV_WC_SUCCESS);
  EXPECT_EQ(at[71], 0x88);
  auto* export_fd = newer<int(Buffer*)>("ibv_export_buf_dmabuf_fd", "IBVERBS_1.18");
  errno = 0;
  EXPECT_EQ(export_fd(buffer), -1);
  EXPECT_EQ(errno, ENODATA);  // as rdma-core does for ordinary memory
  release(buffer);            // the region keeps the memory
  EXPECT_EQ(write(reinterpret_cast<uint64_t>(at) + 64, mr->rkey), IBV_WC_SUCCESS);
}

TEST_F(Regions, RegMrExRegistersMemoryAndDescriptors) {
  using abi::DmaHandle, abi::DmaHandleInit, abi::RegionInit;
  auto* reg = newer<ibv_mr*(ibv_pd*, RegionInit*)>("ibv_reg_mr_ex", "IBVERBS_1.15");
  auto* alloc = newer<DmaHandle*(ibv_context*, DmaHandleInit*)>("ibv_alloc_dmah", "IBVERBS_1.15");
  auto* release = newer<int(DmaHandle*)>("ibv_dealloc_dmah", "IBVERBS_1.15");
  DmaHandleInit hints{};
  hints.comp_mask = abi::kDmaHandleCpu | abi::kDmaHandleHint | abi::kDmaHandleMemoryType;
  hints.processing_hint = 9;
  EXPECT_EQ(alloc(context_.get(), &hints), nullptr);
  hints.processing_hint = 2;
  DmaHandle* handle = alloc(context_.get(), &hints);
  ASSERT_NE(handle, nullptr);

  RegionInit init{};
  init.length = 4096;
  init.access = kAllAccess;
  init.addr = b_.memory.data();
  init.dmah = handle;
  init.iova = 0x9000;
  init.comp_mask = abi::kRegionAddress | abi::kRegionDmaHandle | abi::kRegionIova;
  MrPtr mr(reg(b_.pd.get(), &init));
  ASSERT_NE(mr, nullptr);
  fill(0x99);
  EXPECT_EQ(write(0x9000 + 4088, mr->rkey), IBV_WC_SUCCESS);
  EXPECT_EQ(b_.memory[4095], 0x99);

  MemoryFile file(page_);
  init.fd = file.fd;
  init.fd_offset = 0;
  init.comp_mask = abi::kRegionFd | abi::kRegionFdOffset | abi::kRegionIova;
  MrPtr from_file(reg(b_.pd.get(), &init));
  EXPECT_NE(from_file, nullptr);
  for (const uint64_t mask :
       {uint64_t{0}, abi::kRegionIova, abi::kRegionFd, uint64_t{1} << 6,
        abi::kRegionFd | abi::kRegionFdOffset | abi::kRegionIova | abi::kRegionAddress,
        abi::kRegionBuffer | abi::kRegionAddress}) {
    init.comp_mask = mask;
    errno = 0;
    EXPECT_EQ(reg(b_.pd.get(), &init), nullptr) << mask;
    EXPECT_EQ(errno, EINVAL) << mask;
  }
  mr.reset();
  EXPECT_EQ(release(handle), 0);
}

TEST_F(Regions, ExportsDeviceMemoryAsADescriptor) {
  auto* export_fd = newer<int(ibv_dm*)>("ibv_dm_export_dmabuf_fd", "IBVERBS_1.16");
  ibv_alloc_dm_attr attr{.length = page_, .log_align_req = 0, .comp_mask = 0};
  DmPtr dm(ibv_alloc_dm(context_.get(), &attr));
  ASSERT_NE(dm, nullptr);
  const int fd = export_fd(dm.get());
  ASSERT_GE(fd, 0);
  EXPECT_NE(ftruncate(fd, 0), 0);  // it cannot be truncated
  MrPtr mr(ibv_reg_dmabuf_mr(b_.pd.get(), 0, page_, 0, fd, kAllAccess));
  ASSERT_NE(mr, nullptr);
  close(fd);
  fill(0xAA);
  EXPECT_EQ(write(0, mr->rkey), IBV_WC_SUCCESS);
  uint32_t word = 0;
  ASSERT_EQ(ibv_memcpy_from_dm(&word, dm.get(), 4, 4), 0);
  EXPECT_EQ(word, 0xAAAAAAAAu);
}

TEST_F(Regions, ReportsThePortSpeed) {
  auto* query =
      newer<int(ibv_context*, uint32_t, uint64_t*)>("ibv_query_port_speed", "IBVERBS_1.16");
  uint64_t speed = 0;
  ASSERT_EQ(query(context_.get(), 1, &speed), 0);
  EXPECT_GT(speed, 0u);
  EXPECT_EQ(query(context_.get(), 2, &speed), EINVAL);
  abi::NewerPortAttr port{};
  ASSERT_EQ(verbs_get_ctx(context_.get())->query_port(context_.get(), 1, &port, sizeof port), 0);
  EXPECT_EQ(port.active_speed_ex, port.active_speed);
}

TEST(Versions, NewerPrivateNodesDoNothing) {
  for (const auto& [node, number] : {std::pair{"IBVERBS_PRIVATE_57", "57"},
                                     {"IBVERBS_PRIVATE_59", "59"},
                                     {"IBVERBS_PRIVATE_64", "64"},
                                     {"IBVERBS_PRIVATE_65", "65"}}) {
    const std::string name = std::string("verbs_register_driver_") + number;
    newer<void(const void*)>(name.c_str(), node)(nullptr);
    EXPECT_EQ(newer<int(void*)>("ibv_cmd_dealloc_pd", node)(nullptr), EOPNOTSUPP);
    EXPECT_STREQ(newer<const char*(int)>("ibv_wr_opcode_str", node)(15), "atomic-write");
    EXPECT_STREQ(newer<const char*(int)>("ibv_wr_opcode_str", node)(99), "unknown");
  }
  EXPECT_EQ(newer<int(void*)>("ibv_cmd_alloc_dmah", "IBVERBS_PRIVATE_59")(nullptr), EOPNOTSUPP);
  EXPECT_EQ(newer<void*(void*)>("ibv_dmabuf_heap_alloc", "IBVERBS_PRIVATE_64")(nullptr), nullptr);
}

}  // namespace
}  // namespace verbena::test

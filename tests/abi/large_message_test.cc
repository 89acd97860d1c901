// The largest message. Its buffers are two gibibytes of addresses that map the same few megabytes
// of memory repeatedly.
#include <sys/mman.h>
#include <unistd.h>

#include "tests/abi/loopback_support.h"

namespace verbena::test {
namespace {

constexpr size_t kLargest = size_t{1} << 31;
constexpr size_t kTile = size_t{4} << 20;

class TiledBuffer {
 public:
  TiledBuffer() : fd_(memfd_create("tile", MFD_CLOEXEC)) {
    EXPECT_EQ(ftruncate(fd_, kTile), 0);
    // One tile more than a message, so that a misplaced byte has a place.
    base_ = static_cast<uint8_t*>(mmap(nullptr, kLargest + kTile, PROT_NONE,
                                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    for (size_t at = 0; at < kLargest + kTile; at += kTile) {
      EXPECT_NE(mmap(base_ + at, kTile, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd_, 0),
                MAP_FAILED);
    }
  }
  ~TiledBuffer() {
    munmap(base_, kLargest + kTile);
    close(fd_);
  }
  TiledBuffer(const TiledBuffer&) = delete;
  TiledBuffer& operator=(const TiledBuffer&) = delete;

  uint8_t* base() const { return base_; }
  std::span<uint8_t> tile() const { return {base_, kTile}; }

 private:
  int fd_;
  uint8_t* base_ = nullptr;
};

class LargeMessage : public LoopbackTest {
 protected:
  MrPtr register_all(Side& side, const TiledBuffer& buffer) {
    return MrPtr(ibv_reg_mr(side.pd.get(), buffer.base(), kLargest, kAllAccess));
  }
};

TEST_F(LargeMessage, WritesTwoGibibytes) {
  TiledBuffer from, to;
  uint32_t value = 1;
  for (uint8_t& byte : from.tile())
    byte = static_cast<uint8_t>((value = value * 1664525 + 1) >> 24);
  const MrPtr source = register_all(a_, from);
  const MrPtr sink = register_all(b_, to);
  ASSERT_TRUE(source && sink);

  ibv_sge sge{reinterpret_cast<uint64_t>(from.base()), static_cast<uint32_t>(kLargest),
              source->lkey};
  ibv_send_wr wr{};
  wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.wr.rdma.remote_addr = reinterpret_cast<uint64_t>(to.base());
  wr.wr.rdma.rkey = sink->rkey;
  ASSERT_EQ(b_.receive(1, 0, 0), 0);
  ASSERT_EQ(a_.send(wr), 0);

  ibv_wc wc{};
  while (ibv_poll_cq(a_.cq.get(), 1, &wc) == 0) {
  }
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  const ibv_wc received = wait_for_completion(b_.receive_cq.get());
  EXPECT_EQ(received.byte_len, kLargest);
  EXPECT_EQ(std::memcmp(from.base(), to.base(), kTile), 0);
}

TEST_F(LargeMessage, RejectsOneByteMore) {
  TiledBuffer from;
  const MrPtr mr(ibv_reg_mr(a_.pd.get(), from.base(), kLargest + kTile, kAllAccess));
  ASSERT_TRUE(mr);
  ibv_sge sge{reinterpret_cast<uint64_t>(from.base()), static_cast<uint32_t>(kLargest) + 1,
              mr->lkey};
  ibv_send_wr wr = rdma(IBV_WR_RDMA_WRITE, &sge, b_, 0);
  EXPECT_EQ(a_.send(wr), EINVAL);
}

}  // namespace
}  // namespace verbena::test

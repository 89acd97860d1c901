// riomap, riounmap, riowrite: writing directly into the peer's buffers.
#include <gtest/gtest.h>

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "tests/rsocket/socket_support.h"

namespace verbena::test {
namespace {

Pair pair_with_iomaps(int count, int inline_bytes = 64) {
  return connected_pair("127.0.0.1", [&](int socket) {
    set_int(socket, SOL_RDMA, RDMA_IOMAPSIZE, count);
    set_int(socket, SOL_RDMA, RDMA_INLINE, inline_bytes);
  });
}

// The peer knows a mapping once it has received data that was sent after it.
void synchronize(int from, int to) {
  ASSERT_EQ(rsend(from, "m", 1, 0), 1);
  char byte;
  ASSERT_EQ(rrecv(to, &byte, 1, 0), 1);
}

TEST(Iomap, WritesIntoThePeersBuffer) {
  for (const int inline_bytes : {0, 64}) {
    const Pair pair = pair_with_iomaps(4, inline_bytes);
    std::vector<uint8_t> memory(300'000);
    ASSERT_EQ(riomap(pair.server.get(), memory.data(), memory.size(), PROT_WRITE, 0, 1000), 1000);
    synchronize(pair.server.get(), pair.client.get());
    const auto bytes = stream_bytes(11, 0, memory.size());
    EXPECT_EQ(riowrite(pair.client.get(), bytes.data(), 10, 1000, 0), 10u);
    EXPECT_EQ(riowrite(pair.client.get(), bytes.data() + 10, bytes.size() - 10, 1010, 0),
              bytes.size() - 10);
    // Data sent later in the stream is received after the write.
    synchronize(pair.client.get(), pair.server.get());
    EXPECT_EQ(memory, bytes);
    EXPECT_EQ(riounmap(pair.server.get(), memory.data(), memory.size()), 0);
  }
}

TEST(Iomap, OffsetMinusOneUsesTheAddressOfTheBuffer) {
  const Pair pair = pair_with_iomaps(1);
  std::vector<uint8_t> memory(100);
  const auto address = static_cast<off_t>(reinterpret_cast<uintptr_t>(memory.data()));
  EXPECT_EQ(riomap(pair.server.get(), memory.data(), memory.size(), PROT_WRITE, 0, -1), address);
  synchronize(pair.server.get(), pair.client.get());
  EXPECT_EQ(riowrite(pair.client.get(), "x", 1, address + 99, 0), 1u);
  synchronize(pair.client.get(), pair.server.get());
  EXPECT_EQ(memory[99], 'x');
}

TEST(Iomap, AdjacentBuffersFormOneSpace) {
  const Pair pair = pair_with_iomaps(2);
  std::vector<uint8_t> first(1000), second(500);
  ASSERT_EQ(riomap(pair.server.get(), first.data(), 1000, PROT_WRITE, 0, 0), 0);
  ASSERT_EQ(riomap(pair.server.get(), second.data(), 500, PROT_WRITE, 0, 1000), 1000);
  synchronize(pair.server.get(), pair.client.get());
  const auto bytes = stream_bytes(12, 0, 2000);
  // A write stops at the end of the last buffer.
  EXPECT_EQ(riowrite(pair.client.get(), bytes.data(), 2000, 0, 0), 1500u);
  EXPECT_EQ(riowrite(pair.client.get(), bytes.data(), 1, 1500, 0), 0u);
  EXPECT_EQ(riowrite(pair.client.get(), bytes.data(), 1, -1, 0), 0u);
  synchronize(pair.client.get(), pair.server.get());
  EXPECT_EQ(first, stream_bytes(12, 0, 1000));
  EXPECT_EQ(second, stream_bytes(12, 1000, 500));
}

TEST(Iomap, LimitsMappingsAndReusesThem) {
  const Pair pair = pair_with_iomaps(3);
  std::vector<uint8_t> memory(4 * 64);
  for (off_t i = 0; i < 3; ++i) {
    EXPECT_EQ(
        riomap(pair.server.get(), &memory[static_cast<size_t>(i) * 64], 64, PROT_WRITE, 0, i * 64),
        i * 64);
  }
  EXPECT_ERRNO(riomap(pair.server.get(), &memory[192], 64, PROT_WRITE, 0, 192), ENOMEM);
  EXPECT_EQ(riounmap(pair.server.get(), &memory[64], 64), 0);
  EXPECT_EQ(riomap(pair.server.get(), &memory[192], 64, PROT_WRITE, 0, 192), 192);
  synchronize(pair.server.get(), pair.client.get());
  EXPECT_EQ(riowrite(pair.client.get(), "x", 1, 192, 0), 1u);
  EXPECT_EQ(riowrite(pair.client.get(), "x", 1, 64, 0), 0u);
  synchronize(pair.client.get(), pair.server.get());
  EXPECT_EQ(memory[192], 'x');
}

TEST(Iomap, DoesNotWriteToUnmappedBuffers) {
  const Pair pair = pair_with_iomaps(1);
  std::vector<uint8_t> memory(64);
  ASSERT_EQ(riomap(pair.server.get(), memory.data(), 64, PROT_WRITE, 0, 0), 0);
  synchronize(pair.server.get(), pair.client.get());
  ASSERT_EQ(riounmap(pair.server.get(), memory.data(), 64), 0);
  synchronize(pair.server.get(), pair.client.get());
  EXPECT_EQ(riowrite(pair.client.get(), "x", 1, 0, 0), 0u);
  synchronize(pair.client.get(), pair.server.get());  // the connection still works
  EXPECT_EQ(memory[0], 0);
}

// Peers of the original librdmacm lose a credit with each mapping. Here any number works.
TEST(Iomap, MappingUsesUpNoCredits) {
  const Pair pair = pair_with_iomaps(1);
  std::vector<uint8_t> memory(64);
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(riomap(pair.server.get(), memory.data(), 64, PROT_WRITE, 0, 0), 0);
    synchronize(pair.server.get(), pair.client.get());
    ASSERT_EQ(riounmap(pair.server.get(), memory.data(), 64), 0);
  }
}

TEST(Iomap, RejectsInvalidCalls) {
  const Pair pair = pair_with_iomaps(1);
  char byte = 0;
  EXPECT_ERRNO(riomap(pair.server.get(), &byte, 1, PROT_READ, 0, 0), EINVAL);
  EXPECT_ERRNO(riounmap(pair.server.get(), &byte, 1), EINVAL);
  EXPECT_EQ(riomap(pair.server.get(), &byte, 1, PROT_NONE, 0, 5), 5);
  EXPECT_EQ(riounmap(pair.server.get(), &byte, 1), 0);
  const Pair without = connected_pair();
  EXPECT_ERRNO(riomap(without.server.get(), &byte, 1, PROT_WRITE, 0, 0), ENOMEM);
  EXPECT_EQ(riowrite(without.client.get(), &byte, 1, 0, 0), 0u);
}

TEST(Iomap, WorksBesideAStream) {
  const Pair pair = pair_with_iomaps(1);
  std::vector<uint8_t> memory(50'000);
  ASSERT_EQ(riomap(pair.server.get(), memory.data(), memory.size(), PROT_WRITE, 0, 0), 0);
  synchronize(pair.server.get(), pair.client.get());
  std::thread receiving([&] { receive_stream(pair.server.get(), 13, 1'000'000); });
  std::thread writing([&] {
    for (uint64_t round = 0; round < 50; ++round) {
      const auto bytes = stream_bytes(round, 0, memory.size());
      ASSERT_EQ(riowrite(pair.client.get(), bytes.data(), bytes.size(), 0, 0), bytes.size());
    }
  });
  send_stream(pair.client.get(), 13, 1'000'000);
  writing.join();
  receiving.join();
  synchronize(pair.client.get(), pair.server.get());
  EXPECT_EQ(memory, stream_bytes(49, 0, memory.size()));
}

}  // namespace
}  // namespace verbena::test

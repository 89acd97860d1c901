// Memory that the CPU cannot access: every byte goes through copy_in and copy_out. The engine gets
// an address without any access right, so that a direct access ends the test.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "core/placement.h"
#include "tests/unit/core/engine_support.h"

namespace verbena::core {
namespace {

using wire::Opcode;

constexpr uint32_t kEverything = kLocalWrite | kRemoteWrite | kRemoteRead | kRemoteAtomic;

// One memory file, mapped twice: for the engine without access, for the owner with all.
class Device {
 public:
  explicit Device(size_t bytes) : bytes_(bytes) {
    const int file = ::memfd_create("device", MFD_CLOEXEC);
    EXPECT_EQ(::ftruncate(file, static_cast<off_t>(bytes)), 0);
    engines_ = map(file, PROT_NONE);
    owners_ = map(file, PROT_READ | PROT_WRITE);
    ::close(file);
  }
  ~Device() {
    ::munmap(engines_, bytes_);
    ::munmap(owners_, bytes_);
  }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  std::byte* base() const { return engines_; }
  std::span<std::byte> memory() const { return {owners_, bytes_}; }

  static void copy_in(std::byte* to, std::span<const std::byte> from) {
    std::memcpy(owners_ + (to - engines_), from.data(), from.size());
    ++copies_in;
  }
  static void copy_out(std::span<std::byte> to, const std::byte* from) {
    std::memcpy(to.data(), owners_ + (from - engines_), to.size());
  }
  static inline int copies_in = 0;
  static constexpr MemoryBacking kBacking{.copy_in = copy_in, .copy_out = copy_out};

 private:
  std::byte* map(int file, int protection) const {
    void* const at = ::mmap(nullptr, bytes_, protection, MAP_SHARED, file, 0);
    EXPECT_NE(at, MAP_FAILED);
    return static_cast<std::byte*>(at);
  }

  size_t bytes_;
  static inline std::byte* engines_ = nullptr;
  static inline std::byte* owners_ = nullptr;
};

class CopiedMemoryTest : public EngineTest {
 public:
  CopiedMemoryTest() {
    key_ =
        engine_.memory()
            .add_region({kPd, device_.base(), kRegionBytes, kIova, kEverything, &Device::kBacking})
            .value();
  }

  void fill(std::span<const std::byte> bytes, size_t offset = 0) {
    std::ranges::copy(bytes, device_.memory().subspan(offset).begin());
  }
  Bytes content(size_t bytes, size_t offset = 0) const {
    const auto part = device_.memory().subspan(offset, bytes);
    return {part.begin(), part.end()};
  }
  uint64_t word() const { return load<uint64_t>(content(8)); }
  template <typename T>
  static T load(const Bytes& bytes) {
    T value;
    std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
  static Bytes payload_of(const std::vector<Sent>& packets) {
    Bytes all;
    for (const Sent& s : packets) {
      all.insert(all.end(), s.packet.payload.begin(), s.packet.payload.end());
    }
    return all;
  }

  Device device_{kRegionBytes};
};

TEST_F(CopiedMemoryTest, SendsMessagesOfOneAndOfManyPackets) {
  connect();
  const Bytes message = pattern(1000);
  fill(message);
  for (const uint32_t length : {16u, 1000u}) {
    for (const SendOp op : {SendOp::Send, SendOp::Write}) {
      ASSERT_TRUE(post(op, 1, length).ok());
      const auto sent = transmit();
      EXPECT_EQ(payload_of(sent), Bytes(message.begin(), message.begin() + length));
      receive_ack(sent.back().psn());
    }
  }
  EXPECT_EQ(completions(), Completed(4, {1, WcStatus::Success}));
}

TEST_F(CopiedMemoryTest, GathersSeveralAreasIntoOnePacket) {
  connect();
  fill(pattern(100));
  const Sge sges[] = {{kIova + 50, 50, key_}, {kIova, 50, key_}};
  SendRequest r;
  r.sges = sges;
  ASSERT_TRUE(engine_.post_send(qp(), r, now_).ok());
  Bytes expected = content(50, 50);
  const Bytes second = content(50);
  expected.insert(expected.end(), second.begin(), second.end());
  EXPECT_EQ(payload_of(transmit()), expected);
}

TEST_F(CopiedMemoryTest, RetransmitsFromTheDevice) {
  connect();
  const Bytes message = pattern(600);
  fill(message);
  ASSERT_TRUE(post(SendOp::Write, 1, 600).ok());
  EXPECT_EQ(payload_of(transmit()), message);
  time_out();
  const auto again = transmit();
  ASSERT_FALSE(again.empty());
  const Bytes first = payload_of({again[0]});
  EXPECT_TRUE(std::ranges::equal(first, content(first.size())) ||
              std::ranges::equal(first, content(first.size(), 512)));
}

TEST_F(CopiedMemoryTest, ReceivesMessagesOfOneAndOfManyPackets) {
  connect();
  const Bytes message = pattern(600);
  ASSERT_TRUE(post_receive(1, 1000, 100).ok());
  ASSERT_TRUE(post_receive(2, 1000, 2000).ok());
  receive(request(Opcode::RcSendOnly, 500), std::span(message).first(40));
  receive(request(Opcode::RcSendFirst, 501), std::span(message).first(256));
  receive(request(Opcode::RcSendMiddle, 502), std::span(message).subspan(256, 256));
  receive(request(Opcode::RcSendLast, 503), std::span(message).subspan(512));
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::Success}, {2, WcStatus::Success}}));
  EXPECT_EQ(content(40, 100), Bytes(message.begin(), message.begin() + 40));
  EXPECT_EQ(content(600, 2000), message);
}

TEST_F(CopiedMemoryTest, ExecutesWrites) {
  connect();
  const Bytes message = pattern(300);
  wire::Packet only = request(Opcode::RcWriteOnly, 500);
  only.reth.length = 40;
  receive(only, std::span(message).first(40));
  EXPECT_EQ(content(40), Bytes(message.begin(), message.begin() + 40));
  wire::Packet first = request(Opcode::RcWriteFirst, 501);
  first.reth = {kIova + 1000, key_, 300};
  receive(first, std::span(message).first(256));
  receive(request(Opcode::RcWriteLast, 502), std::span(message).subspan(256));
  EXPECT_EQ(content(300, 1000), message);
}

TEST_F(CopiedMemoryTest, RespondsToReads) {
  connect();
  const Bytes message = pattern(600);
  fill(message);
  wire::Packet read = request(Opcode::RcReadRequest, 500);
  read.reth.length = 600;
  receive(read);
  EXPECT_EQ(payload_of(transmit()), message);
}

TEST_F(CopiedMemoryTest, PlacesReadResponses) {
  connect();
  ASSERT_TRUE(post(SendOp::Read, 1, 300).ok());
  transmit();
  const Bytes message = pattern(300);
  receive(request(Opcode::RcReadResponseFirst, 100), std::span(message).first(256));
  receive(request(Opcode::RcReadResponseLast, 101), std::span(message).subspan(256));
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::Success}}));
  EXPECT_EQ(content(300), message);
}

TEST_F(CopiedMemoryTest, ExecutesAtomicsAndReturnsTheWordBefore) {
  connect();
  fill(Bytes(8));
  const auto execute = [&](wire::Packet p) {
    receive(p);
    const auto sent = transmit();
    EXPECT_EQ(sent.size(), 1u);
    return sent[0].packet.original;
  };
  wire::Packet add = request(Opcode::RcFetchAdd, 500);
  add.atomic.swap_or_add = 5;
  EXPECT_EQ(execute(add), 0u);
  wire::Packet swap = request(Opcode::RcCompareSwap, 501);
  swap.atomic.compare = 4;
  swap.atomic.swap_or_add = 9;
  const int copies_before = Device::copies_in;
  EXPECT_EQ(execute(swap), 5u) << "not equal";
  EXPECT_EQ(word(), 5u);
  EXPECT_EQ(Device::copies_in, copies_before) << "the device may have changed the word meanwhile";
  swap.bth.psn = wire::Psn(502);
  swap.atomic.compare = 5;
  EXPECT_EQ(execute(swap), 5u);
  EXPECT_EQ(word(), 9u);
  wire::Packet write = request(Opcode::RcAtomicWrite, 503);
  write.reth.length = 8;
  const Bytes value = pattern(8);
  receive(write, value);
  EXPECT_EQ(content(8), value);
}

TEST_F(CopiedMemoryTest, PlacesTheResultOfAnAtomic) {
  connect();
  ASSERT_TRUE(post(SendOp::FetchAdd, 1, 8).ok());
  transmit();
  wire::Packet response = request(Opcode::RcAtomicAck, 100);
  response.original = 77;
  receive(response);
  EXPECT_EQ(completions(), (Completed{{1, WcStatus::Success}}));
  EXPECT_EQ(word(), 77u);
}

TEST_F(CopiedMemoryTest, WindowsCopyAsTheirRegion) {
  connect();
  MemoryRegistry& memory = engine_.memory();
  const uint32_t region = memory
                              .add_region({kPd, device_.base(), kRegionBytes, kIova,
                                           kEverything | kWindowBind, &Device::kBacking})
                              .value();
  const uint32_t window = memory.add_window(kPd, WindowType::Type1).value();
  ASSERT_TRUE(engine_.state().memory.bind_window(kPd, qp().qpn(), window,
                                                 {.region_lkey = region,
                                                  .address = kIova,
                                                  .length = 100,
                                                  .access = kRemoteWrite,
                                                  .new_rkey = window ^ 1}));
  wire::Packet write = request(Opcode::RcWriteOnly, 500);
  write.reth = {kIova, window ^ 1, 40};
  receive(write, pattern(40));
  EXPECT_EQ(content(40), pattern(40));
}

// The spans of a one-sided READ are written.
TEST_F(CopiedMemoryTest, IsNotGatheredForWriting) {
  const Sge sge{kIova, 64, key_};
  Gather out;
  EXPECT_TRUE(gather(engine_.state().memory, kPd, {&sge, 1}, 0, 64, out));
  EXPECT_FALSE(gather(engine_.state().memory, kPd, {&sge, 1}, 0, 64, out, kLocalWrite));
}

TEST_F(CopiedMemoryTest, GathersAtMostThePayloadOfAPacket) {
  const Sge sges[] = {{kIova, wire::kMaxPayloadBytes, key_}, {kIova, 1, key_}};
  Gather out;
  EXPECT_TRUE(gather(engine_.state().memory, kPd, sges, 0, wire::kMaxPayloadBytes, out));
  EXPECT_FALSE(gather(engine_.state().memory, kPd, sges, 0, wire::kMaxPayloadBytes + 1, out));
}

TEST_F(CopiedMemoryTest, NeedsCopiesInBothDirections) {
  RegionInfo region{kPd, device_.base(), kRegionBytes, kIova, kEverything, &Device::kBacking};
  const MemoryBacking one_way{.copy_in = Device::copy_in};
  region.backing = &one_way;
  EXPECT_EQ(engine_.memory().add_region(region).error().code, EINVAL);
}

}  // namespace
}  // namespace verbena::core

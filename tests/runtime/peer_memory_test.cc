// The exposure of a process as its peers see it, and their direct copies.
#include "datapath/shm/peer_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace verbena::datapath {
namespace {

const wire::Gid kInitiator = wire::Gid::from_ipv4("\x7F\x00\x00\x01");
const wire::Gid kTarget = wire::Gid::from_ipv4("\x7F\x00\x00\x02");
constexpr wire::Qpn kInitiatorQp = wire::Qpn::of_slot(1, 10);
constexpr wire::Qpn kTargetQp = wire::Qpn::of_slot(2, 20);
constexpr uint32_t kWrite = 2, kRead = 4;
constexpr uint32_t kKey = 0xABCDEF12;
constexpr uint64_t kIova = 0x1000;

// A process exposes memory and a queue pair; the test is its peer.
class PeerMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    own_.expose({.key = kKey,
                 .pd = 3,
                 .base = reinterpret_cast<uint64_t>(memory_.data()),
                 .iova = kIova,
                 .length = memory_.size(),
                 .access = kWrite | kRead});
    own_.expose(kTargetQp, {.source = kTarget,
                            .destination = kInitiator,
                            .peer = kInitiatorQp,
                            .pd = 3,
                            .access = kWrite | kRead});
    auto peer = PeerExposure::map(own_.descriptor());
    ASSERT_TRUE(peer.ok());
    exposure_ = std::move(peer.value());
  }

  wire::OneSided request(bool write, uint64_t offset, std::span<const std::byte> local) {
    local_ = local;
    return {.source = kInitiatorQp,
            .destination = kTargetQp,
            .write = write,
            .ends_message = true,
            .access = write ? kWrite : kRead,
            .rkey = kKey,
            .remote_address = kIova + offset,
            .length = static_cast<uint32_t>(local.size()),
            .bytes = static_cast<uint32_t>(local.size()),
            .local = {&local_, 1}};
  }
  bool copy(PeerMemory& peer, const wire::OneSided& r) {
    direct_copy_.begin();
    const bool done = peer.copy(r, kInitiator, kTarget, direct_copy_);
    direct_copy_.end();
    return done;
  }
  uint64_t resolve(const wire::OneSided& r) { return exposure_.resolve(r, kInitiator, kTarget); }

  OwnExposure own_ = std::move(OwnExposure::create().value());
  PeerExposure exposure_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(size_t{1} << 20);
  std::vector<std::byte> buffer_ = std::vector<std::byte>(size_t{1} << 20);
  std::span<const std::byte> local_;
  CopyControl control_;
  DirectCopy direct_copy_{&control_};
};

TEST_F(PeerMemoryTest, ResolvesExposedMemory) {
  const auto eight = std::span(buffer_).first(8);
  EXPECT_EQ(resolve(request(true, 0, eight)), reinterpret_cast<uint64_t>(memory_.data()));
  EXPECT_EQ(resolve(request(false, 100, eight)), reinterpret_cast<uint64_t>(&memory_[100]));
  EXPECT_NE(resolve(request(true, 0, buffer_)), 0u) << "the whole region";
}

TEST_F(PeerMemoryTest, RejectsAccessThatIsNotExposed) {
  const auto eight = std::span(buffer_).first(8);
  const wire::OneSided good = request(true, 0, eight);
  const auto refused = [&](auto change) {
    wire::OneSided r = good;
    change(r);
    return resolve(r) == 0;
  };
  EXPECT_FALSE(refused([](auto&) {}));
  EXPECT_TRUE(refused([](auto& r) { r.rkey ^= 1; }));
  EXPECT_TRUE(refused([](auto& r) { r.rkey ^= 0x100; }));
  EXPECT_TRUE(refused([](auto& r) { r.rkey = 0; }));
  EXPECT_TRUE(refused([](auto& r) { r.access = 8; }));
  EXPECT_TRUE(refused([](auto& r) { r.source = wire::Qpn::of_slot(1, 11); }));
  EXPECT_TRUE(refused([](auto& r) { r.destination = wire::Qpn::of_slot(2, 21); }));
  EXPECT_TRUE(refused([](auto& r) { --r.remote_address; }));
  EXPECT_TRUE(refused([&](auto& r) { r.remote_address += memory_.size() - 7; }));
  EXPECT_TRUE(refused([](auto& r) { r.remote_address = UINT64_MAX - 3; }));
  EXPECT_TRUE(refused([](auto& r) { r.length = UINT32_MAX; }));
  EXPECT_EQ(exposure_.resolve(good, kTarget, kInitiator), 0u) << "from another address";
  own_.expose(kTargetQp, {.source = kTarget,
                          .destination = kInitiator,
                          .peer = kInitiatorQp,
                          .pd = 4,
                          .access = kWrite});
  EXPECT_EQ(resolve(good), 0u) << "another protection domain";
}

TEST_F(PeerMemoryTest, DoesNotResolveWithdrawnEntries) {
  const auto eight = std::span(buffer_).first(8);
  own_.withdraw(kKey);
  EXPECT_EQ(resolve(request(true, 0, eight)), 0u);
  SetUp();
  EXPECT_NE(resolve(request(true, 0, eight)), 0u);
  own_.withdraw(kTargetQp);
  EXPECT_EQ(resolve(request(true, 0, eight)), 0u);
  SetUp();
  own_.close();
  EXPECT_EQ(resolve(request(true, 0, eight)), 0u);
}

TEST_F(PeerMemoryTest, ExposesALimitedNumberOfCollidingKeys) {
  const auto eight = std::span(buffer_).first(8);
  const auto colliding_key = [](uint32_t i) {
    return kKey + static_cast<uint32_t>(ExposureTable::kKeyGroups) * 256 * i;
  };
  uint32_t found = 0;
  for (uint32_t i = 1; i < 20; ++i) {
    own_.expose({.key = colliding_key(i),
                 .pd = 3,
                 .base = 4096 * i,
                 .iova = kIova,
                 .length = 64,
                 .access = kRead});
    wire::OneSided r = request(false, 0, eight);
    r.rkey = colliding_key(i);
    const uint64_t at = resolve(r);
    if (at != 0) ++found;
    EXPECT_TRUE(at == 0 || at == 4096 * i);
  }
  EXPECT_EQ(found, ExposureTable::kPlacesPerKey - 1);
  own_.withdraw(colliding_key(1));
  own_.expose({.key = colliding_key(30),
               .pd = 3,
               .base = 77,
               .iova = kIova,
               .length = 64,
               .access = kRead});
  wire::OneSided r = request(false, 0, eight);
  r.rkey = colliding_key(30);
  EXPECT_EQ(resolve(r), 77u) << "the entry is free again";
}

TEST_F(PeerMemoryTest, RejectsDescriptorsThatAreNoTable) {
  EXPECT_FALSE(PeerExposure::map(-1).ok());
  EXPECT_FALSE(PeerExposure::map(STDIN_FILENO).ok());
  const os::UniqueFd small(::memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_FALSE(PeerExposure::map(small.get()).ok());
}

// A peer gets the descriptor.
TEST_F(PeerMemoryTest, APeerCannotChangeTheTable) {
  const int fd = own_.descriptor();
  const size_t bytes = sizeof(ExposureTable);
  const std::byte one{1};
  EXPECT_EQ(::pwrite(fd, &one, 1, 0), -1);
  EXPECT_EQ(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  EXPECT_EQ(::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
  EXPECT_EQ(::ftruncate(fd, 0), -1);
  const std::string name = "/proc/self/fd/" + std::to_string(fd);
  const os::UniqueFd again(::open(name.c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_EQ(::pwrite(again.get(), &one, 1, 0), -1) << "through a new descriptor";
  void* const read_only = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
  ASSERT_NE(read_only, MAP_FAILED);
  EXPECT_EQ(::mprotect(read_only, bytes, PROT_READ | PROT_WRITE), -1);
  EXPECT_EQ(::madvise(read_only, bytes, MADV_REMOVE), -1);
  ::munmap(read_only, bytes);
  EXPECT_NE(resolve(request(true, 0, std::span(buffer_).first(8))), 0u) << "the table is unchanged";
  own_.withdraw(kKey);
  EXPECT_EQ(resolve(request(true, 0, std::span(buffer_).first(8))), 0u)
      << "the owner can change it";
}

TEST_F(PeerMemoryTest, RejectsATableThatIsNotSealed) {
  const os::UniqueFd fd(::memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(fd.get(), sizeof(ExposureTable)), 0);
  ASSERT_EQ(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  EXPECT_FALSE(PeerExposure::map(fd.get()).ok());
}

TEST_F(PeerMemoryTest, ReportsAWithdrawnQueuePairOnce) {
  EXPECT_FALSE(own_.take_withdrawn(kTargetQp));
  SetUp();
  EXPECT_FALSE(own_.take_withdrawn(kTargetQp));
  own_.withdraw(wire::Qpn::of_slot(2, 21));
  EXPECT_FALSE(own_.take_withdrawn(wire::Qpn::of_slot(2, 21)));
  own_.withdraw(kTargetQp);
  EXPECT_TRUE(own_.take_withdrawn(kTargetQp));
  EXPECT_FALSE(own_.take_withdrawn(kTargetQp));
}

// A forked process, stopped from the start, whose memory the test accesses.
class StoppedProcess {
 public:
  StoppedProcess() : pid_(::fork()) {
    if (pid_ == 0) {
      ::raise(SIGSTOP);
      ::_exit(0);
    }
    ::waitpid(pid_, nullptr, WUNTRACED);
  }
  ~StoppedProcess() { end(); }
  void end() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

TEST_F(PeerMemoryTest, WritesAndReadsAStoppedProcessAtEverySize) {
  StoppedProcess other;
  PeerMemory peer(other.pid(), std::move(exposure_));
  ASSERT_TRUE(peer.reachable());
  for (size_t bytes = 1; bytes <= 65536; bytes = bytes < 17 ? bytes + 1 : bytes * 2) {
    for (size_t at : {size_t{0}, size_t{3}, size_t{4090}}) {
      std::vector<std::byte> sent(bytes), back(bytes);
      for (size_t i = 0; i < bytes; ++i) sent[i] = static_cast<std::byte>(i * 31 + bytes);
      ASSERT_TRUE(copy(peer, request(true, at, sent))) << bytes;
      ASSERT_TRUE(copy(peer, request(false, at, back))) << bytes;
      EXPECT_EQ(sent, back);
    }
  }
  EXPECT_TRUE(std::ranges::all_of(memory_, [](std::byte b) { return b == std::byte{}; }))
      << "the copies changed this process";
}

TEST_F(PeerMemoryTest, GathersSeveralBuffers) {
  StoppedProcess other;
  PeerMemory peer(other.pid(), std::move(exposure_));
  for (size_t i = 0; i < 300; ++i) buffer_[i] = static_cast<std::byte>(i);
  const std::span<const std::byte> buffers[] = {std::span(buffer_).first(100),
                                                std::span(buffer_).subspan(100, 1),
                                                std::span(buffer_).subspan(101, 199)};
  wire::OneSided r = request(true, 0, std::span(buffer_).first(300));
  r.local = buffers;
  ASSERT_TRUE(copy(peer, r));
  std::vector<std::byte> back(300);
  ASSERT_TRUE(copy(peer, request(false, 0, back)));
  EXPECT_TRUE(std::ranges::equal(back, std::span(buffer_).first(300)));
}

TEST_F(PeerMemoryTest, FailsForAnEndedProcess) {
  StoppedProcess other;
  PeerMemory peer(other.pid(), std::move(exposure_));
  const auto eight = std::span(buffer_).first(8);
  ASSERT_TRUE(copy(peer, request(true, 0, eight)));
  other.end();
  EXPECT_FALSE(copy(peer, request(true, 0, eight)));
  EXPECT_FALSE(copy(peer, request(false, 0, std::span(buffer_).first(4096))));
}

// The process ID stays the same.
TEST_F(PeerMemoryTest, FailsForAProcessThatCalledExec) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const os::UniqueFd ours(ends[0]);
  const int theirs = ends[1];  // no UniqueFd: the child keeps it until its exec()
  const pid_t child = ::fork();
  if (child == 0) {
    ::raise(SIGSTOP);
    ::execl("/bin/sleep", "sleep", "60", nullptr);
    ::_exit(1);
  }
  ::close(theirs);
  ::waitpid(child, nullptr, WUNTRACED);
  PeerMemory peer(child, std::move(exposure_), ours.get());
  ASSERT_TRUE(copy(peer, request(true, 0, std::span(buffer_).first(64))));
  ::kill(child, SIGCONT);
  pollfd closed{.fd = ours.get(), .events = POLLRDHUP, .revents = 0};
  EXPECT_EQ(::poll(&closed, 1, 10'000), 1);
  // Exposes an address at which the new program has memory.
  uint64_t writable = 0;
  std::ifstream maps("/proc/" + std::to_string(child) + "/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("[stack]") != line.npos) writable = std::stoull(line, nullptr, 16);
  }
  ASSERT_NE(writable, 0u);
  own_.expose({.key = kKey,
               .pd = 3,
               .base = writable,
               .iova = kIova,
               .length = 4096,
               .access = kWrite | kRead});
  for (const size_t bytes : {1u, 8u, 64u, 4096u}) {
    EXPECT_FALSE(copy(peer, request(true, 0, std::span(buffer_).first(bytes)))) << bytes;
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST_F(PeerMemoryTest, FailsForUnmappedMemory) {
  own_.expose({.key = kKey,
               .pd = 3,
               .base = 4096,
               .iova = kIova,
               .length = 65536,
               .access = kWrite | kRead});
  PeerMemory peer(::getpid(), std::move(exposure_));
  EXPECT_FALSE(copy(peer, request(true, 0, std::span(buffer_).first(8))));
  EXPECT_FALSE(copy(peer, request(false, 0, std::span(buffer_).first(5000))));
  EXPECT_FALSE(peer.take_denied());
}

TEST_F(PeerMemoryTest, IsNotReachableWithoutAProcessIdOrATable) {
  EXPECT_FALSE(PeerMemory(0, std::move(exposure_)).reachable());
  EXPECT_FALSE(PeerMemory(::getpid(), PeerExposure()).reachable());
}

// A program that spins on a word sees the old or the new word. A program that spins on the last
// byte then sees all bytes. The writer is the same process; the kernel copies as between two
// processes.
TEST_F(PeerMemoryTest, LastWordBecomesVisibleLastAndWhole) {
  PeerMemory peer(::getpid(), std::move(exposure_));
  for (const size_t bytes : {2u, 4u, 8u, 9u, 64u, 1000u, 8192u}) {
    constexpr int kRounds = 20000;
    std::atomic<int> read{0};
    std::atomic<int> torn{0};
    std::atomic<bool> stop{false};
    auto* const at = reinterpret_cast<unsigned char*>(memory_.data());
    std::thread reader([&] {
      for (int round = 1; round <= kRounds; ++round) {
        const auto expected = static_cast<unsigned char>(round % 251 + 1);
        const auto before = static_cast<unsigned char>((round - 1) % 251 + 1);
        for (;;) {
          if (stop) return;
          if (bytes % 4 == 0) {
            const auto end = at + bytes;
            const uint64_t word =
                bytes == 4
                    ? __atomic_load_n(reinterpret_cast<uint32_t*>(end - 4), __ATOMIC_ACQUIRE)
                    : __atomic_load_n(reinterpret_cast<uint64_t*>(end - 8), __ATOMIC_ACQUIRE);
            const uint64_t ones = bytes == 4 ? 0x01010101u : 0x0101010101010101u;
            if (word == ones * expected) break;
            if (round > 1 && word != ones * before) torn.fetch_add(1);
          } else if (__atomic_load_n(at + bytes - 1, __ATOMIC_ACQUIRE) == expected) {
            break;
          }
        }
        for (size_t i = 0; i < bytes; ++i) torn.fetch_add(at[i] != expected ? 1 : 0);
        read.store(round, std::memory_order_release);
      }
    });
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    for (int round = 1; round <= kRounds && std::chrono::steady_clock::now() < end; ++round) {
      std::fill_n(buffer_.begin(), bytes, static_cast<std::byte>(round % 251 + 1));
      ASSERT_TRUE(copy(peer, request(true, 0, std::span(buffer_).first(bytes))));
      while (read.load(std::memory_order_acquire) != round) {
        if (std::chrono::steady_clock::now() > end) break;
      }
    }
    stop = true;
    reader.join();
    EXPECT_GT(read.load(), 0);
    EXPECT_EQ(torn.load(), 0) << bytes << " bytes";
  }
}

}  // namespace
}  // namespace verbena::datapath

// Direct copies that the target revokes: both sides of the protocol step by step, and the state of
// the initiator's thread in /proc.
#include "datapath/shm/direct_copy.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "datapath/shm/initiator_thread.h"
#include "os/unique_fd.h"

namespace verbena::datapath {
namespace {

// The target's memory belongs to this process; the kernel copies as between two processes.
class DirectCopyTest : public testing::Test {
 protected:
  uint64_t address(size_t at = 0) const { return reinterpret_cast<uint64_t>(memory_.data()) + at; }
  MemoryRange range(size_t begin, size_t end) const { return {address(begin), address(end)}; }
  // The initiator's system call.
  long copy() {
    iovec local{new_bytes_.data(), new_bytes_.size()};
    return ::syscall(SYS_process_vm_writev, ::getpid(), &local, 1, direct_copy_.parts(),
                     direct_copy_.part_count(), 0);
  }
  bool unchanged() const {
    return std::ranges::all_of(memory_, [](std::byte b) { return b == std::byte{}; });
  }

  static constexpr size_t kBytes = 100;
  std::array<std::byte, 8192> memory_{};
  std::vector<std::byte> new_bytes_ = std::vector<std::byte>(kBytes, std::byte{0xFF});
  CopyControl control_;
  DirectCopy direct_copy_{&control_};
  CopyRevoker revoker_{&control_};
};

TEST_F(DirectCopyTest, CopiesTheAnnouncedBytes) {
  direct_copy_.begin();
  ASSERT_TRUE(direct_copy_.aim(address(), kBytes, true));
  EXPECT_EQ(direct_copy_.part_count(), 2u) << "the last word is a separate part";
  EXPECT_EQ(copy(), static_cast<long>(kBytes));
  direct_copy_.end();
  EXPECT_EQ(std::memcmp(memory_.data(), new_bytes_.data(), kBytes), 0);
  EXPECT_EQ(memory_[kBytes], std::byte{});
  EXPECT_EQ(revoker_.revoke(kAllMemory), 0u) << "the copy has ended";
}

TEST_F(DirectCopyTest, ACopyRevokedBeforeItsAnnouncementDoesNotStart) {
  direct_copy_.begin();
  EXPECT_EQ(revoker_.revoke(range(0, kBytes)), 0u) << "no copy can be in progress";
  EXPECT_FALSE(direct_copy_.aim(address(), kBytes, true));
  direct_copy_.end();
}

TEST_F(DirectCopyTest, ACopyRevokedBeforeItsSystemCallWritesNothing) {
  for (const bool separate_last_word : {false, true}) {
    direct_copy_.begin();
    ASSERT_TRUE(direct_copy_.aim(address(), kBytes, separate_last_word));
    const uint32_t number = revoker_.revoke(range(0, kBytes));
    EXPECT_NE(number, 0u);
    EXPECT_FALSE(revoker_.is_over(number));
    EXPECT_EQ(copy(), -1);
    EXPECT_EQ(errno, EFAULT);
    EXPECT_TRUE(unchanged());
    direct_copy_.end();
    EXPECT_TRUE(revoker_.is_over(number));
  }
}

TEST_F(DirectCopyTest, DoesNotRevokeACopyOfOtherMemory) {
  direct_copy_.begin();
  ASSERT_TRUE(direct_copy_.aim(address(), kBytes, true));
  EXPECT_EQ(revoker_.revoke(range(kBytes, 8192)), 0u);
  EXPECT_EQ(copy(), static_cast<long>(kBytes));
  direct_copy_.end();
}

TEST_F(DirectCopyTest, DoesNotRevokeTheNextCopy) {
  direct_copy_.begin();
  ASSERT_TRUE(direct_copy_.aim(address(), kBytes, true));
  EXPECT_NE(revoker_.revoke(kAllMemory), 0u);
  direct_copy_.end();
  direct_copy_.begin();
  EXPECT_TRUE(direct_copy_.aim(address(), kBytes, true));
  EXPECT_EQ(copy(), static_cast<long>(kBytes));
  direct_copy_.end();
}

TEST_F(DirectCopyTest, DoesNotWaitTwiceForOneCopy) {
  direct_copy_.begin();
  ASSERT_TRUE(direct_copy_.aim(address(), kBytes, true));
  const uint32_t number = revoker_.revoke(kAllMemory);
  ASSERT_NE(number, 0u);
  EXPECT_EQ(revoker_.revoke(kAllMemory), number) << "the initiator may still copy";
  revoker_.note_ended(number);
  EXPECT_TRUE(revoker_.is_over(number));
  EXPECT_EQ(revoker_.revoke(kAllMemory), 0u);
  direct_copy_.end();
  direct_copy_.begin();
  ASSERT_TRUE(direct_copy_.aim(address(), kBytes, true));
  EXPECT_EQ(revoker_.revoke(kAllMemory), number + 2) << "the next copy has another number";
}

// A hostile target can change the length of its own memory area, not of the initiator's.
TEST_F(DirectCopyTest, ATargetThatEnlargesAPartGetsNoMoreBytes) {
  direct_copy_.begin();
  ASSERT_TRUE(direct_copy_.aim(address(), kBytes, false));
  control_.parts[0].bytes.store(8192);
  EXPECT_EQ(copy(), static_cast<long>(kBytes));
  EXPECT_EQ(memory_[kBytes], std::byte{});
}

// --- threads -----------------------------------------------------------------------------------

// A process that runs `work` until it is killed.
class Process {
 public:
  explicit Process(const std::function<void()>& work) : pid_(::fork()) {
    if (pid_ != 0) return;
    work();
    ::_exit(0);
  }
  ~Process() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }
  InitiatorThread thread() const { return {pid_, pid_}; }
  void stop() {
    ::kill(pid_, SIGSTOP);
    ::waitpid(pid_, nullptr, WUNTRACED);
  }

 private:
  pid_t pid_;
};

[[noreturn]] void spin() {
  for (;;) {
  }
}
void sleep_until_killed() {
  for (;;) ::pause();
}

// Waits until `holds`, for at most 5 seconds.
bool soon(const std::function<bool()>& holds) {
  for (int i = 0; i < 5000; ++i) {
    if (holds()) return true;
    ::usleep(1000);
  }
  return false;
}

TEST(InitiatorThread, DoesNotCopyWhileStopped) {
  Process process(spin);
  process.stop();
  EXPECT_FALSE(process.thread().may_be_copying());
}

TEST(InitiatorThread, DoesNotCopyAfterItsEnd) {
  Process process([] {});
  EXPECT_TRUE(soon([&] { return !process.thread().may_be_copying(); }));
  EXPECT_FALSE(InitiatorThread(::getpid(), 0x3FFFFFFF).may_be_copying()) << "no such thread";
}

TEST(InitiatorThread, DoesNotCopyInAnotherSystemCall) {
  Process process(sleep_until_killed);
  InitiatorThread thread = process.thread();
  EXPECT_TRUE(soon([&] { return !thread.may_be_copying(); }));
}

TEST(InitiatorThread, MayCopyForAShortTimeWhileRunning) {
  Process process(spin);
  InitiatorThread thread = process.thread();
  EXPECT_TRUE(thread.may_be_copying());
  EXPECT_TRUE(soon([&] { return !thread.may_be_copying(); })) << "no copy takes that long";
}

TEST(InitiatorThread, MayCopyIfItCannotBeObserved) {
  EXPECT_TRUE(InitiatorThread(0, 1).may_be_copying());
}

// A copy from a page whose fault is never resolved stays in the system call.
os::UniqueFd block_page(void* page) {
  os::UniqueFd fd(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC)));
  uffdio_api api{.api = UFFD_API, .features = 0, .ioctls = 0};
  uffdio_register range{};
  range.range = {reinterpret_cast<uint64_t>(page), 4096};
  range.mode = UFFDIO_REGISTER_MODE_MISSING;
  if (!fd.valid() || ::ioctl(fd.get(), UFFDIO_API, &api) != 0 ||
      ::ioctl(fd.get(), UFFDIO_REGISTER, &range) != 0) {
    fd.reset();
  }
  return fd;
}

class BlockedCopy : public testing::Test {
 protected:
  void SetUp() override {
    page_ = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!block_page(page_).valid()) GTEST_SKIP() << "userfaultfd is not permitted";
  }
  void TearDown() override { ::munmap(page_, 4096); }

  // For a child process: never returns.
  void copy_blocked_page() const {
    const os::UniqueFd fd = block_page(page_);
    std::array<std::byte, 8> to{};
    iovec local{page_, 8};
    iovec remote{to.data(), 8};
    ::syscall(SYS_process_vm_writev, ::getpid(), &local, 1, &remote, 1, 0);
    ::_exit(1);
  }
  static bool in_copy(pid_t pid) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/syscall");
    long number = 0;
    return file >> number && number == SYS_process_vm_writev;
  }

  void* page_ = nullptr;
};

TEST_F(BlockedCopy, MayCopyWhileInTheSystemCall) {
  Process process([&] { copy_blocked_page(); });
  ASSERT_TRUE(soon([&] { return in_copy(process.pid()); }));
  InitiatorThread thread = process.thread();
  EXPECT_TRUE(thread.may_be_copying());
  ::kill(process.pid(), SIGSTOP);  // has no effect inside the system call
  EXPECT_TRUE(thread.may_be_copying());
}

// Both versions of cgroups can freeze a thread.
class FrozenThread : public testing::TestWithParam<const char*> {};

TEST_P(FrozenThread, DoesNotCopy) {
  namespace fs = std::filesystem;
  const bool unified = std::string(GetParam()) == "unified";
  fs::path root = std::string("/sys/fs/cgroup/") + GetParam();
  if (unified && fs::exists("/sys/fs/cgroup/cgroup.controllers")) root = "/sys/fs/cgroup";
  const fs::path group = root / ("verbena_test_" + std::to_string(::getpid()));
  std::error_code error;
  if (!fs::exists(root) || !fs::create_directory(group, error)) GTEST_SKIP() << "no cgroup";
  const fs::path state = group / (unified ? "cgroup.freeze" : "freezer.state");
  {
    // Repeats the system call. The kernel freezes the process when a call returns.
    Process process([] {
      std::array<std::byte, 8> from{}, to{};
      iovec local{from.data(), 8}, remote{to.data(), 8};
      for (;;) ::syscall(SYS_process_vm_writev, ::getpid(), &local, 1, &remote, 1, 0);
    });
    std::ofstream(group / "cgroup.procs") << process.pid() << std::flush;
    std::ofstream(state) << (unified ? "1" : "FROZEN") << std::flush;
    const fs::path events = unified ? group / "cgroup.events" : state;
    EXPECT_TRUE(soon([&] {
      std::ifstream file(events);
      const std::string text{std::istreambuf_iterator<char>(file), {}};
      return text.find(unified ? "frozen 1" : "FROZEN") != text.npos;
    }));
    EXPECT_FALSE(process.thread().may_be_copying());
    std::ofstream(state) << (unified ? "0" : "THAWED") << std::flush;
  }
  EXPECT_TRUE(soon([&] { return fs::remove(group, error); }));
}
INSTANTIATE_TEST_SUITE_P(Cgroups, FrozenThread, testing::Values("unified", "freezer"));

}  // namespace
}  // namespace verbena::datapath

// Detection of the end of another process, with real processes.
#include "host/lifelines.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "base/exhaustion.h"
#include "os/unix_address.h"
#include "tests/runtime/failing_allocator_support.h"

namespace verbena::datapath {
namespace {

using Slots = std::vector<uint8_t>;

// Slots that no Nic of these tests has: a Nic starts at a slot that depends on its process.
constexpr uint8_t kOurs = 251;
constexpr uint8_t kOther = 252;

Slots ended_within(host::Lifelines& lines, int ms) {
  pollfd p{lines.fd(), POLLIN, 0};
  for (; ms > 0; ms -= 10) {
    if (poll(&p, 1, 10) != 1) continue;
    if (Slots slots = lines.take_departed(); !slots.empty()) return slots;
  }
  return {};
}

// Another process with its own lifelines. If `watches`, it watches this process. It waits to be
// killed.
class Other {
 public:
  explicit Other(bool watches) {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    pid_ = fork();
    if (pid_ == 0) {
      host::Lifelines lines(kOther);
      const char reply = !watches || lines.watch(kOurs) ? 'y' : 'n';
      (void)!write(ready[1], &reply, 1);
      for (;;) pause();
    }
    char reply = 0;
    EXPECT_EQ(read(ready[0], &reply, 1), 1);
    EXPECT_EQ(reply, 'y');
    close(ready[0]);
    close(ready[1]);
  }
  ~Other() { end(); }
  void end() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
};

TEST(Lifelines, ReportsTheEndOfAWatchedProcess) {
  Other other(false);
  host::Lifelines ours(kOurs);
  EXPECT_TRUE(ours.watch(kOther));
  EXPECT_TRUE(ours.watch(kOther));
  EXPECT_EQ(ended_within(ours, 50), Slots{});
  other.end();
  EXPECT_EQ(ended_within(ours, 10'000), Slots{kOther});
  EXPECT_EQ(ended_within(ours, 50), Slots{});
}

TEST(Lifelines, ReportsTheEndOfAWatchingProcess) {
  host::Lifelines ours(kOurs);
  Other other(true);
  EXPECT_EQ(ended_within(ours, 50), Slots{});
  other.end();
  EXPECT_EQ(ended_within(ours, 10'000), Slots{kOther});
}

TEST(Lifelines, CannotWatchAnEndedProcess) {
  host::Lifelines ours(kOurs);
  EXPECT_FALSE(ours.watch(kOther));
  EXPECT_TRUE(ours.watch(kOurs)) << "a process can watch itself";
}

TEST(Lifelines, IgnoresAProcessWithSlotZero) {
  host::Lifelines ours(kOurs);
  Slots none;
  {
    host::Lifelines caller(0);  // sends slot 0
    EXPECT_TRUE(caller.watch(kOurs));
    EXPECT_EQ(ended_within(ours, 20), none);
  }
  EXPECT_EQ(ended_within(ours, 50), none);
}

// --- misbehaving processes ----------------------------------------------------------------------

os::UniqueFd connect_to(uint8_t slot) {
  os::UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const os::UnixAddress name = os::UnixAddress::abstract("verbena/life/1/%u", slot);
  if (::connect(socket.get(), name.get(), name.bytes) != 0) socket.reset();
  return socket;
}
void send_slot(const os::UniqueFd& line, uint8_t slot) {
  EXPECT_EQ(::send(line.get(), &slot, 1, 0), 1);
}
bool is_readable(int fd) {
  pollfd p{fd, POLLIN, 0};
  return ::poll(&p, 1, 0) == 1;
}
bool was_ended(const os::UniqueFd& line) {
  pollfd p{line.get(), POLLRDHUP, 0};
  return ::poll(&p, 1, 0) == 1;
}

TEST(Lifelines, AConnectionWaitsUntilMemoryIsAvailable) {
  host::Lifelines ours(kOurs);
  std::vector<os::UniqueFd> lines;
  for (uint8_t slot = 1; slot <= 4; ++slot) {
    lines.push_back(connect_to(kOurs));
    send_slot(lines.back(), slot);
    for (int64_t failing = 1; failing <= 4; ++failing) {  // each allocation in turn
      test::fail_allocations(test::FailIn::AllThreads, failing, 1);
      (void)try_allocating([&] { EXPECT_EQ(ours.take_departed(), Slots{}); });
      test::fail_allocations(test::FailIn::NoThread, 0, 0);
      EXPECT_FALSE(was_ended(lines.back()));
    }
  }
  for (uint8_t slot = 1; slot <= 4; ++slot) {
    lines[slot - 1u].reset();
    EXPECT_EQ(ended_within(ours, 10'000), Slots{slot});
  }
}

TEST(Lifelines, LimitsConnectionsWithoutASlot) {
  host::Lifelines ours(kOurs);
  std::vector<os::UniqueFd> lines;
  for (int i = 0; i < 300; ++i) {
    lines.push_back(connect_to(kOurs));
    ASSERT_TRUE(lines.back().valid());
    EXPECT_EQ(ours.take_departed(), Slots{});
  }
  EXPECT_FALSE(is_readable(ours.fd()));
  EXPECT_LE(std::ranges::count_if(lines, std::not_fn(was_ended)), 64);
}

TEST(Lifelines, KeepsOneConnectionPerSlot) {
  host::Lifelines ours(kOurs);
  std::vector<os::UniqueFd> lines;
  for (int i = 0; i < 100; ++i) {
    lines.push_back(connect_to(kOurs));
    send_slot(lines.back(), kOther);
    EXPECT_EQ(ours.take_departed(), Slots{});
  }
  EXPECT_FALSE(was_ended(lines.front()));
  EXPECT_EQ(std::ranges::count_if(lines, std::not_fn(was_ended)), 1);
  lines.clear();
  EXPECT_EQ(ended_within(ours, 10'000), Slots{kOther});
}

TEST(Lifelines, AcceptsTheNewProcessOfAReusedSlot) {
  host::Lifelines ours(kOurs);
  os::UniqueFd before = connect_to(kOurs);
  send_slot(before, kOther);
  EXPECT_EQ(ours.take_departed(), Slots{});
  before.reset();
  os::UniqueFd after = connect_to(kOurs);
  send_slot(after, kOther);
  EXPECT_EQ(ours.take_departed(), Slots{kOther});
  EXPECT_FALSE(was_ended(after));
  after.reset();
  EXPECT_EQ(ended_within(ours, 10'000), Slots{kOther});
}

// Runs in a child whose descriptor limit is reached while a process connects.
bool survives_without_descriptors(int called_fd, int go_fd) {
  host::Lifelines lines(kOther);
  const rlimit few{48, 48};
  char byte = 'c';
  if (::setrlimit(RLIMIT_NOFILE, &few) != 0 || ::write(called_fd, &byte, 1) != 1) return false;
  std::vector<os::UniqueFd> taken;
  for (os::UniqueFd fd(::dup(0)); fd.valid(); fd = os::UniqueFd(::dup(0)))
    taken.push_back(std::move(fd));
  if (::read(go_fd, &byte, 1) != 1) return false;
  (void)lines.take_departed();
  (void)lines.take_departed();
  if (is_readable(lines.fd())) return false;  // the owner could not sleep
  taken.clear();
  return ended_within(lines, 10'000) == Slots{kOurs};  // the last connection is accepted
}

TEST(Lifelines, AConnectionWithoutADescriptorDoesNotKeepTheOwnerAwake) {
  int called[2], go[2];
  ASSERT_EQ(::pipe(called), 0);
  ASSERT_EQ(::pipe(go), 0);
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(survives_without_descriptors(called[1], go[0]) ? 0 : 1);
  char byte = 0;
  ASSERT_EQ(::read(called[0], &byte, 1), 1);
  os::UniqueFd first = connect_to(kOther), second = connect_to(kOther), third = connect_to(kOther);
  send_slot(third, kOurs);
  third.reset();
  EXPECT_EQ(::write(go[1], &byte, 1), 1);
  int status = -1;
  ::waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
  for (const int fd : {called[0], called[1], go[0], go[1]}) ::close(fd);
}

TEST(Lifelines, ClosesConnectionsOfOtherUsers) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to change the user";
  host::Lifelines ours(kOurs);
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    if (::setresuid(4321, 4321, 4321) != 0) ::_exit(2);
    const os::UniqueFd line = connect_to(kOurs);
    const uint8_t slot = kOther;
    (void)!::send(line.get(), &slot, 1, MSG_NOSIGNAL);
    (void)!::write(ready[1], &slot, 1);
    pollfd p{line.get(), POLLRDHUP, 0};
    ::_exit(::poll(&p, 1, 10'000) == 1 ? 0 : 1);
  }
  char byte = 0;
  EXPECT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_EQ(ours.take_departed(), Slots{});
  int status = -1;
  ::waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
  ::close(ready[0]);
  ::close(ready[1]);
}

}  // namespace
}  // namespace verbena::datapath

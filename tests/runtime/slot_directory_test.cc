// Slots and the messages between them.
#include "host/slot_directory.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "host/slot_holders.h"
#include "runtime/counter_report.h"
#include "tests/runtime/udp_process.h"

namespace verbena::datapath {
namespace {

TEST(SlotDirectory, ClaimsExclusiveSlotsAndReleasesThem) {
  std::vector<std::unique_ptr<host::SlotDirectory>> all;
  const auto is_ours = [](const host::HeldSlot& s) {
    return s.uid == ::getuid() && s.pid == ::getpid();
  };
  for (;;) {
    auto claimed = host::SlotDirectory::claim();
    if (!claimed.ok()) {
      EXPECT_EQ(claimed.error().code, EBUSY);
      EXPECT_EQ(std::ranges::count_if(host::held_slots(), is_ours), std::ssize(all));
      break;
    }
    EXPECT_GE(claimed.value()->slot(), host::kFirstSlot);
    EXPECT_LE(claimed.value()->slot(), host::kLastSlot);
    for (const auto& other : all) ASSERT_NE(other->slot(), claimed.value()->slot());
    all.push_back(std::move(claimed.value()));
    ASSERT_LE(all.size(), 254u);
  }
  all.clear();
  EXPECT_TRUE(host::SlotDirectory::claim().ok());
}

TEST(SlotHolders, ListsUsersAndProcessesWithMostSlotsFirst) {
  const std::vector<host::HeldSlot> slots = {
      {0, 7, 1}, {1000, 21, 2}, {1000, 22, 3}, {1000, 22, 4}, {65534, 0, 5}};
  const std::string text = describe(slots);
  EXPECT_EQ(text.rfind("user 1000: 3 (process 22: 2, process 21: 1); user ", 0), 0u) << text;
  EXPECT_NE(text.find("user 0: 1 (process 7: 1)"), std::string::npos) << text;
  EXPECT_NE(text.find("user 65534: 1"), std::string::npos) << text;
}

TEST(SlotDirectory, RepliesWithItsCounters) {
  Process a;
  // One thread queries and replies, so the query comes first and reads earlier replies.
  EXPECT_TRUE(host::SlotDirectory::query_all(milliseconds(0)).size() >= 1);
  a.directory->poll(nullptr);  // replies to a closed socket: no effect
  const pid_t child = ::fork();
  if (child == 0) {
    const auto reports = host::SlotDirectory::query_all(seconds(2));
    for (const host::SlotReport& r : reports) {
      if (r.slot == a.slot() && r.pid == ::getppid() && r.text == "reply\n") ::_exit(0);
    }
    ::_exit(1);
  }
  int status = 0;
  while (::waitpid(child, &status, WNOHANG) == 0) a.directory->poll(nullptr);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// Nobody replies to the queries.
TEST(SlotDirectory, SilentSlotsOfOneProcessCountAsOneProcess) {
  const Process lanes[3];
  auto reports = host::SlotDirectory::query_all(milliseconds(0));
  std::erase_if(reports, [&](const host::SlotReport& report) {
    return std::ranges::find(lanes, report.slot, &Process::slot) == std::end(lanes);
  });
  ASSERT_EQ(reports.size(), 3u);
  EXPECT_EQ(runtime::silent_processes(reports).seen, 1u);
  EXPECT_EQ(runtime::silent_processes(reports).unseen_slots, 0u);
  reports[1].pid = ::getpid();  // one lane has replied
  EXPECT_EQ(runtime::silent_processes(reports).seen, 0u);
}

// In a set-user-ID program processes identify each other by the effective user.
TEST(SlotDirectory, RepliesToProcessesOfTheSameEffectiveUser) {
  constexpr int kNeedsRoot = 77;
  const pid_t child = ::fork();
  if (child == 0) {
    if (::getuid() == 1234 || ::seteuid(1234) != 0) ::_exit(kNeedsRoot);
    Process a;
    const pid_t querier = ::fork();
    if (querier == 0) {
      for (const host::SlotReport& r : host::SlotDirectory::query_all(seconds(2))) {
        if (r.slot == a.slot() && r.text == "reply\n") ::_exit(0);
      }
      ::_exit(1);
    }
    int status = 0;
    while (::waitpid(querier, &status, WNOHANG) == 0) a.directory->poll(nullptr);
    ::_exit(WEXITSTATUS(status));
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  if (WEXITSTATUS(status) == kNeedsRoot) GTEST_SKIP() << "needs root";
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(SlotDirectory, IgnoresMalformedMessages) {
  Process a;
  ASSERT_TRUE(a.udp->listen(kLoopback4).ok());
  const os::UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  const int n =
      std::snprintf(to.sun_path + 1, sizeof to.sun_path - 1, "verbena/2/slot/%u", a.slot());
  const auto bytes =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(n));
  std::vector<unsigned char> message(100);
  for (size_t size = 0; size <= message.size(); ++size) {
    for (const int kind : {0, 1, 2, 3, 4, 200}) {
      std::fill(message.begin(), message.end(), static_cast<unsigned char>(size));
      message[0] = 'V';
      message[1] = 'B';
      message[2] = 2;
      message[3] = static_cast<unsigned char>(kind);
      ::sendto(fd.get(), message.data(), size, MSG_DONTWAIT, reinterpret_cast<const sockaddr*>(&to),
               bytes);
      a.udp->poll_directory();
    }
  }
  EXPECT_EQ(a.receive(), 0u);
}

// Forwards one packet with these flags and returns them as they arrive.
wire::RxMeta flags_after_forwarding(bool from_other_process) {
  auto to = host::SlotDirectory::claim();
  EXPECT_TRUE(to.ok());
  const host::LocalAddress address{kLoopback4, 0};
  host::Mailbox mailbox(*to.value());
  mailbox.add_address(address);
  const auto forward = [&] {
    auto from = host::SlotDirectory::claim();
    wire::RxMeta meta;
    meta.own = true;
    meta.forwarded = false;
    const std::vector<std::byte> packet(64);
    return from.ok() && from.value()->forward(to.value()->slot(), address, meta, packet, 64) ==
                            host::Forwarded::Yes;
  };
  if (from_other_process) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(forward() ? 0 : 1);
    int status = -1;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  } else {
    EXPECT_TRUE(forward());
  }
  to.value()->poll(&mailbox);
  std::vector<host::MisroutedPackets> misrouted;
  std::vector<host::MemberReport> reports;
  mailbox.take(misrouted, reports);
  EXPECT_EQ(misrouted.size(), 1u);
  return misrouted.empty() ? wire::RxMeta{} : misrouted[0].meta;
}

TEST(SlotDirectory, IgnoresFlagsOfAnotherProcessInAForwardedPacket) {
  const wire::RxMeta meta = flags_after_forwarding(true);
  EXPECT_FALSE(meta.own);
  EXPECT_TRUE(meta.forwarded);
}

// The first lane has yet to route a management datagram that another lane received.
TEST(SlotDirectory, AForwardedPacketOfTheSameProcessMayBeForwardedAgain) {
  const wire::RxMeta meta = flags_after_forwarding(false);
  EXPECT_FALSE(meta.own);
  EXPECT_FALSE(meta.forwarded);
}

}  // namespace
}  // namespace verbena::datapath

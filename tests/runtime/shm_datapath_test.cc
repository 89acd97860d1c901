// Links between processes: connecting, rejection, packets in both directions, peers that end, stop,
// or send invalid data. A slot and a ShmDatapath represent a process here; where a real one is
// needed, a child is forked.
#include "datapath/shm/shm_datapath.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "datapath/shm/handshake.h"
#include "wire/headers.h"

namespace verbena::datapath {
namespace {

const wire::Gid kHere = wire::Gid::from_ipv4("\x7F\x00\x00\x01");
const wire::Gid kElsewhere = wire::Gid::from_ipv4("\xC0\x00\x02\x01");  // 192.0.2.1: not assigned

// Slots that no other test of this run uses.
uint8_t next_slot() {
  static uint8_t slot = 100;
  return ++slot;
}

struct Peer {
  explicit Peer(uint8_t its_slot = next_slot(), bool wire_packets_only = false) : slot(its_slot) {
    auto opened = ShmDatapath::open({.slot = slot, .wire_packets_only = wire_packets_only},
                                    ::if_nametoindex("lo"));
    if (!opened.ok()) throw std::runtime_error(opened.error().why);  // fails the test
    shm = std::move(opened.value());
  }

  bool push(uint8_t to, uint32_t psn, size_t bytes, const wire::Gid& source = kHere) {
    Link* const link = shm->link_to(to);
    if (link == nullptr || link->full()) return false;
    const auto number = link->number_of({source, kHere, 0, 64});
    if (!number) return false;
    wire::TxPacket p;
    wire::Bth bth;
    bth.opcode = static_cast<uint8_t>(wire::Opcode::RcSendOnly);
    bth.psn = wire::Psn(psn);
    bth.store(p.header.data());
    p.header_bytes = wire::kBthBytes;
    std::vector<std::byte> payload(bytes);
    for (size_t i = 0; i < bytes; ++i) payload[i] = static_cast<std::byte>(psn + i * 7);
    const std::span<const std::byte> parts[1] = {payload};
    p.payload = parts;
    p.payload_bytes = static_cast<uint32_t>(bytes);
    p.packet_payload_bytes = 65536;
    link->push(p, *number);
    return true;
  }

  // Appends the PSNs of received packets, after checking every byte.
  size_t receive() {
    const auto got = shm->receive();
    for (const wire::RxPacket& p : got) {
      const wire::Bth bth = wire::Bth::load(p.bytes.data());
      const auto payload =
          p.separate_payload.empty() ? p.bytes.subspan(wire::kBthBytes) : p.separate_payload;
      for (size_t i = 0; i < payload.size(); ++i) {
        if (payload[i] == static_cast<std::byte>(bth.psn.value() + i * 7)) continue;
        ADD_FAILURE() << "packet " << bth.psn.value() << " differs at " << i;
        break;
      }
      EXPECT_EQ(p.packet_payload_bytes, 65536u);
      psns.push_back(bth.psn.value());
    }
    return got.size();
  }

  uint64_t counter(const std::string& name) const {
    std::vector<Counter> all;
    shm->append_counters(all);
    for (const Counter& c : all) {
      if (c.name == name) return c.value;
    }
    ADD_FAILURE() << "no counter " << name;
    return 0;
  }

  uint8_t slot;
  std::unique_ptr<ShmDatapath> shm;
  std::vector<uint32_t> psns;
};

// All serve their sockets until the condition holds.
bool serve_until(std::initializer_list<Peer*> peers, const std::function<bool()>& done) {
  for (int i = 0; i < 20'000; ++i) {
    if (done()) return true;
    for (Peer* p : peers) {
      p->shm->attend();
      p->receive();
    }
    ::usleep(100);
  }
  return done();
}

bool link(Peer& a, Peer& b) {
  a.shm->reach(b.slot, Instant{});
  return serve_until({&a, &b}, [&] {
    return a.shm->link_to(b.slot) != nullptr && b.shm->link_to(a.slot) != nullptr;
  });
}

// A process that serves its links until it is killed; it echoes every packet. noexcept: a
// child that fails ends, instead of running the other tests.
pid_t fork_echo(uint8_t slot) noexcept {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  Peer echo(slot);
  for (;;) {
    echo.shm->attend();
    for (const wire::RxPacket& p : echo.shm->receive()) {
      const uint32_t psn = wire::Bth::load(p.bytes.data()).psn.value();
      for (uint32_t to = 1; to < 255; ++to) {
        if (echo.push(static_cast<uint8_t>(to), psn, 8)) break;
      }
    }
    echo.shm->flush();
    ::usleep(50);
  }
}

bool readable(int fd) {
  pollfd p{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&p, 1, 0) == 1;
}

void end(pid_t pid) {
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

bool reach_process(Peer& a, uint8_t slot) {
  // Retries, because the process may not listen yet.
  return serve_until({&a}, [&] {
    a.shm->reach(slot, Instant{});
    return a.shm->link_to(slot) != nullptr;
  });
}

TEST(ShmDatapathTest, DeliversPacketsInOrderInBothDirections) {
  Peer a, b;
  ASSERT_TRUE(link(a, b));
  const size_t sizes[] = {0, 8, 108, 109, 4096, 65536};
  for (uint32_t psn = 0; psn < 60; ++psn) {
    ASSERT_TRUE(a.push(b.slot, psn, sizes[psn % 6]));
    ASSERT_TRUE(b.push(a.slot, 1000 + psn, sizes[(psn + 3) % 6]));
    a.shm->flush();
    b.shm->flush();
    ASSERT_TRUE(serve_until({&a, &b},
                            [&] { return a.psns.size() == psn + 1 && b.psns.size() == psn + 1; }));
    EXPECT_EQ(b.psns.back(), psn);
    EXPECT_EQ(a.psns.back(), 1000 + psn);
  }
}

TEST(ShmDatapathTest, SimultaneousConnectsGiveOneLink) {
  Peer a, b;
  a.shm->reach(b.slot, Instant{});
  b.shm->reach(a.slot, Instant{});
  ASSERT_TRUE(serve_until({&a, &b}, [&] {
    return a.shm->link_to(b.slot) != nullptr && b.shm->link_to(a.slot) != nullptr;
  }));
  ASSERT_TRUE(a.push(b.slot, 1, 8));
  ASSERT_TRUE(b.push(a.slot, 2, 8));
  a.shm->flush();
  b.shm->flush();
  EXPECT_TRUE(serve_until({&a, &b}, [&] { return a.psns.size() + b.psns.size() == 2; }));
  EXPECT_EQ(a.counter("shm_links"), 1u);
  EXPECT_EQ(b.counter("shm_links"), 1u);
}

// Whichever process connects: one that captures or injects faults gets packets as on the wire.
TEST(ShmDatapathTest, WirePacketsOnlyAtOneEndAppliesToBoth) {
  for (const bool connecting_process_does : {true, false}) {
    Peer connecting(next_slot(), connecting_process_does);
    Peer other(next_slot(), !connecting_process_does);
    connecting.shm->reach(other.slot, Instant{});
    ASSERT_TRUE(serve_until({&connecting, &other},
                            [&] { return connecting.shm->link_to(other.slot) != nullptr; }));
    for (Link* link : {connecting.shm->link_to(other.slot), other.shm->link_to(connecting.slot)}) {
      ASSERT_NE(link, nullptr);
      EXPECT_TRUE(link->wire_packets_only());
      EXPECT_FALSE(link->peer_sleeps());
    }
    ASSERT_TRUE(connecting.push(other.slot, 7, 1000));
    connecting.shm->flush();
    EXPECT_TRUE(serve_until({&other}, [&] { return other.psns.size() == 1; }));
  }
  Peer normal;
  normal.shm->reach(normal.slot, Instant{});
  EXPECT_FALSE(normal.shm->link_to(normal.slot)->wire_packets_only());
}

TEST(ShmDatapathTest, LinkToItselfDeliversPackets) {
  Peer a;
  EXPECT_TRUE(a.shm->reach(a.slot, Instant{}));
  ASSERT_NE(a.shm->link_to(a.slot), nullptr);
  ASSERT_TRUE(a.push(a.slot, 5, 65536));
  a.shm->flush();
  EXPECT_TRUE(serve_until({&a}, [&] { return a.psns == std::vector<uint32_t>{5}; }));
}

TEST(ShmDatapathTest, MissingProcessIsReportedOnce) {
  Peer a;
  EXPECT_TRUE(a.shm->reach(254, Instant{}));
  EXPECT_EQ(a.shm->link_to(254), nullptr);
  EXPECT_TRUE(a.shm->take_notice().has_value());
  EXPECT_TRUE(a.shm->reach(254, Instant{}));
  EXPECT_FALSE(a.shm->take_notice().has_value());
}

TEST(ShmDatapathTest, WakesASleepingThreadThroughItsDescriptor) {
  Peer a, b;
  ASSERT_TRUE(link(a, b));
  pollfd p{.fd = b.shm->wait_fd(), .events = POLLIN, .revents = 0};
  ASSERT_TRUE(b.shm->arm());
  EXPECT_EQ(::poll(&p, 1, 0), 0);
  ASSERT_TRUE(a.push(b.slot, 1, 8));
  a.shm->flush();
  EXPECT_EQ(::poll(&p, 1, 1000), 1);
  b.shm->disarm();
  EXPECT_EQ(::poll(&p, 1, 0), 0) << "the wake-up was consumed";
  EXPECT_EQ(b.receive(), 1u);
  // The sender needs no system call for a reader that polls.
  ASSERT_TRUE(a.push(b.slot, 2, 8));
  a.shm->flush();
  EXPECT_EQ(a.counter("shm_wakes_sent"), 1u);
  EXPECT_FALSE(b.shm->arm()) << "a packet was received before";
}

TEST(ShmDatapathTest, FullRingRejectsPacketsAndLosesNone) {
  Peer a, b;
  ASSERT_TRUE(link(a, b));
  uint32_t sent = 0;
  while (a.push(b.slot, sent, 30'000)) ++sent;
  a.shm->flush();
  EXPECT_GT(sent, 10u);
  EXPECT_TRUE(a.shm->link_to(b.slot)->full());
  ASSERT_TRUE(serve_until({&b}, [&] { return b.psns.size() == sent; }));
  b.receive();  // releases the last batch
  EXPECT_FALSE(a.shm->link_to(b.slot)->full());
  EXPECT_EQ(a.counter("shm_dropped"), 0u);
}

TEST(ShmDatapathTest, DropsPacketsWithAddressesOfOtherHosts) {
  Peer a, b;
  ASSERT_TRUE(link(a, b));
  ASSERT_TRUE(a.push(b.slot, 1, 8, kElsewhere));
  ASSERT_TRUE(a.push(b.slot, 2, 8, kHere));
  a.shm->flush();
  EXPECT_TRUE(serve_until({&b}, [&] { return b.psns == std::vector<uint32_t>{2}; }));
  EXPECT_EQ(b.counter("shm_dropped"), 1u);
}

// The first packet after that may be lost, as on a network.
TEST(ShmDatapathTest, DeliversPacketsOfAnAddressThatWasRemovedAndAdded) {
  constexpr uint8_t kBytes[4] = {192, 0, 2, 77};
  const wire::Gid address = wire::Gid::from_ipv4(kBytes);
  Peer a, b;
  ASSERT_TRUE(link(a, b));
  ASSERT_TRUE(a.push(b.slot, 1, 8, address));
  a.shm->flush();
  ASSERT_TRUE(serve_until({&b}, [&] { return b.counter("shm_dropped") == 1; }));
  if (std::system("ip address add 192.0.2.77/32 dev lo 2>/dev/null") != 0) {
    GTEST_SKIP() << "this user may not change the addresses of the loopback interface";
  }
  ASSERT_TRUE(a.push(b.slot, 2, 8, address));
  a.shm->flush();
  EXPECT_TRUE(serve_until({&b}, [&] { return b.counter("shm_dropped") == 2; }));
  ASSERT_TRUE(a.push(b.slot, 3, 8, address));
  a.shm->flush();
  EXPECT_TRUE(serve_until({&b}, [&] { return b.psns == std::vector<uint32_t>{3}; }));
  EXPECT_EQ(std::system("ip address delete 192.0.2.77/32 dev lo"), 0);
}

TEST(ShmDatapathTest, DeliversPacketsSentBeforeTheProcessEnded) {
  Peer a;
  {
    Peer b;
    ASSERT_TRUE(link(a, b));
    ASSERT_TRUE(b.push(a.slot, 7, 4096));
    b.shm->flush();
  }
  EXPECT_TRUE(serve_until({&a}, [&] { return a.psns == std::vector<uint32_t>{7}; }));
  EXPECT_TRUE(serve_until({&a}, [&] { return a.counter("shm_links") == 0; }));
}

TEST(ShmDatapathTest, ReusedSlotGetsANewLink) {
  Peer a;
  const uint8_t slot = next_slot();
  for (uint32_t round = 0; round < 3; ++round) {
    Peer b(slot);
    ASSERT_TRUE(reach_process(a, slot) || link(a, b));
    ASSERT_TRUE(serve_until({&a, &b}, [&] { return b.shm->link_to(a.slot) != nullptr; }));
    ASSERT_TRUE(a.push(slot, round, 8));
    a.shm->flush();
    EXPECT_TRUE(serve_until({&a, &b}, [&] { return b.psns == std::vector<uint32_t>{round}; }));
    b.shm.reset();
    ASSERT_TRUE(serve_until({&a}, [&] { return a.shm->link_to(slot) == nullptr; }));
  }
}

TEST(ShmDatapathTest, LinkEndsWhenTheProcessIsKilled) {
  const uint8_t slot = next_slot();
  const pid_t pid = fork_echo(slot);
  Peer a;
  ASSERT_TRUE(reach_process(a, slot));
  ASSERT_TRUE(a.push(slot, 1, 8));
  a.shm->flush();
  EXPECT_TRUE(serve_until({&a}, [&] { return a.psns == std::vector<uint32_t>{1}; }));
  end(pid);
  EXPECT_TRUE(serve_until({&a}, [&] { return a.shm->link_to(slot) == nullptr; }));
  EXPECT_TRUE(serve_until({&a}, [&] { return a.counter("shm_links") == 0; }));
}

TEST(ShmDatapathTest, StoppedProcessFillsItsRingAndResumes) {
  const uint8_t slot = next_slot();
  const pid_t pid = fork_echo(slot);
  Peer a;
  ASSERT_TRUE(reach_process(a, slot));
  ::kill(pid, SIGSTOP);
  ::waitpid(pid, nullptr, WUNTRACED);
  uint32_t sent = 0;
  while (a.push(slot, sent, 30'000)) ++sent;
  a.shm->flush();
  EXPECT_TRUE(a.shm->link_to(slot)->full());
  ::kill(pid, SIGCONT);
  EXPECT_TRUE(serve_until({&a}, [&] { return a.psns.size() == sent; }));
  for (uint32_t i = 0; i < a.psns.size(); ++i) ASSERT_EQ(a.psns[i], i);
  end(pid);
}

TEST(ShmDatapathTest, DoesNotWaitForAStoppedProcessButAcceptsItsLateReply) {
  const uint8_t slot = next_slot();
  const pid_t pid = fork_echo(slot);
  Peer first;
  ASSERT_TRUE(reach_process(first, slot));  // now it listens
  ::kill(pid, SIGSTOP);
  ::waitpid(pid, nullptr, WUNTRACED);
  Peer a;
  EXPECT_FALSE(a.shm->reach(slot, Instant{}));
  EXPECT_TRUE(a.shm->reach(slot, Instant{} + seconds(1)));
  EXPECT_EQ(a.shm->link_to(slot), nullptr);
  ::kill(pid, SIGCONT);
  EXPECT_TRUE(serve_until({&a}, [&] { return a.shm->link_to(slot) != nullptr; }));
  end(pid);
}

TEST(ShmDatapathTest, EndedLinkIsRemovedWhileOthersAreBusy) {
  Peer a, b;
  ASSERT_TRUE(link(a, b));
  {
    Peer c;
    ASSERT_TRUE(link(a, c));
  }
  a.shm->attend();
  for (uint32_t psn = 0; psn < 3; ++psn) {
    ASSERT_TRUE(b.push(a.slot, psn, 8));
    b.shm->flush();
    EXPECT_EQ(a.receive(), 1u);
  }
  EXPECT_EQ(a.counter("shm_links"), 1u);
  EXPECT_TRUE(a.shm->take_gone());
  EXPECT_FALSE(a.shm->take_gone());
}

TEST(ShmDatapathTest, SlotTakenOverByAnotherProcessGetsANewLink) {
  Peer a;
  auto before = std::make_unique<Peer>();
  const uint8_t slot = before->slot;
  ASSERT_TRUE(link(a, *before));
  const uint32_t id = a.shm->link_to(slot)->id();
  before.reset();
  Peer b(slot);
  EXPECT_FALSE(a.shm->reach(slot, Instant{})) << "the new process has not replied yet";
  ASSERT_TRUE(serve_until({&a, &b}, [&] { return a.shm->link_to(slot) != nullptr; }));
  EXPECT_NE(a.shm->link_to(slot)->id(), id);
}

TEST(ShmDatapathTest, WakeUpIsLeftForTheSleepingThread) {
  Peer a, b;
  ASSERT_TRUE(link(a, b));
  ASSERT_TRUE(b.shm->arm());
  ASSERT_TRUE(a.push(b.slot, 1, 8));
  a.shm->flush();
  b.shm->attend();  // a thread that polls
  EXPECT_EQ(b.receive(), 1u);
  EXPECT_TRUE(readable(b.shm->wait_fd()));
  b.shm->disarm();
  EXPECT_FALSE(readable(b.shm->wait_fd()));
}

TEST(ShmDatapathTest, ForkedChildHasNoSegmentMapped) {
  Peer a, b;
  ASSERT_TRUE(link(a, b));
  const pid_t pid = ::fork();
  if (pid == 0) {
    std::ifstream maps("/proc/self/maps");
    std::string line;
    while (std::getline(maps, line)) {
      if (line.find("memfd:verbena") != std::string::npos) ::_exit(1);
    }
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0) << "a segment is mapped in the child";
}

// --- invalid handshakes -----------------------------------------------------------------------

// Connects as any process can.
os::UniqueFd connect_to(uint8_t slot) {
  os::UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const os::UnixAddress name = shm_address(slot);
  EXPECT_EQ(::connect(fd.get(), name.get(), name.bytes), 0);
  return fd;
}

TEST(ShmDatapathTest, DisconnectsPeersThatSendInvalidHandshakes) {
  Peer a;
  const std::vector<std::string> messages = {"x", std::string(16, '\0'), std::string(4000, 'V')};
  for (const std::string& message : messages) {
    const os::UniqueFd fd = connect_to(a.slot);
    ASSERT_EQ(::send(fd.get(), message.data(), message.size(), 0),
              static_cast<ssize_t>(message.size()));
    a.shm->attend();
    char reply;
    EXPECT_LE(::recv(fd.get(), &reply, 1, 0), 0);
  }
  EXPECT_EQ(a.counter("shm_links_refused"), messages.size());
  EXPECT_EQ(a.counter("shm_links"), 0u);
}

TEST(ShmDatapathTest, LimitsConnectionsWithoutAHandshake) {
  Peer a, b;
  std::vector<os::UniqueFd> connections;
  for (int i = 0; i < 150; ++i) {
    connections.push_back(connect_to(a.slot));
    a.shm->attend();
  }
  EXPECT_TRUE(link(a, b)) << "other processes can still connect";
}

TEST(ShmDatapathTest, DisconnectsAProcessIfDescriptorsAreExhausted) {
  Peer a;
  const os::UniqueFd connecting = connect_to(a.slot);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const int lowest_free = ::dup(connecting.get());
  ::close(lowest_free);
  const rlimit none{static_cast<rlim_t>(lowest_free), before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  a.shm->attend();
  const bool can_sleep = !readable(a.shm->wait_fd());
  a.shm->reach(next_slot(), Instant{});
  const auto notice = a.shm->take_notice();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(can_sleep) << "the waiting thread cannot sleep any more";
  EXPECT_EQ(a.counter("shm_links_refused"), 2u);
  char reply;
  EXPECT_LE(::recv(connecting.get(), &reply, 1, MSG_DONTWAIT), 0);
  ASSERT_TRUE(notice.has_value());
  EXPECT_NE(notice->find("too many open files"), std::string::npos) << *notice;
}

// For a peer that does not respond: it sees the link end, as if our process had ended.
TEST(ShmDatapathTest, LinkOfAnUnendingCopyEndsForBothSides) {
  Peer a, b;
  ASSERT_TRUE(link(a, b));
  a.shm->end_link_of({a.shm->link_to(b.slot)->id(), 1, {0, 0}});
  EXPECT_EQ(a.shm->link_to(b.slot), nullptr);
  EXPECT_TRUE(serve_until({&b}, [&] { return b.shm->link_to(a.slot) == nullptr; }));
}

}  // namespace
}  // namespace verbena::datapath

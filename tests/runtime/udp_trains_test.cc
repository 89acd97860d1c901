// Packets that leave together: trains of one size, what is lent to the kernel instead of copied,
// trains that queue pairs share, and sockets that cut them by themselves.
#include "datapath/udp/udp_datapath.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <cstddef>
#include <thread>

#include "datapath/udp/lent_memory.h"
#include "datapath/udp/page_lender.h"
#include "tests/runtime/udp_process.h"
#include "tests/support/needs_steering.h"

namespace verbena::datapath {
namespace {

// One process that sends to another, and knows the way.
struct UdpPair : testing::Test {
  void SetUp() override {
    ASSERT_TRUE(b.udp->listen(kLoopback4).ok());
    path = a.path_to(b, kLoopback4, kLoopback4);
    settle({&a, &b});
  }
  Process a;
  Process b;
  wire::PathId path{};
};

TEST(UdpDatapath, TrainsOfEqualPacketsArriveWholeAndInOrder) {
  for (const bool v6 : {false, true}) {
    const Gid address = v6 ? ipv6("::1") : kLoopback4;
    Process a;
    Process b;
    ASSERT_TRUE(b.udp->listen(address).ok());
    const auto path = a.path_to(b, address, address);
    settle({&a, &b});
    uint32_t psn = 0;
    for (int batch = 0; batch < 20; ++batch) {
      // A WRITE's shape: one longer packet, equal ones, a shorter one.
      a.push(path, b.slot(), psn++, 1040);
      for (int i = 0; i < 40; ++i) a.push(path, b.slot(), psn++, 1024);
      a.push(path, b.slot(), psn++, 100);
      a.udp->flush();
      ASSERT_TRUE(run({&a, &b}, [&] { return b.packets.size() >= psn; })) << b.packets.size();
    }
    for (uint32_t i = 0; i < psn; ++i) {
      ASSERT_EQ(b.psn(i), i);
      ASSERT_TRUE(b.intact(i));
    }
    EXPECT_EQ(a.counter("udp_packets_sent"), psn);
    EXPECT_EQ(a.counter("udp_trains_sent"), 20u * 2);
    EXPECT_EQ(b.counter("udp_icrc_solved"), 0u);
    EXPECT_EQ(b.counter("udp_icrc_errors"), 0u);
  }
}

// How many of our receiving sockets take datagrams one by one.
int sockets_without_trains() {
  constexpr int kGro = 104;  // UDP_GRO
  int found = 0;
  for (int fd = 0; fd < 1024; ++fd) {
    sockaddr_in name{};
    socklen_t bytes = sizeof name;
    int joined = 0;
    socklen_t size = sizeof joined;
    const bool receives = ::getsockname(fd, reinterpret_cast<sockaddr*>(&name), &bytes) == 0 &&
                          name.sin_family == AF_INET && ntohs(name.sin_port) == 4791 &&
                          ::getsockopt(fd, IPPROTO_UDP, kGro, &joined, &size) == 0;
    if (receives && joined == 0) ++found;
  }
  return found;
}

// Datagrams that come alone are read in a shorter way, trains in between and behind them whole.
TEST_F(UdpPair, TrainsThatFollowDatagramsThatCameAloneArriveWhole) {
  uint32_t psn = 0;
  const auto arrived = [&] { return b.packets.size() >= psn; };
  const auto send_alone = [&](int count) {
    for (int i = 0; i < count; ++i) {
      a.push(path, b.slot(), psn++, 64);
      a.udp->flush();
      ASSERT_TRUE(run({&a, &b}, arrived));
      run({&b}, [looks = 0]() mutable { return ++looks > 2; });
    }
  };
  // Probes of steering may come close together and be in the way of a streak.
  const auto send_until_read_alone = [&] {
    for (int i = 0; i < 100 && sockets_without_trains() == 0; ++i) send_alone(100);
    EXPECT_GT(sockets_without_trains(), 0);
  };
  for (int round = 0; round < 3; ++round) {
    send_until_read_alone();
    for (int i = 0; i < 40; ++i) a.push(path, b.slot(), psn++, 1024);
    a.push(path, b.slot(), psn++, 100);
    a.udp->flush();
    ASSERT_TRUE(run({&a, &b}, arrived)) << b.packets.size();
    EXPECT_EQ(sockets_without_trains(), 0);
  }
  for (uint32_t i = 0; i < psn; ++i) {
    ASSERT_EQ(b.psn(i), i);
    ASSERT_TRUE(b.intact(i));
  }
  EXPECT_EQ(b.counter("udp_icrc_errors"), 0u);
  // Whoever wants to know what control messages tell gets it from now on.
  send_until_read_alone();
  b.udp->report_ip_headers();
  EXPECT_EQ(sockets_without_trains(), 0);
  send_alone(1200);
  EXPECT_EQ(sockets_without_trains(), 0);
}

// The second batch of long trains and all that follow leave without being copied, where the kernel
// can; more of them than the memory for it holds.
TEST(UdpDatapath, LongTrainsThatAreNotCopiedArriveWholeAndInOrder) {
  const bool possible = PageLender().works();
  for (const bool v6 : {false, true}) {
    const Gid address = v6 ? ipv6("::1") : kLoopback4;
    Process a;
    Process b;
    ASSERT_TRUE(b.udp->listen(address).ok());
    const auto path = a.path_to(b, address, address);
    const auto other = a.path_to(b, address, address);  // shares the memory
    settle({&a, &b});
    uint32_t psn = 0;
    size_t bytes = 0;
    while (bytes < 3 * LentMemory::kBytes) {
      const uint32_t first = psn;
      a.push(path, b.slot(), psn++, 4096);
      for (int i = 0; i < 14; ++i) a.push(path, b.slot(), psn++, 4080);
      a.push(path, b.slot(), psn++, 1001);
      for (int i = 0; i < 8; ++i) a.push(other, b.slot(), psn++, 2048);
      a.push(other, b.slot(), psn++, 3);
      a.udp->flush();
      ASSERT_TRUE(run({&a, &b}, [&] { return b.packets.size() >= psn - first; }));
      for (uint32_t i = first; i < psn; ++i) {
        ASSERT_EQ(b.psn(i - first), i);
        ASSERT_TRUE(b.intact(i - first));
        bytes += b.packets[i - first].size();
      }
      b.packets.clear();
      b.metas.clear();
    }
    EXPECT_EQ(b.counter("udp_icrc_solved") + b.counter("udp_icrc_errors"), 0u);
    EXPECT_EQ(a.counter("udp_packets_sent"), psn);
    if (possible) {
      EXPECT_GT(a.counter("udp_trains_lent"), psn / 25 * 2 - 3);
    } else {
      EXPECT_EQ(a.counter("udp_trains_lent"), 0u);
    }
  }
}

// As much as PeerPath lets out at once, in as many trains as can be: nothing of it is written
// over before the receiver looks.
TEST_F(UdpPair, ManySmallTrainsDoNotOverrunALongOneThatIsNotCopied) {
  uint32_t psn = 0;
  const auto push_long_train = [&] {
    for (int i = 0; i < 5; ++i) a.push(path, b.slot(), psn++, 4096);
  };
  push_long_train();
  a.udp->flush();
  ASSERT_TRUE(run({&a, &b}, [&] { return b.packets.size() >= psn; }));
  for (int flush = 0; flush < 3; ++flush) {
    push_long_train();
    for (size_t i = 0; i < 240; ++i) a.push(path, b.slot(), psn++, 4 + 4 * (i % 30));
    a.udp->flush();
  }
  run({&a, &b}, [&] { return b.packets.size() >= psn; });
  EXPECT_EQ(b.counter("udp_icrc_errors"), 0u);
  ASSERT_EQ(b.packets.size(), psn);
  for (uint32_t i = 0; i < psn; ++i) {
    ASSERT_EQ(b.psn(i), i);
    ASSERT_TRUE(b.intact(i));
  }
}

// A peer that reads from two addresses of ours has a window for each: what is under way from one of
// them is not written over by what leaves from the other.
TEST_F(UdpPair, WhatLeavesFromTwoAddressesIsNotLentFromOneMemory) {
  const wire::PathId second = a.path_to(b, ipv4("127.0.0.2"), kLoopback4);
  uint32_t psn = 0;
  const auto send_train = [&](wire::PathId on) {
    for (int i = 0; i < 15; ++i) a.push(on, b.slot(), psn++, 4096);
    a.udp->flush();
  };
  send_train(path);  // shows that trains are long
  ASSERT_TRUE(run({&a, &b}, [&] { return b.packets.size() >= psn; }));
  send_train(path);
  send_train(path);
  const uint32_t from_first = psn;
  for (size_t i = 0; i < LentMemory::kBytes / 65536 - 1; ++i) send_train(second);
  run({&a, &b}, [&] { return b.packets.size() >= psn; });
  EXPECT_EQ(b.counter("udp_icrc_errors"), 0u);
  ASSERT_GE(b.packets.size(), from_first);  // of the others some found no room, perhaps
  for (uint32_t i = 0; i < from_first; ++i) {
    ASSERT_EQ(b.psn(i), i);
    ASSERT_TRUE(b.intact(i));
  }
}

// The last packet of a WRITE with immediate data is four bytes longer than those before it.
TEST_F(UdpPair, ATrainIsNotCopiedAlthoughASlightlyLongerPacketFollows) {
  constexpr uint32_t kBatches = 4;
  uint32_t psn = 0;
  for (uint32_t batch = 0; batch < kBatches; ++batch) {
    for (int i = 0; i < 12; ++i) a.push(path, b.slot(), psn++, 4096);
    a.push(path, b.slot(), psn++, 4100);
    a.udp->flush();
    ASSERT_TRUE(run({&a, &b}, [&] { return b.packets.size() >= psn; }));
  }
  EXPECT_EQ(a.counter("udp_trains_lent"), PageLender().works() ? kBatches - 1 : 0u);
}

// What no window limits may get ahead of its receiver: it is copied, also where it could join what
// is not.
TEST_F(UdpPair, WhatIsNotInTheWindowIsCopied) {
  for (uint32_t batch = 0; batch < 4; ++batch) {
    for (uint32_t i = 0; i < 12; ++i) a.push(path, b.slot(), i, 4096, false);
    a.udp->flush();
  }
  EXPECT_EQ(a.counter("udp_trains_lent"), 0u);
  const uint64_t trains = a.counter("udp_trains_sent");
  for (uint32_t i = 0; i < 6; ++i) a.push(path, b.slot(), i, 4096, true);
  for (uint32_t i = 0; i < 6; ++i) a.push(path, b.slot(), i, 4096, false);
  a.udp->flush();
  EXPECT_EQ(a.counter("udp_trains_lent"), PageLender().works() ? 1u : 0u);
  EXPECT_EQ(a.counter("udp_trains_sent"), trains + (PageLender().works() ? 2 : 1));
}

// The kernel's patience with what we lend ends: the same train leaves as a copy, and nothing of the
// attempt is left in the socket for what follows.
TEST_F(UdpPair, WithoutDescriptorsForItLongTrainsAreCopied) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 0;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  uint32_t psn = 0;
  for (int batch = 0; batch < 4; ++batch) {
    for (uint32_t i = 0; i < 12; ++i) a.push(path, b.slot(), psn++, 4096);
    a.udp->flush();
    run({&a, &b}, [&] { return b.packets.size() >= psn; });
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(a.counter("udp_trains_lent"), 0u);
  ASSERT_EQ(b.packets.size(), psn);
  for (uint32_t i = 0; i < psn; ++i) ASSERT_TRUE(b.intact(i));
  EXPECT_EQ(b.counter("udp_icrc_errors"), 0u);
}

// From now on this thread alone gets an error for a system call, as in some sandboxes.
bool forbid(uint32_t call, uint32_t error) {
  sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{static_cast<unsigned short>(std::size(rules)), rules};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// The send was already open when the pages were refused: it is closed, and the train leaves once
// more as a copy.
TEST_F(UdpPair, WhereSplicingIsForbiddenLongTrainsAreCopied) {
  if (!PageLender().works()) GTEST_SKIP() << "this kernel takes no pages";
  uint32_t psn = 0;
  bool forbidden = false;
  std::thread([&] {
    forbidden = forbid(SYS_splice, EPERM);
    for (int batch = 0; forbidden && batch < 4; ++batch) {
      for (uint32_t i = 0; i < 12; ++i) a.push(path, b.slot(), psn++, 4096);
      a.udp->flush();
      run({&a, &b}, [&] { return b.packets.size() >= psn; });
    }
  }).join();
  if (!forbidden) GTEST_SKIP() << "a filter for system calls cannot be set here";
  EXPECT_EQ(a.counter("udp_trains_lent"), 0u);
  ASSERT_EQ(b.packets.size(), psn);
  for (uint32_t i = 0; i < psn; ++i) {
    ASSERT_EQ(b.psn(i), i);
    ASSERT_TRUE(b.intact(i));
  }
  EXPECT_EQ(b.counter("udp_icrc_errors"), 1u) << "what the one attempt had begun";
}

// Several queue pairs of `a` that are connected to `b`; the PSN says whose a packet is.
struct UdpCrowd : UdpPair {
  static constexpr uint32_t kQueuePairs = 5;
  static constexpr uint32_t kPsns = 100'000;  // of each

  void SetUp() override {
    UdpPair::SetUp();
    for (uint32_t q = 0; q < kQueuePairs; ++q)
      paths.push_back(a.path_to(b, kLoopback4, kLoopback4));
  }
  void push(uint32_t queue_pair, size_t bytes) {
    a.push(paths[queue_pair], b.slot(), queue_pair * kPsns + next[queue_pair]++, bytes);
    ++pushed;
  }
  // Sends what was pushed; in how many trains. It has to arrive, with each queue pair's in order.
  uint64_t trains() {
    const uint64_t before = a.counter("udp_trains_sent");
    a.udp->flush();
    run({&a, &b}, [&] { return b.packets.size() >= pushed; });
    EXPECT_EQ(b.packets.size(), pushed);
    for (size_t i = 0; i < b.packets.size(); ++i) {
      EXPECT_TRUE(b.intact(i));
      EXPECT_EQ(b.psn(i) % kPsns, arrived[b.psn(i) / kPsns]++);
    }
    EXPECT_EQ(b.counter("udp_icrc_errors") + b.counter("udp_icrc_solved"), 0u);
    b.packets.clear();
    b.metas.clear();
    pushed = 0;
    return a.counter("udp_trains_sent") - before;
  }
  // The sender has seen that there are several.
  void appear() {
    push(0, 64);
    push(1, 64);
    EXPECT_EQ(trains(), 1u);
  }
  std::vector<wire::PathId> paths;
  std::array<uint32_t, kQueuePairs> next{};
  std::array<uint32_t, kQueuePairs> arrived{};
  size_t pushed = 0;
};

TEST_F(UdpCrowd, PacketsOfOneSizeShareATrain) {
  for (uint32_t q = 0; q < kQueuePairs; ++q) {
    for (int i = 0; i < 12; ++i) push(q, 64);
  }
  EXPECT_EQ(trains(), 1u);
  for (int i = 0; i < 100; ++i) push(static_cast<uint32_t>(i) % kQueuePairs, 64);
  EXPECT_EQ(trains(), 2u) << "of 64 at most";
}

TEST_F(UdpCrowd, EachSizeHasATrainToItself) {
  appear();
  for (uint32_t q = 0; q < kQueuePairs; ++q) {
    push(q, 1040);
    for (int i = 0; i < 5; ++i) push(q, 1024);
    push(q, 100);
  }
  EXPECT_EQ(trains(), 3u);
}

TEST_F(UdpCrowd, APacketDoesNotJoinATrainThatLeavesBeforeItsOwnQueuePairsLatest) {
  appear();
  for (uint32_t q = 0; q < kQueuePairs; ++q) {
    for (const size_t bytes : {1024, 100, 1024, 2000, 100}) push(q, bytes);
  }
  EXPECT_EQ(trains(), 5u);
  push(0, 1024);
  push(1, 100);
  push(0, 100);
  push(1, 1024);  // the first train has this size, and 100 bytes of the same queue pair follow it
  push(1, 100);
  EXPECT_EQ(trains(), 4u);
}

TEST_F(UdpCrowd, AloneAShorterPacketEndsTheTrain) {
  appear();
  for (int batch = 0; batch < 16; ++batch) {
    push(2, 1024);
    push(2, 100);
    EXPECT_EQ(trains(), 2u) << "others may come";
  }
  push(2, 1024);
  push(2, 100);
  EXPECT_EQ(trains(), 1u);
}

// The owner flushes after each turn, whether it had anything to send or not.
TEST_F(UdpCrowd, TurnsWithoutPacketsAreNotBatchesOfOneQueuePair) {
  appear();
  for (int turn = 0; turn < 100; ++turn) a.udp->flush();
  push(2, 1024);
  push(2, 100);
  EXPECT_EQ(trains(), 2u) << "others may come";
}

// The kernel of a host with several processes picks one of them by a train's first packet.
TEST_F(UdpCrowd, WhatIsForAllProcessesOfAHostJoinsNoTrain) {
  wire::Route route{.source = kLoopback4, .destination = kLoopback4, .peer = Qpn::of_slot(0, 0x11)};
  auto to_nic = a.udp->open_path(route);  // whose queue pairs have small numbers
  route.peer = wire::kManagementQpn;
  auto management = a.udp->open_path(route);
  ASSERT_TRUE(to_nic.ok() && management.ok());
  for (const wire::PathId to : {to_nic.value(), management.value(), to_nic.value()}) {
    a.push(to, 0, 0, 256);
  }
  const uint64_t before = a.counter("udp_trains_sent");
  a.udp->flush();
  EXPECT_EQ(a.counter("udp_trains_sent") - before, 2u);
}

TEST_F(UdpCrowd, AnAcknowledgementEndsTheTrainOfItsQueuePair) {
  appear();
  push(2, 1024);
  a.push(paths[2], b.slot(), 2 * kPsns + next[2]++, 4, true, wire::Opcode::RcAck);
  ++pushed;
  EXPECT_EQ(trains(), 1u);
}

// They lie among each other in the sender's memory, in lent memory, or in both.
TEST_F(UdpCrowd, LongTrainsOfManyArriveWholeAndInOrder) {
  for (int batch = 0; batch < 40; ++batch) {
    const uint32_t several = batch % 3 == 0 ? 1 : kQueuePairs;
    for (uint32_t q = 0; q < several; ++q) {
      push(q, 4096);
      for (int i = 0; i < 13; ++i) push(q, 4080);
      push(q, batch % 2 == 0 ? 4080 : 1500);
      if (batch % 5 == 0) push(q, 4096);
    }
    trains();
    if (HasFailure()) return;
  }
  EXPECT_EQ(a.counter("udp_trains_lent") > 0, PageLender().works());
}

TEST_F(UdpCrowd, FirstPacketsAreNotLentWhenThatKeepsThemFromSharingATrain) {
  uint64_t last = 0;
  for (int batch = 0; batch < 10; ++batch) {
    for (uint32_t q = 0; q < kQueuePairs; ++q) {
      push(q, 4096);
      for (int i = 0; i < 15; ++i) push(q, 4080);
    }
    last = trains();
  }
  EXPECT_EQ(last, 1u + kQueuePairs);
}

TEST_F(UdpCrowd, OnlyWhatHasTheSameHeadersAndReceiverSharesATrain) {
  wire::Route route{
      .source = kLoopback4, .destination = kLoopback4, .peer = Qpn::of_slot(b.slot(), 1)};
  route.traffic_class = 0x20;
  auto classed = a.udp->open_path(route);
  route.traffic_class = 0;
  route.hop_limit = 9;
  auto near = a.udp->open_path(route);
  route.hop_limit = 64;
  route.peer = Qpn();  // of datagrams: one queue pair may have several
  auto datagrams = a.udp->open_path(route);
  auto more_datagrams = a.udp->open_path(route);
  ASSERT_TRUE(classed.ok() && near.ok() && datagrams.ok() && more_datagrams.ok());
  push(0, 64);
  for (const wire::PathId other :
       {classed.value(), near.value(), datagrams.value(), more_datagrams.value()}) {
    a.push(other, b.slot(), 4 * kPsns + next[4]++, 64);
    ++pushed;
  }
  a.push(paths[1], a.slot(), 0, 64);  // for another process
  push(0, 64);
  EXPECT_EQ(trains(), 6u);
}

TEST_F(UdpPair, ABatchTakesWhatItPromises) {
  uint32_t sent = 0;
  while (a.udp->sink().room() > 0) a.push(path, b.slot(), sent++, 4096);
  EXPECT_GE(sent, 100u);
  a.udp->flush();
  EXPECT_EQ(a.counter("udp_packets_sent"), sent);
  run({&a, &b}, [&] { return b.packets.size() >= sent; });
  // A small receive buffer may lose some, never damage any.
  EXPECT_GE(b.packets.size(), 15u);
  for (size_t i = 0; i < b.packets.size(); ++i) ASSERT_TRUE(b.intact(i));
  while (a.udp->sink().room() > 0) a.push(path, b.slot(), sent++, 4);
  a.udp->flush();
}

// Each packet has an iovec of its own then, and the last one is the last of the array. With library
// assertions (_GLIBCXX_ASSERTIONS) an access beyond it aborts.
TEST(UdpDatapath, SendsAFullBatchOfUnsegmentedPackets) {
  UdpOptions options;
  options.segmentation = Segmentation::Never;
  Process a(options);
  Process b;
  ASSERT_TRUE(b.udp->listen(kLoopback4).ok());
  const auto path = a.path_to(b, kLoopback4, kLoopback4);
  settle({&a, &b});
  uint32_t sent = 0;
  while (a.udp->sink().room() > 0) a.push(path, b.slot(), sent++, 4);
  a.udp->flush();
  EXPECT_EQ(a.counter("udp_trains_sent"), sent);
  EXPECT_EQ(a.counter("udp_send_drops"), 0u);
  EXPECT_EQ(sent, 256u);
}

// After many trains alike the socket cuts sends of that size by itself.
TEST_F(UdpCrowd, WhatFollowsManyTrainsAlikeIsCutAsItShouldBe) {
  const auto like_before = [&] {
    push(0, 8);
    push(0, 4);
    return trains();
  };
  const auto alone = [&](size_t bytes, uint32_t packets) {
    for (uint32_t i = 0; i < packets; ++i) push(0, bytes);
    return trains();
  };
  for (int i = 0; i < 100; ++i) ASSERT_EQ(like_before(), 1u);
  EXPECT_EQ(alone(4, 1), 1u);
  EXPECT_EQ(alone(8, 1), 1u);
  EXPECT_EQ(alone(200, 1), 1u);
  EXPECT_EQ(alone(200, 3), 1u);
  EXPECT_EQ(alone(4, 3), 1u);
  EXPECT_EQ(like_before(), 1u);
  push(0, 8);
  push(0, 200);
  push(0, 8);
  EXPECT_EQ(trains(), 2u);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(alone(12, 1), 1u);  // none of them fits any more
  EXPECT_EQ(alone(1000, 1), 1u);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(alone(1000, 5), 1u);
  EXPECT_EQ(alone(1001, 1), 1u);
  EXPECT_EQ(like_before(), 1u);
}

TEST_F(UdpCrowd, ProbesAreNotCutLikeTheTrainsBefore) {
  VERBENA_NEEDS_STEERING();
  for (int i = 0; i < 100; ++i) {
    push(0, 0);
    push(0, 0);
    ASSERT_EQ(trains(), 1u);
  }
  const uint64_t too_short = a.counter("udp_too_short") + b.counter("udp_too_short");
  Process c;  // all look for their places again
  ASSERT_TRUE(c.udp->listen(kLoopback4).ok());
  const auto to_c = a.path_to(c, kLoopback4, kLoopback4);
  settle({&a, &b, &c});
  a.push(to_c, c.slot(), 1, 8);
  a.udp->flush();
  EXPECT_TRUE(run({&a, &b, &c}, [&] { return c.packets.size() == 1; }));
  EXPECT_EQ(a.counter("udp_too_short") + b.counter("udp_too_short") + c.counter("udp_too_short"),
            too_short);
  EXPECT_EQ(a.counter("udp_icrc_errors") + b.counter("udp_icrc_errors"), 0u);
}

TEST_F(UdpCrowd, WhereASocketThatCutsByItselfIsRefusedTrainsSayItAgain) {
  bool forbidden = false;
  std::thread([&] {
    const auto exchange = [&] {
      push(0, 8);
      push(0, 4);
      EXPECT_EQ(trains(), 1u);
    };
    for (int i = 0; i < 100; ++i) exchange();
    forbidden = forbid(SYS_sendto, EIO);
    for (int i = 0; forbidden && i < 100; ++i) exchange();
  }).join();
  if (!forbidden) GTEST_SKIP() << "a filter for system calls cannot be set here";
  EXPECT_EQ(a.counter("udp_send_drops"), 0u);
}

TEST(UdpDatapath, SinglesWhereSegmentationIsOff) {
  VERBENA_NEEDS_STEERING();
  UdpOptions options;
  options.segmentation = Segmentation::Never;
  Process a(options);
  Process b;
  ASSERT_TRUE(b.udp->listen(kLoopback4).ok());
  const auto path = a.path_to(b, kLoopback4, kLoopback4);
  settle({&a, &b});
  for (uint32_t i = 0; i < 20; ++i) a.push(path, b.slot(), i, 1024);
  a.udp->flush();
  ASSERT_TRUE(run({&a, &b}, [&] { return b.packets.size() >= 20; }));
  EXPECT_EQ(a.counter("udp_trains_sent"), 20u);
  EXPECT_EQ(b.counter("udp_icrc_solved"), 0u);
}

}  // namespace
}  // namespace verbena::datapath

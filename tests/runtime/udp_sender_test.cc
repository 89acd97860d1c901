// GSO batches: packets of one size, zero-copy sends, batches that queue pairs share, and sockets
// with a fixed segment size.
#include "datapath/udp/udp_datapath.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <cstddef>
#include <thread>

#include "datapath/udp/zero_copy_ring.h"
#include "datapath/udp/zero_copy_sender.h"
#include "tests/runtime/udp_process.h"
#include "tests/support/needs_steering.h"

namespace verbena::datapath {
namespace {

// One process that sends to another.
struct UdpPair : testing::Test {
  void SetUp() override {
    ASSERT_TRUE(b.udp->listen(kLoopback4).ok());
    path = a.path_to(b, kLoopback4, kLoopback4);
    complete_steering({&a, &b});
  }
  Process a;
  Process b;
  wire::PathId path{};
};

TEST(UdpDatapath, DeliversGsoBatchesWholeAndInOrder) {
  for (const bool v6 : {false, true}) {
    const Gid address = v6 ? ipv6("::1") : kLoopback4;
    Process a;
    Process b;
    ASSERT_TRUE(b.udp->listen(address).ok());
    const auto path = a.path_to(b, address, address);
    complete_steering({&a, &b});
    uint32_t psn = 0;
    for (int batch = 0; batch < 20; ++batch) {
      // The packets of a WRITE: one longer packet, equal ones, a shorter one.
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
    EXPECT_EQ(a.counter("udp_batches_sent"), 20u * 2);
    EXPECT_EQ(b.counter("udp_icrc_solved"), 0u);
    EXPECT_EQ(b.counter("udp_icrc_errors"), 0u);
  }
}

// The number of receiving sockets of this process without GRO.
int sockets_without_gro() {
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

// Single datagrams are read without GRO. GSO batches between and behind them are received whole.
// Small packets are built in one pass, large ones by push(). The first batch is copied, the next
// ones are sent from Verbena's pages.
TEST_F(UdpPair, DeliversRunsAsTheirPackets) {
  uint32_t psn = 0;
  for (const uint32_t bytes : {256, 1024, 4096}) {
    for (int round = 0; round < 4; ++round) {
      a.push_run(path, b.slot(), psn, 40, bytes);
      a.push_run(path, b.slot(), psn + 40, 40, bytes);
      a.udp->flush();
      psn += 80;
      ASSERT_TRUE(run({&a, &b}, [&] { return b.packets.size() >= psn; })) << b.packets.size();
    }
  }
  for (uint32_t i = 0; i < psn; ++i) {
    ASSERT_EQ(b.psn(i), i);
    ASSERT_TRUE(b.intact(i)) << i;
  }
  EXPECT_EQ(b.counter("udp_icrc_errors"), 0u);
  EXPECT_EQ(b.counter("udp_icrc_solved"), 0u);
}

TEST_F(UdpPair, DeliversGsoBatchesAfterSingleDatagramsWhole) {
  uint32_t psn = 0;
  const auto all_received = [&] { return b.packets.size() >= psn; };
  const auto send_single = [&](int count) {
    for (int i = 0; i < count; ++i) {
      a.push(path, b.slot(), psn++, 64);
      a.udp->flush();
      ASSERT_TRUE(run({&a, &b}, all_received));
      run({&b}, [polls = 0]() mutable { return ++polls > 2; });
    }
  };
  // Steering probes may be received close together and interrupt a streak of single datagrams.
  const auto send_until_gro_is_off = [&] {
    for (int i = 0; i < 100 && sockets_without_gro() == 0; ++i) send_single(100);
    EXPECT_GT(sockets_without_gro(), 0);
  };
  for (int round = 0; round < 3; ++round) {
    send_until_gro_is_off();
    for (int i = 0; i < 40; ++i) a.push(path, b.slot(), psn++, 1024);
    a.push(path, b.slot(), psn++, 100);
    a.udp->flush();
    ASSERT_TRUE(run({&a, &b}, all_received)) << b.packets.size();
    EXPECT_EQ(sockets_without_gro(), 0);
  }
  for (uint32_t i = 0; i < psn; ++i) {
    ASSERT_EQ(b.psn(i), i);
    ASSERT_TRUE(b.intact(i));
  }
  EXPECT_EQ(b.counter("udp_icrc_errors"), 0u);
  // From now on control messages are needed, so GRO stays on.
  send_until_gro_is_off();
  b.udp->report_ip_headers();
  EXPECT_EQ(sockets_without_gro(), 0);
  send_single(1200);
  EXPECT_EQ(sockets_without_gro(), 0);
}

// From the second flush on, long GSO batches are sent zero-copy if the kernel supports it. Together
// they exceed the zero-copy ring.
TEST(UdpDatapath, DeliversZeroCopyBatchesWholeAndInOrder) {
  const bool possible = ZeroCopySender().works();
  for (const bool v6 : {false, true}) {
    const Gid address = v6 ? ipv6("::1") : kLoopback4;
    Process a;
    Process b;
    ASSERT_TRUE(b.udp->listen(address).ok());
    const auto path = a.path_to(b, address, address);
    const auto other = a.path_to(b, address, address);  // shares the zero-copy ring
    complete_steering({&a, &b});
    uint32_t psn = 0;
    size_t bytes = 0;
    while (bytes < 3 * ZeroCopyRing::kBytes) {
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
      EXPECT_GT(a.counter("udp_batches_zero_copy"), psn / 25 * 2 - 3);
    } else {
      EXPECT_EQ(a.counter("udp_batches_zero_copy"), 0u);
    }
  }
}

// A full congestion window in as many GSO batches as possible: no byte is overwritten before the
// receiver reads it.
TEST_F(UdpPair, ManySmallBatchesDoNotOverwriteAZeroCopyBatch) {
  uint32_t psn = 0;
  const auto push_long_batch = [&] {
    for (int i = 0; i < 5; ++i) a.push(path, b.slot(), psn++, 4096);
  };
  push_long_batch();
  a.udp->flush();
  ASSERT_TRUE(run({&a, &b}, [&] { return b.packets.size() >= psn; }));
  for (int flush = 0; flush < 3; ++flush) {
    push_long_batch();
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

// A peer has a window for each of our addresses. Packets in flight from one address must not be
// overwritten by packets from the other.
TEST_F(UdpPair, EachAddressHasItsOwnZeroCopyRing) {
  const wire::PathId second = a.path_to(b, ipv4("127.0.0.2"), kLoopback4);
  uint32_t psn = 0;
  const auto send_batch = [&](wire::PathId on) {
    for (int i = 0; i < 15; ++i) a.push(on, b.slot(), psn++, 4096);
    a.udp->flush();
  };
  send_batch(path);  // long batches are sent zero-copy from now on
  ASSERT_TRUE(run({&a, &b}, [&] { return b.packets.size() >= psn; }));
  send_batch(path);
  send_batch(path);
  const uint32_t from_first = psn;
  for (size_t i = 0; i < ZeroCopyRing::kBytes / 65536 - 1; ++i) send_batch(second);
  run({&a, &b}, [&] { return b.packets.size() >= psn; });
  EXPECT_EQ(b.counter("udp_icrc_errors"), 0u);
  ASSERT_GE(b.packets.size(),
            from_first);  // the receive buffer may have dropped packets of the second path
  for (uint32_t i = 0; i < from_first; ++i) {
    ASSERT_EQ(b.psn(i), i);
    ASSERT_TRUE(b.intact(i));
  }
}

// The last packet of a WRITE with immediate is four bytes longer than those before it.
TEST_F(UdpPair, SendsABatchZeroCopyAlthoughASlightlyLongerPacketFollows) {
  constexpr uint32_t kBatches = 4;
  uint32_t psn = 0;
  for (uint32_t batch = 0; batch < kBatches; ++batch) {
    for (int i = 0; i < 12; ++i) a.push(path, b.slot(), psn++, 4096);
    a.push(path, b.slot(), psn++, 4100);
    a.udp->flush();
    ASSERT_TRUE(run({&a, &b}, [&] { return b.packets.size() >= psn; }));
  }
  EXPECT_EQ(a.counter("udp_batches_zero_copy"), ZeroCopySender().works() ? kBatches - 1 : 0u);
}

// Packets outside the window may overrun the receiver. They are copied, also if they could join a
// zero-copy batch.
TEST_F(UdpPair, CopiesPacketsOutsideTheWindow) {
  for (uint32_t batch = 0; batch < 4; ++batch) {
    for (uint32_t i = 0; i < 12; ++i) a.push(path, b.slot(), i, 4096, false);
    a.udp->flush();
  }
  EXPECT_EQ(a.counter("udp_batches_zero_copy"), 0u);
  const uint64_t batches = a.counter("udp_batches_sent");
  for (uint32_t i = 0; i < 6; ++i) a.push(path, b.slot(), i, 4096, true);
  for (uint32_t i = 0; i < 6; ++i) a.push(path, b.slot(), i, 4096, false);
  a.udp->flush();
  EXPECT_EQ(a.counter("udp_batches_zero_copy"), ZeroCopySender().works() ? 1u : 0u);
  EXPECT_EQ(a.counter("udp_batches_sent"), batches + (ZeroCopySender().works() ? 2 : 1));
}

// The kernel refuses the zero-copy send. The same batch is sent as a copy, and nothing of the
// attempt stays in the socket.
TEST_F(UdpPair, CopiesLongBatchesWithoutFreeDescriptors) {
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
  EXPECT_EQ(a.counter("udp_batches_zero_copy"), 0u);
  ASSERT_EQ(b.packets.size(), psn);
  for (uint32_t i = 0; i < psn; ++i) ASSERT_TRUE(b.intact(i));
  EXPECT_EQ(b.counter("udp_icrc_errors"), 0u);
}

// From now on the system call fails in this thread, as in some sandboxes.
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

// The kernel refuses the pages after the send was started. The sender ends that send and sends the
// batch again as a copy.
TEST_F(UdpPair, CopiesLongBatchesIfSpliceIsForbidden) {
  if (!ZeroCopySender().works()) GTEST_SKIP() << "no zero-copy sends with this kernel";
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
  if (!forbidden) GTEST_SKIP() << "cannot install a seccomp filter";
  EXPECT_EQ(a.counter("udp_batches_zero_copy"), 0u);
  ASSERT_EQ(b.packets.size(), psn);
  for (uint32_t i = 0; i < psn; ++i) {
    ASSERT_EQ(b.psn(i), i);
    ASSERT_TRUE(b.intact(i));
  }
  EXPECT_EQ(b.counter("udp_icrc_errors"), 1u) << "the packet of the started send";
}

// Several queue pairs of `a` connected to `b`. The PSN identifies the queue pair of a packet.
struct UdpQueuePairs : UdpPair {
  static constexpr uint32_t kQueuePairs = 5;
  static constexpr uint32_t kPsns = 100'000;  // per queue pair

  void SetUp() override {
    UdpPair::SetUp();
    for (uint32_t q = 0; q < kQueuePairs; ++q)
      paths.push_back(a.path_to(b, kLoopback4, kLoopback4));
  }
  void push(uint32_t queue_pair, size_t bytes) {
    a.push(paths[queue_pair], b.slot(), queue_pair * kPsns + next[queue_pair]++, bytes);
    ++pushed;
  }
  // Sends all pushed packets and returns the number of GSO batches. Expects all packets, in order
  // for each queue pair.
  uint64_t send_batches() {
    const uint64_t before = a.counter("udp_batches_sent");
    a.udp->flush();
    run({&a, &b}, [&] { return b.packets.size() >= pushed; });
    EXPECT_EQ(b.packets.size(), pushed);
    for (size_t i = 0; i < b.packets.size(); ++i) {
      EXPECT_TRUE(b.intact(i));
      EXPECT_EQ(b.psn(i) % kPsns, received[b.psn(i) / kPsns]++);
    }
    EXPECT_EQ(b.counter("udp_icrc_errors") + b.counter("udp_icrc_solved"), 0u);
    b.packets.clear();
    b.metas.clear();
    pushed = 0;
    return a.counter("udp_batches_sent") - before;
  }
  // Makes the sender detect several active queue pairs.
  void activate_two() {
    push(0, 64);
    push(1, 64);
    EXPECT_EQ(send_batches(), 1u);
  }
  std::vector<wire::PathId> paths;
  std::array<uint32_t, kQueuePairs> next{};
  std::array<uint32_t, kQueuePairs> received{};
  size_t pushed = 0;
};

TEST_F(UdpQueuePairs, PacketsOfOneSizeShareABatch) {
  for (uint32_t q = 0; q < kQueuePairs; ++q) {
    for (int i = 0; i < 12; ++i) push(q, 64);
  }
  EXPECT_EQ(send_batches(), 1u);
  for (int i = 0; i < 100; ++i) push(static_cast<uint32_t>(i) % kQueuePairs, 64);
  EXPECT_EQ(send_batches(), 2u) << "a batch has at most 64 packets";
}

TEST_F(UdpQueuePairs, EachSizeHasItsOwnBatch) {
  activate_two();
  for (uint32_t q = 0; q < kQueuePairs; ++q) {
    push(q, 1040);
    for (int i = 0; i < 5; ++i) push(q, 1024);
    push(q, 100);
  }
  EXPECT_EQ(send_batches(), 3u);
}

TEST_F(UdpQueuePairs, KeepsTheOrderOfEachQueuePairAcrossBatches) {
  activate_two();
  for (uint32_t q = 0; q < kQueuePairs; ++q) {
    for (const size_t bytes : {1024, 100, 1024, 2000, 100}) push(q, bytes);
  }
  EXPECT_EQ(send_batches(), 5u);
  push(0, 1024);
  push(1, 100);
  push(0, 100);
  push(1, 1024);  // the first batch has this size, but 100 bytes of the same queue pair follow it
  push(1, 100);
  EXPECT_EQ(send_batches(), 4u);
}

TEST_F(UdpQueuePairs, AShorterPacketEndsTheBatchOfTheOnlyActiveQueuePair) {
  activate_two();
  for (int batch = 0; batch < 16; ++batch) {
    push(2, 1024);
    push(2, 100);
    EXPECT_EQ(send_batches(), 2u) << "other queue pairs may send";
  }
  push(2, 1024);
  push(2, 100);
  EXPECT_EQ(send_batches(), 1u);
}

// The owner flushes after each turn, also without packets.
TEST_F(UdpQueuePairs, EmptyFlushesDoNotCountAsOneActiveQueuePair) {
  activate_two();
  for (int turn = 0; turn < 100; ++turn) a.udp->flush();
  push(2, 1024);
  push(2, 100);
  EXPECT_EQ(send_batches(), 2u) << "other queue pairs may send";
}

// On a host with several processes the kernel picks one by the first packet of a batch.
TEST_F(UdpQueuePairs, PacketsWithoutASlotDoNotShareABatch) {
  wire::Route route{.source = kLoopback4, .destination = kLoopback4, .peer = Qpn::of_slot(0, 0x11)};
  auto to_nic = a.udp->open_path(route);  // a hardware NIC, whose QPNs are small
  route.peer = wire::kManagementQpn;
  auto management = a.udp->open_path(route);
  ASSERT_TRUE(to_nic.ok() && management.ok());
  for (const wire::PathId to : {to_nic.value(), management.value(), to_nic.value()}) {
    a.push(to, 0, 0, 256);
  }
  const uint64_t before = a.counter("udp_batches_sent");
  a.udp->flush();
  EXPECT_EQ(a.counter("udp_batches_sent") - before, 2u);
}

TEST_F(UdpQueuePairs, AShortPacketThatEndsTheBatchJoinsIt) {
  activate_two();
  push(2, 1024);
  a.push(paths[2], b.slot(), 2 * kPsns + next[2]++, 4, true, true);
  ++pushed;
  EXPECT_EQ(send_batches(), 1u);
}

// Packets of the queue pairs are interleaved in the copy buffer, in the zero-copy ring, or in both.
TEST_F(UdpQueuePairs, DeliversLongBatchesOfManyQueuePairsWholeAndInOrder) {
  for (int batch = 0; batch < 40; ++batch) {
    const uint32_t queue_pairs = batch % 3 == 0 ? 1 : kQueuePairs;
    for (uint32_t q = 0; q < queue_pairs; ++q) {
      push(q, 4096);
      for (int i = 0; i < 13; ++i) push(q, 4080);
      push(q, batch % 2 == 0 ? 4080 : 1500);
      if (batch % 5 == 0) push(q, 4096);
    }
    send_batches();
    if (HasFailure()) return;
  }
  EXPECT_EQ(a.counter("udp_batches_zero_copy") > 0, ZeroCopySender().works());
}

TEST_F(UdpQueuePairs, SharingABatchIsPreferredToZeroCopy) {
  uint64_t last = 0;
  for (int batch = 0; batch < 10; ++batch) {
    for (uint32_t q = 0; q < kQueuePairs; ++q) {
      push(q, 4096);
      for (int i = 0; i < 15; ++i) push(q, 4080);
    }
    last = send_batches();
  }
  EXPECT_EQ(last, 1u + kQueuePairs);
}

TEST_F(UdpQueuePairs, OnlyPacketsWithTheSameHeadersAndReceiverShareABatch) {
  wire::Route route{
      .source = kLoopback4, .destination = kLoopback4, .peer = Qpn::of_slot(b.slot(), 1)};
  route.traffic_class = 0x20;
  auto classed = a.udp->open_path(route);
  route.traffic_class = 0;
  route.hop_limit = 9;
  auto few_hops = a.udp->open_path(route);
  route.hop_limit = 64;
  route.peer = Qpn();  // UD: one queue pair may have several paths
  auto datagrams = a.udp->open_path(route);
  auto more_datagrams = a.udp->open_path(route);
  ASSERT_TRUE(classed.ok() && few_hops.ok() && datagrams.ok() && more_datagrams.ok());
  push(0, 64);
  for (const wire::PathId other :
       {classed.value(), few_hops.value(), datagrams.value(), more_datagrams.value()}) {
    a.push(other, b.slot(), 4 * kPsns + next[4]++, 64);
    ++pushed;
  }
  a.push(paths[1], a.slot(), 0, 64);  // for another process
  push(0, 64);
  EXPECT_EQ(send_batches(), 6u);
}

TEST_F(UdpPair, AcceptsAsManyPacketsAsRoomReports) {
  uint32_t sent = 0;
  while (a.udp->sink().room() > 0) a.push(path, b.slot(), sent++, 4096);
  EXPECT_GE(sent, 100u);
  a.udp->flush();
  EXPECT_EQ(a.counter("udp_packets_sent"), sent);
  run({&a, &b}, [&] { return b.packets.size() >= sent; });
  // A small receive buffer may drop packets but must not corrupt any.
  EXPECT_GE(b.packets.size(), 15u);
  for (size_t i = 0; i < b.packets.size(); ++i) ASSERT_TRUE(b.intact(i));
  while (a.udp->sink().room() > 0) a.push(path, b.slot(), sent++, 4);
  a.udp->flush();
}

// Each packet has its own iovec, and the last one is the last of the array. With library assertions
// (_GLIBCXX_ASSERTIONS) an access beyond it aborts.
TEST(UdpDatapath, SendsAFullBatchOfUnsegmentedPackets) {
  UdpOptions options;
  options.segmentation = Segmentation::Never;
  Process a(options);
  Process b;
  ASSERT_TRUE(b.udp->listen(kLoopback4).ok());
  const auto path = a.path_to(b, kLoopback4, kLoopback4);
  complete_steering({&a, &b});
  uint32_t sent = 0;
  while (a.udp->sink().room() > 0) a.push(path, b.slot(), sent++, 4);
  a.udp->flush();
  EXPECT_EQ(a.counter("udp_batches_sent"), sent);
  EXPECT_EQ(a.counter("udp_send_drops"), 0u);
  EXPECT_EQ(sent, 256u);
}

// After many equal batches the socket has a fixed segment size.
TEST_F(UdpQueuePairs, SegmentsOtherBatchesCorrectlyAfterManyEqualOnes) {
  const auto equal_batch = [&] {
    push(0, 8);
    push(0, 4);
    return send_batches();
  };
  const auto batch_of = [&](size_t bytes, uint32_t packets) {
    for (uint32_t i = 0; i < packets; ++i) push(0, bytes);
    return send_batches();
  };
  for (int i = 0; i < 100; ++i) ASSERT_EQ(equal_batch(), 1u);
  EXPECT_EQ(batch_of(4, 1), 1u);
  EXPECT_EQ(batch_of(8, 1), 1u);
  EXPECT_EQ(batch_of(200, 1), 1u);
  EXPECT_EQ(batch_of(200, 3), 1u);
  EXPECT_EQ(batch_of(4, 3), 1u);
  EXPECT_EQ(equal_batch(), 1u);
  push(0, 8);
  push(0, 200);
  push(0, 8);
  EXPECT_EQ(send_batches(), 2u);
  for (int i = 0; i < 100; ++i)
    ASSERT_EQ(batch_of(12, 1), 1u);  // larger than the fixed segment size
  EXPECT_EQ(batch_of(1000, 1), 1u);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(batch_of(1000, 5), 1u);
  EXPECT_EQ(batch_of(1001, 1), 1u);
  EXPECT_EQ(equal_batch(), 1u);
}

TEST_F(UdpQueuePairs, DoesNotSegmentProbesLikeEarlierBatches) {
  VERBENA_NEEDS_STEERING();
  for (int i = 0; i < 100; ++i) {
    push(0, 0);
    push(0, 0);
    ASSERT_EQ(send_batches(), 1u);
  }
  const uint64_t too_short = a.counter("udp_too_short") + b.counter("udp_too_short");
  Process c;  // all processes probe for their group index again
  ASSERT_TRUE(c.udp->listen(kLoopback4).ok());
  const auto to_c = a.path_to(c, kLoopback4, kLoopback4);
  complete_steering({&a, &b, &c});
  a.push(to_c, c.slot(), 1, 8);
  a.udp->flush();
  EXPECT_TRUE(run({&a, &b, &c}, [&] { return c.packets.size() == 1; }));
  EXPECT_EQ(a.counter("udp_too_short") + b.counter("udp_too_short") + c.counter("udp_too_short"),
            too_short);
  EXPECT_EQ(a.counter("udp_icrc_errors") + b.counter("udp_icrc_errors"), 0u);
}

TEST_F(UdpQueuePairs, FallsBackToASegmentSizePerSend) {
  bool forbidden = false;
  std::thread([&] {
    const auto exchange = [&] {
      push(0, 8);
      push(0, 4);
      EXPECT_EQ(send_batches(), 1u);
    };
    for (int i = 0; i < 100; ++i) exchange();
    forbidden = forbid(SYS_sendto, EIO);
    for (int i = 0; forbidden && i < 100; ++i) exchange();
  }).join();
  if (!forbidden) GTEST_SKIP() << "cannot install a seccomp filter";
  EXPECT_EQ(a.counter("udp_send_drops"), 0u);
}

TEST(UdpDatapath, SendsSinglePacketsWithoutSegmentation) {
  VERBENA_NEEDS_STEERING();
  UdpOptions options;
  options.segmentation = Segmentation::Never;
  Process a(options);
  Process b;
  ASSERT_TRUE(b.udp->listen(kLoopback4).ok());
  const auto path = a.path_to(b, kLoopback4, kLoopback4);
  complete_steering({&a, &b});
  for (uint32_t i = 0; i < 20; ++i) a.push(path, b.slot(), i, 1024);
  a.udp->flush();
  ASSERT_TRUE(run({&a, &b}, [&] { return b.packets.size() >= 20; }));
  EXPECT_EQ(a.counter("udp_batches_sent"), 20u);
  EXPECT_EQ(b.counter("udp_icrc_solved"), 0u);
}

}  // namespace
}  // namespace verbena::datapath

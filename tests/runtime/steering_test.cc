// Several processes on one address: every packet reaches the process of its slot, by steering or by
// forwarding.
#include "host/steering.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include "datapath/udp/udp_socket.h"
#include "tests/runtime/udp_process.h"
#include "tests/support/needs_steering.h"
#include "wire/icrc.h"

namespace verbena::datapath {
namespace {

TEST(Steering, ForwardsPacketsToTheirSlotWithoutSteering) {
  UdpOptions options;
  options.steering = false;
  Process a(options);
  Process b(options);
  Process c(options);
  for (Process* p : {&b, &c}) ASSERT_TRUE(p->udp->listen(kLoopback4).ok());
  const auto path = a.path_to(b, kLoopback4, kLoopback4);
  for (uint32_t i = 0; i < 30; i += 6) {  // a Unix socket queues ten messages by default
    for (uint32_t k = i; k < i + 6; ++k) a.push(path, k % 2 == 0 ? b.slot() : c.slot(), k, 500);
    a.udp->flush();
    ASSERT_TRUE(run({&a, &b, &c}, [&] { return b.packets.size() + c.packets.size() >= i + 6; }));
  }
  EXPECT_EQ(b.packets.size(), 15u);
  EXPECT_EQ(c.packets.size(), 15u);
  for (size_t i = 0; i < 15; ++i) EXPECT_TRUE(b.intact(i) && c.intact(i));
  EXPECT_GT(a.counter("udp_misrouted_forwarded") + b.counter("udp_misrouted_forwarded") +
                c.counter("udp_misrouted_forwarded"),
            0u);
}

TEST(Steering, NoPacketIsForwardedWithSteering) {
  VERBENA_NEEDS_STEERING();
  std::vector<std::unique_ptr<Process>> processes;
  for (int i = 0; i < 5; ++i) {
    processes.push_back(std::make_unique<Process>());
    ASSERT_TRUE(processes.back()->udp->listen(kLoopback4).ok());
    for (int turn = 0; turn < 400; ++turn) {
      for (auto& p : processes) p->receive();
    }
  }
  Process& sender = *processes[0];
  uint64_t forwarded_before = 0;
  for (auto& p : processes) forwarded_before += p->counter("udp_misrouted_forwarded");
  for (auto& to : processes) {
    const auto path = sender.path_to(*to, kLoopback4, kLoopback4);
    for (uint32_t i = 0; i < 8; ++i) sender.push(path, to->slot(), i, 300);
  }
  sender.udp->flush();
  size_t received = 0;
  for (int turn = 0; turn < 2000 && received < 40; ++turn) {
    for (auto& p : processes) received += p->receive();
  }
  EXPECT_EQ(received, 40u);
  uint64_t forwarded = 0;
  for (auto& p : processes) forwarded += p->counter("udp_misrouted_forwarded");
  EXPECT_EQ(forwarded, forwarded_before);
}

TEST(Steering, AnIcmpErrorDoesNotBlockAProbe) {
  VERBENA_NEEDS_STEERING();
  const host::LocalAddress address{kLoopback4, 0};
  auto claimed = host::SlotDirectory::claim([] { return std::string(); });
  ASSERT_TRUE(claimed.ok());
  auto receive = open_receive_socket(address, {});
  auto send = open_send_socket(address, {}, claimed.value()->slot());
  ASSERT_TRUE(receive.ok() && send.ok());
  const int fd = send.value().fd.get();
  uint64_t updates = 0;
  host::Steering steering(address, receive.value().get(), fd, *claimed.value(), updates, true);
  report_unreachable_hosts(fd, address, true);
  const host::SocketAddress unused =
      host::SocketAddress::of({ipv4("127.0.0.9"), 0}, wire::kRoceUdpPort);
  ASSERT_EQ(::sendto(fd, "x", 1, 0, unused.get(), unused.bytes), 1);
  pollfd icmp_error{.fd = fd, .events = 0, .revents = 0};
  ASSERT_EQ(::poll(&icmp_error, 1, 10'000), 1);
  steering.start_round(Instant{1});
  char probe[64];
  EXPECT_GT(::recv(receive.value().get(), probe, sizeof probe, MSG_DONTWAIT), 0);
}

TEST(Steering, RecoversWhenAMemberLeaves) {
  VERBENA_NEEDS_STEERING();
  auto first = std::make_unique<Process>();
  Process b;
  Process c;
  ASSERT_TRUE(first->udp->listen(kLoopback4).ok());
  complete_steering({first.get(), &b, &c});
  ASSERT_TRUE(b.udp->listen(kLoopback4).ok());
  complete_steering({first.get(), &b, &c});
  const auto path = b.path_to(c, kLoopback4, kLoopback4);
  ASSERT_TRUE(c.udp->listen(kLoopback4).ok());
  complete_steering({first.get(), &b, &c});
  const uint8_t ended_slot = first->slot();
  first.reset();  // the kernel moves c's socket to index 0

  const auto forwarded = [&] {
    return b.counter("udp_misrouted_forwarded") + c.counter("udp_misrouted_forwarded");
  };
  uint32_t psn = 0;
  // Some packets are forwarded until the new group index is known; none is lost.
  bool index_known = false;
  for (int i = 0; i < 200 && !index_known; ++i) {
    const uint64_t before = forwarded();
    b.push(path, c.slot(), psn++, 64);
    b.udp->flush();
    ASSERT_TRUE(run({&b, &c}, [&] { return c.packets.size() >= psn; })) << psn;
    index_known = i > 3 && forwarded() == before;
    ::poll(nullptr, 0, 1);  // misrouted packets start a new round of probes only now and then
  }
  EXPECT_TRUE(index_known);
  EXPECT_GE(psn, 5u);

  // A packet for the ended slot is counted and dropped.
  b.push(path, ended_slot, 1, 64);
  b.udp->flush();
  EXPECT_TRUE(run({&b, &c}, [&] {
    return b.counter("udp_misrouted_dropped") + c.counter("udp_misrouted_dropped") > 0;
  }));
}

TEST(Steering, SplitsAGroBatchWithPacketsOfSeveralSlots) {
  Process a;
  Process b;
  ASSERT_TRUE(a.udp->listen(kLoopback4).ok());
  ASSERT_TRUE(b.udp->listen(kLoopback4).ok());
  complete_steering({&a, &b});
  // Another sender: one segmented send with packets for a, b, b, a.
  auto send = open_send_socket({kLoopback4, 0}, {}, 0);
  ASSERT_TRUE(send.ok());
  const wire::IcrcFlow flow{kLoopback4, kLoopback4, send.value().port, wire::kRoceUdpPort};
  constexpr size_t kBytes = 100;
  std::vector<std::byte> batch(4 * kBytes);
  const uint8_t slots[4] = {a.slot(), b.slot(), b.slot(), a.slot()};
  for (uint32_t i = 0; i < 4; ++i) {
    std::byte* const p = batch.data() + i * kBytes;
    wire::Bth bth;
    bth.opcode = static_cast<uint8_t>(wire::Opcode::RcSendOnly);
    bth.destination = Qpn::of_slot(slots[i], 1);
    bth.psn = wire::Psn(i);
    bth.store(p);
    const uint32_t prefix = wire::icrc_prefix_with_id(wire::icrc_prefix(flow, kBytes), i);
    wire::store_icrc(p + kBytes - 4, wire::icrc_over_bth(prefix, {p, kBytes - 4}));
  }
  const int segment = kBytes;
  ASSERT_EQ(::setsockopt(send.value().fd.get(), IPPROTO_UDP, 103, &segment, sizeof segment), 0);
  const auto to = host::SocketAddress::of({kLoopback4, 0}, wire::kRoceUdpPort);
  ASSERT_EQ(::sendto(send.value().fd.get(), batch.data(), batch.size(), 0, to.get(), to.bytes),
            static_cast<ssize_t>(batch.size()));
  ASSERT_TRUE(run({&a, &b}, [&] { return a.packets.size() + b.packets.size() >= 4; }));
  ASSERT_EQ(a.packets.size(), 2u);
  ASSERT_EQ(b.packets.size(), 2u);
  EXPECT_EQ(a.psn(0), 0u);
  EXPECT_EQ(a.psn(1), 3u);
  EXPECT_EQ(b.psn(0), 1u);
  EXPECT_EQ(b.psn(1), 2u);
}

}  // namespace
}  // namespace verbena::datapath

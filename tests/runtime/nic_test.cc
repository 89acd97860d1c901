// A Nic over real loopback sockets, with application threads and the background thread running
// together, for the thread sanitizer.
#include "runtime/nic.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "datapath/shm/handshake.h"
#include "runtime/counter_report.h"
#include "tests/runtime/udp_process.h"
#include "tests/support/needs_steering.h"

namespace verbena::runtime {
namespace {

DeviceInfo loopback() {
  for (const DeviceInfo& device : discover_devices("").devices) {
    if (device.loopback) return device;
  }
  return {};
}

constexpr uint32_t kPd = 1;
constexpr uint32_t kAllAccess =
    core::kLocalWrite | core::kRemoteWrite | core::kRemoteRead | core::kRemoteAtomic;

// Two connected queue pairs of one process with a buffer each.
class NicTest : public ::testing::Test {
 protected:
  struct End {
    core::CompletionQueue cq{4096};
    core::QueuePair* qp = nullptr;
    std::vector<std::byte> memory = std::vector<std::byte>(1 << 20);
    uint32_t key = 0;
    uint64_t address() const { return reinterpret_cast<uint64_t>(memory.data()); }
  };

  void SetUp() override {
    const DeviceInfo device = loopback();
    ASSERT_FALSE(device.name.empty()) << "this machine's loopback interface is down";
    auto opened = Nic::open(device);
    ASSERT_TRUE(opened.ok()) << opened.error().why;
    nic_ = opened.value();
    for (End* end : {&a_, &b_}) {
      core::QpConfig config;
      config.pd = kPd;
      config.send_cq = config.receive_cq = &end->cq;
      config.max_send_wr = config.max_recv_wr = 256;
      config.max_send_sge = config.max_recv_sge = 4;
      auto qp = nic_->create_qp(config, nullptr);
      ASSERT_TRUE(qp.ok());
      end->qp = qp.value();
      Nic::Guard guard(*nic_);
      auto key = guard.engine().memory().add_region(kPd, end->memory.data(), end->memory.size(),
                                                    end->address(), kAllAccess);
      ASSERT_TRUE(key.ok());
      end->key = key.value();
    }
    connect(a_, b_);
    connect(b_, a_);
  }

  void TearDown() override {
    for (End* end : {&a_, &b_}) {
      if (end->qp == nullptr) continue;
      EXPECT_TRUE(nic_->destroy_qp(end->qp, nullptr).ok());
    }
  }

  void connect(End& from, End& to, uint8_t timeout = 14) { connect(from, to.qp->qpn(), timeout); }
  void connect(End& from, wire::Qpn to, uint8_t timeout) {
    using namespace core::qp_attr;
    core::QpAttributes attr;
    attr.state = core::QpState::Init;
    attr.port = 1;
    attr.access = kAllAccess;
    ASSERT_TRUE(nic_->modify_qp(*from.qp, attr, kState | kPort | kPkeyIndex | kAccessFlags).ok());
    attr.state = core::QpState::Rtr;
    attr.path_mtu = wire::Mtu::k4096;
    attr.address.is_global = true;
    attr.address.destination = nic_->gid(0);
    attr.dest_qpn = to;
    attr.max_dest_read_atomic = attr.max_read_atomic = 16;
    attr.min_rnr_timer = 12;
    const Status ready = nic_->modify_qp(
        *from.qp, attr,
        kState | kAddressVector | kPathMtu | kDestQpn | kRqPsn | kMaxDestRdAtomic | kMinRnrTimer);
    ASSERT_TRUE(ready.ok()) << ready.error().why;
    attr.state = core::QpState::Rts;
    attr.timeout = timeout;
    attr.retry_count = attr.rnr_retry = 7;
    ASSERT_TRUE(nic_->modify_qp(*from.qp, attr,
                                kState | kTimeout | kRetryCount | kRnrRetry | kSqPsn | kMaxRdAtomic)
                    .ok());
  }

  Status post(End& end, const core::SendRequest& request) {
    Nic::Guard guard(*nic_);
    Status status = guard.engine().post_send(*end.qp, request, now());
    guard.lane().after_post(*end.qp);
    return status;
  }

  // Polls as ibv_poll_cq does.
  core::Completion wait_polling(End& end) {
    core::Completion c;
    const Instant limit = now() + seconds(20);
    while (end.cq.poll(&c, 1) == 0) {
      nic_->lanes().first().turn_for_poller();
      if (now() > limit) {
        ADD_FAILURE() << "no completion";
        break;
      }
    }
    return c;
  }

  // Waits without calling into the Nic: only the background thread can make progress.
  core::Completion wait_passively(End& end) {
    core::Completion c;
    const Instant limit = now() + seconds(20);
    while (end.cq.poll(&c, 1) == 0) {
      poll(nullptr, 0, 1);
      if (now() > limit) {
        ADD_FAILURE() << "no completion";
        break;
      }
    }
    return c;
  }

  core::SendRequest write(const core::Sge& sge, uint64_t id) {
    core::SendRequest r;
    r.wr_id = id;
    r.op = core::SendOp::Write;
    r.flags = core::kSignaled;
    r.sges = {&sge, 1};
    r.remote_address = b_.address();
    r.rkey = b_.key;
    return r;
  }

  std::shared_ptr<Nic> nic_;
  End a_, b_;
};

TEST_F(NicTest, WritesCompleteForAPollingApplication) {
  for (uint64_t i = 0; i < 200; ++i) {
    const auto length = static_cast<uint32_t>(1 + i * 5003 % a_.memory.size());
    std::memset(a_.memory.data(), static_cast<int>(i + 1), length);
    const core::Sge sge{a_.address(), length, a_.key};
    ASSERT_TRUE(post(a_, write(sge, i)).ok());
    const core::Completion c = wait_polling(a_);
    ASSERT_EQ(c.status, core::WcStatus::Success);
    ASSERT_EQ(c.wr_id, i);
    ASSERT_EQ(0, std::memcmp(a_.memory.data(), b_.memory.data(), length));
  }
}

TEST_F(NicTest, TheBackgroundThreadCompletesWorkWithoutPolls) {
  for (uint64_t i = 0; i < 20; ++i) {
    const core::Sge sge{a_.address(), 100'000, a_.key};
    ASSERT_TRUE(post(a_, write(sge, i)).ok());
    ASSERT_EQ(wait_passively(a_).status, core::WcStatus::Success);
  }
}

TEST_F(NicTest, TheBackgroundThreadTakesOverFromAPollerThatStopped) {
  for (int round = 0; round < 10; ++round) {
    const core::Sge sge{a_.address(), 64, a_.key};
    for (int i = 0; i < 50; ++i) {
      ASSERT_TRUE(post(a_, write(sge, 1)).ok());
      ASSERT_EQ(wait_polling(a_).status, core::WcStatus::Success);
    }
    ASSERT_TRUE(post(a_, write(sge, 2)).ok());
    ASSERT_EQ(wait_passively(a_).status, core::WcStatus::Success);
  }
}

// A polling thread may have delayed the ACK of a WRITE. Without a timeout there is no
// retransmission: without the background thread the ACK is never sent.
TEST_F(NicTest, SendsTheDelayedAcksOfAPollerThatStopped) {
  End from, to;
  for (End* end : {&from, &to}) {
    core::QpConfig config = a_.qp->config();
    config.send_cq = config.receive_cq = &end->cq;
    auto made = nic_->create_qp(config, nullptr);
    ASSERT_TRUE(made.ok());
    end->qp = made.value();
  }
  connect(from, to, 0);
  connect(to, from, 0);
  const core::Sge sge{a_.address(), 64, a_.key};
  for (uint64_t i = 0; i < 300; ++i) {
    ASSERT_TRUE(post(from, write(sge, i)).ok());
    for (uint64_t polls = 0; polls <= i % 3; ++polls) nic_->lanes().first().turn_for_poller();
    ASSERT_EQ(wait_passively(from).status, core::WcStatus::Success);
  }
  EXPECT_TRUE(nic_->destroy_qp(from.qp, nullptr).ok());
  EXPECT_TRUE(nic_->destroy_qp(to.qp, nullptr).ok());
}

// A hardware NIC acknowledges independently of the program, too.
TEST_F(NicTest, AcknowledgesReceivedPacketsBeforeDestroyingTheQueuePair) {
  const core::Sge sge{a_.address(), 64, a_.key};
  for (uint64_t i = 0; i < 100; ++i) {  // until the poller owns progress
    ASSERT_TRUE(post(a_, write(sge, i)).ok());
    ASSERT_EQ(wait_polling(a_).status, core::WcStatus::Success);
  }
  ASSERT_TRUE(post(a_, write(sge, 100)).ok());
  ASSERT_TRUE(nic_->destroy_qp(std::exchange(b_.qp, nullptr), nullptr).ok());
  EXPECT_EQ(wait_polling(a_).status, core::WcStatus::Success);
}

TEST_F(NicTest, SeveralThreadsPostAndPollAtOnce) {
  constexpr int kThreads = 3, kEach = 300;
  std::atomic<int> done{0};
  std::mutex one_consumer;  // replaces the queue lock of the ABI
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      int mine = 0;
      const Instant limit = now() + seconds(60);
      while ((mine < kEach || done < kThreads * kEach) && now() < limit) {
        if (mine < kEach) {
          const core::Sge sge{a_.address() + static_cast<uint64_t>(t) * 8192, 8000, a_.key};
          if (post(a_, write(sge, 0)).ok()) ++mine;
        }
        core::Completion c;
        const std::lock_guard lock(one_consumer);
        if (a_.cq.poll(&c, 1) == 1) {
          EXPECT_EQ(c.status, core::WcStatus::Success);
          ++done;
        } else {
          nic_->lanes().first().turn_for_poller();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(done, kThreads * kEach);
}

TEST_F(NicTest, ReadsAndAtomicsReturnTheRemoteValues) {
  std::memset(b_.memory.data(), 0x5A, b_.memory.size());
  core::Sge sge{a_.address(), 300'000, a_.key};
  core::SendRequest r = write(sge, 7);
  r.op = core::SendOp::Read;
  ASSERT_TRUE(post(a_, r).ok());
  ASSERT_EQ(wait_polling(a_).status, core::WcStatus::Success);
  EXPECT_EQ(0, std::memcmp(a_.memory.data(), b_.memory.data(), 300'000));

  std::memset(b_.memory.data(), 0, 8);
  sge.length = 8;
  r.op = core::SendOp::FetchAdd;
  r.compare_add = 5;
  for (uint64_t i = 0; i < 10; ++i) {
    ASSERT_TRUE(post(a_, r).ok());
    ASSERT_EQ(wait_polling(a_).status, core::WcStatus::Success);
    uint64_t original;
    std::memcpy(&original, a_.memory.data(), 8);
    EXPECT_EQ(original, i * 5);
  }
}

TEST_F(NicTest, WrongRkeyFailsBothEndsAndWritesNothing) {
  const core::Sge sge{a_.address(), 64, a_.key};
  std::memset(a_.memory.data(), 1, 64);
  core::SendRequest r = write(sge, 9);
  r.rkey ^= 0x100;
  ASSERT_TRUE(post(a_, r).ok());
  EXPECT_EQ(wait_polling(a_).status, core::WcStatus::RemoteAccess);
  Nic::Guard guard(*nic_);
  EXPECT_EQ(a_.qp->state(), core::QpState::Error);
  EXPECT_EQ(b_.qp->state(), core::QpState::Error);
  EXPECT_EQ(b_.memory[0], std::byte{0});
}

// A request to a queue pair that never responds is outstanding, without a timeout; requests posted
// to another queue pair of the same process must still be sent.
TEST_F(NicTest, ARequestWithoutResponseDoesNotDelayOtherQueuePairs) {
  End waiting;
  core::QpConfig config = a_.qp->config();
  config.send_cq = config.receive_cq = &waiting.cq;
  auto made = nic_->create_qp(config, nullptr);
  ASSERT_TRUE(made.ok());
  waiting.qp = made.value();
  End unresponsive;
  auto in_reset = nic_->create_qp(config, nullptr);
  ASSERT_TRUE(in_reset.ok());
  unresponsive.qp = in_reset.value();  // never leaves RESET, so it does not respond
  connect(waiting, unresponsive, 0);
  const core::Sge sge{a_.address(), 64, a_.key};
  core::SendRequest request = write(sge, 1);
  ASSERT_TRUE(post(waiting, request).ok());
  // The background thread sleeps without a short limit when this is posted.
  poll(nullptr, 0, 200);
  ASSERT_TRUE(post(a_, write(sge, 2)).ok());
  EXPECT_EQ(wait_passively(a_).status, core::WcStatus::Success);
  EXPECT_TRUE(nic_->destroy_qp(waiting.qp, nullptr).ok());
  EXPECT_TRUE(nic_->destroy_qp(unresponsive.qp, nullptr).ok());
}

// A connecting process waits only for a limited time before it uses the wire.
TEST_F(NicTest, ASlowPollerServesConnectingProcessesSoon) {
  const auto poll_after = [&](Duration pause) {
    const Instant until = now() + pause;
    while (now() < until) {
    }
    nic_->lanes().first().turn_for_poller();
  };
  for (int round = 0; round < 4; ++round) {
    const os::UniqueFd connecting = datapath::open_shm_socket();
    const os::UnixAddress name = datapath::shm_address(a_.qp->qpn().slot());
    ASSERT_EQ(::connect(connecting.get(), name.get(), name.bytes), 0);
    ASSERT_EQ(::send(connecting.get(), "?", 1, 0), 1);  // not a handshake: it is disconnected
    int polls = 0;
    for (; polls < 2000 && !datapath::is_hung_up(connecting.get()); ++polls)
      poll_after(microseconds(40));
    EXPECT_LT(polls, 200);
  }
}

// When ACKs for several queue pairs were in the socket and this process had not run for a while, a
// tail probe was sent for those that were not in the first batch.
TEST_F(NicTest, SendsNoProbeForAcksThatAreInTheSocket) {
  VERBENA_NEEDS_STEERING();
  datapath::Process peer;
  std::vector<std::unique_ptr<End>> ends;
  const auto peer_qpn = [&](size_t i) {
    return wire::Qpn::of_slot(peer.slot(), static_cast<uint32_t>(i) + 2);
  };
  for (size_t i = 0; i < 8; ++i) {
    ends.push_back(std::make_unique<End>());
    core::QpConfig config = a_.qp->config();
    config.send_cq = config.receive_cq = &ends[i]->cq;
    auto made = nic_->create_qp(config, nullptr);
    ASSERT_TRUE(made.ok());
    ends[i]->qp = made.value();
    connect(*ends[i], peer_qpn(i), 18);  // the timeout is a second
  }
  const wire::Gid& address = nic_->gid(0);
  const wire::PathId path = [&] {
    wire::Route route;
    route.source = route.destination = address;
    route.peer = ends[0]->qp->qpn();
    return peer.udp->open_path(route).value();
  }();
  // The peer receives `requests` of them, and acknowledges each in a separate datagram.
  const auto acknowledge = [&](size_t requests) {
    peer.packets.clear();
    ASSERT_TRUE(datapath::run({&peer}, [&] { return peer.packets.size() >= requests; }));
    for (size_t i = 0; i < requests; ++i) {
      const wire::Bth request = wire::Bth::load(peer.packets[i].data());
      size_t to = 0;
      while (peer_qpn(to) != request.destination) ++to;
      wire::TxPacket ack;
      ack.path = path;
      wire::Bth bth;
      bth.opcode = static_cast<uint8_t>(wire::Opcode::RcAck);
      bth.destination = ends[to]->qp->qpn();
      bth.psn = request.psn;
      bth.store(ack.header.data());
      wire::Aeth{}.store(ack.header.data() + wire::kBthBytes);
      ack.header_bytes = wire::kBthBytes + 4;
      peer.udp->sink().push(ack);
      peer.udp->flush();
    }
  };
  const auto probes = [](Nic::Guard& guard) {
    return guard.engine().state().counters[core::CounterId::probes_sent];
  };
  const core::Sge sge{a_.address(), 8, a_.key};

  // Measures the round trip; and waits until the kernel delivers packets to the right process: a
  // misrouted packet would stay in the wrong socket while no thread makes progress.
  const auto misrouted = [&] {
    return peer.counter("udp_misrouted_received") + peer.counter("udp_misrouted_forwarded");
  };
  uint64_t misrouted_before = 0;
  int exchanges = 0;
  do {
    ASSERT_LE(++exchanges, 1000) << "packets are still misrouted";
    misrouted_before = misrouted();
    ASSERT_TRUE(post(*ends[0], write(sge, 1)).ok());
    acknowledge(1);
    datapath::run({&peer}, [&] {
      nic_->lanes().first().turn_for_poller();
      return !ends[0]->cq.empty();
    });
    ASSERT_EQ(wait_polling(*ends[0]).status, core::WcStatus::Success);
  } while (misrouted() != misrouted_before);
  {
    Nic::Guard guard(*nic_);  // no other thread makes progress
    const uint64_t before = probes(guard);
    for (const auto& end : ends) {
      ASSERT_TRUE(guard.engine().post_send(*end->qp, write(sge, 2), now()).ok());
    }
    guard.lane().make_room();
    acknowledge(ends.size());
    const Instant due = guard.engine().next_deadline();
    ASSERT_LT(due, now() + milliseconds(500));
    while (now() <= due + milliseconds(1)) poll(nullptr, 0, 1);
    guard.lane().make_room();
    EXPECT_EQ(probes(guard), before);
  }
  for (const auto& end : ends) {
    EXPECT_EQ(wait_polling(*end).status, core::WcStatus::Success);
    EXPECT_TRUE(nic_->destroy_qp(end->qp, nullptr).ok());
  }
}

TEST_F(NicTest, ReportsTheMeaningOfEveryCounter) {
  std::vector<DeviceCounters> report;
  for (int i = 0; i < 1000 && report.empty(); ++i) {  // empty: the Nic was busy
    report = parse_counters(nic_->counters_text());
    if (report.empty()) poll(nullptr, 0, 1);
  }
  ASSERT_EQ(report.size(), 1u);
  EXPECT_GT(report[0].values.size(), static_cast<size_t>(core::CounterId::kCount));
  for (const NamedCounter& c : report[0].values) EXPECT_NE(c.meaning, "") << c.name;
}

TEST_F(NicTest, ASecondContextSharesTheNic) {
  auto again = Nic::open(loopback());
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again.value(), nic_);
}

}  // namespace
}  // namespace verbena::runtime

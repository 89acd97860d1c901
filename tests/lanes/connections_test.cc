// Threads that create, connect, use and destroy queue pairs, towards threads of the same process or
// of another one.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string>

#include "runtime/counter_report.h"
#include "tests/lanes/lanes_support.h"

namespace verbena::test {
namespace {

constexpr size_t kSliceBytes = 8192;  // of each operation
constexpr uint32_t kMessages = 16;
constexpr uint32_t kAtomics = 8;
constexpr const char* kSocketsVariable = "VERBENA_TEST_SOCKETS";

// One end of a socket to the thread with the other queue pair.
class Partner {
 public:
  explicit Partner(int fd) : fd_(fd) {}

  struct Address {
    uint32_t qpn = 0;
    uint32_t rkey = 0;
    uint64_t address = 0;
  };
  Address swap(const Address& own) const {
    Address other;
    EXPECT_EQ(::send(fd_, &own, sizeof own, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof own));
    EXPECT_EQ(recv(fd_, &other, sizeof other, MSG_WAITALL), static_cast<ssize_t>(sizeof other));
    return other;
  }
  // Both have come to this point.
  void meet() const { swap({}); }

 private:
  int fd_;
};

// The memory of each end. Written and Read: by its peer.
enum Slice : size_t { kOwn, kWritten, kRead, kGot, kOld, kSum, kSent, kReceived, kSlices = 64 };
constexpr size_t offset_of(size_t slice) { return slice * kSliceBytes; }

// One connection of a thread, from its creation to its end.
class Round {
 public:
  Round(ibv_pd* pd, const Partner& partner, uint64_t seed)
      : partner_(partner),
        seed_(seed),
        send_cq_(make_cq(pd->context)),
        receive_cq_(seed % 3 == 0 ? nullptr : make_cq(pd->context)),
        region_(pd, kSlices * kSliceBytes),
        qp_(make_qp(pd, send_cq_.get(), receive_cq())) {
    fill(region_.at(offset_of(kOwn), kSliceBytes), seed);
    fill(region_.at(offset_of(kRead), kSliceBytes), seed + 1);
    EXPECT_EQ(to_init(qp_.get()), 0);
    peer_ = partner.swap({qp_->qp_num, region_.mr->rkey, region_.address()});
    EXPECT_EQ(to_rtr(qp_.get(), peer_.qpn), 0);
    EXPECT_EQ(to_rts(qp_.get()), 0);
    for (uint32_t i = 0; i < kMessages; ++i) {
      EXPECT_EQ(post_receive(qp_.get(), i, region_.sge(offset_of(kReceived + i), kSliceBytes)), 0);
    }
    partner.meet();
  }

  void use() {
    rdma();
    add();
    send();
    partner_.meet();  // the peer's operations have completed
    EXPECT_TRUE(has_pattern(region_.at(offset_of(kWritten), kSliceBytes), seed_));
    uint64_t sum = 0;
    std::memcpy(&sum, region_.at(offset_of(kSum), sizeof sum).data(), sizeof sum);
    EXPECT_EQ(sum, kAtomics);
    EXPECT_EQ(completions_within_ms(send_cq_.get(), 0), 0);
  }

 private:
  ibv_cq* receive_cq() const { return receive_cq_ != nullptr ? receive_cq_.get() : send_cq_.get(); }
  uint64_t remote(size_t slice) const { return peer_.address + offset_of(slice); }

  // Receives of the peer's messages may complete before these, if they share the queue.
  void await_send(uint64_t wr_id) {
    for (;;) {
      const ibv_wc wc = take(send_cq_.get());
      EXPECT_EQ(wc.status, IBV_WC_SUCCESS) << ibv_wc_status_str(wc.status);
      if (wc.status != IBV_WC_SUCCESS) return;
      if ((wc.opcode & IBV_WC_RECV) != 0) {
        EXPECT_EQ(wc.wr_id, received_++);
        continue;
      }
      EXPECT_EQ(wc.wr_id, wr_id);
      return;
    }
  }

  void rdma() {
    const ibv_sge own = region_.sge(offset_of(kOwn), kSliceBytes);
    EXPECT_EQ(post(qp_.get(), IBV_WR_RDMA_WRITE, 100, own, remote(kWritten), peer_.rkey), 0);
    const ibv_sge got = region_.sge(offset_of(kGot), kSliceBytes);
    EXPECT_EQ(post(qp_.get(), IBV_WR_RDMA_READ, 101, got, remote(kRead), peer_.rkey), 0);
    await_send(100);
    await_send(101);
    EXPECT_TRUE(has_pattern(region_.at(offset_of(kGot), kSliceBytes), seed_ + 1));
  }

  void add() {
    for (uint32_t i = 0; i < kAtomics; ++i) {
      const ibv_sge old = region_.sge(offset_of(kOld) + i * sizeof(uint64_t), sizeof(uint64_t));
      EXPECT_EQ(post_fetch_add(qp_.get(), 200 + i, old, remote(kSum), peer_.rkey), 0);
    }
    for (uint32_t i = 0; i < kAtomics; ++i) {
      await_send(200 + i);
      uint64_t old = 0;
      std::memcpy(&old, region_.at(offset_of(kOld), kSliceBytes).data() + i * sizeof old,
                  sizeof old);
      EXPECT_EQ(old, i);
    }
  }

  void send() {
    for (uint32_t i = 0; i < kMessages; ++i) {
      const size_t at = offset_of(kSent + 32 + i % 16);
      fill(region_.at(at, kSliceBytes), seed_ + i);
      EXPECT_EQ(post(qp_.get(), IBV_WR_SEND, 300 + i, region_.sge(at, kSliceBytes - i)), 0);
    }
    for (uint32_t i = 0; i < kMessages; ++i) await_send(300 + i);
    while (received_ < kMessages) {
      const ibv_wc wc = take(receive_cq());
      if (wc.status != IBV_WC_SUCCESS) break;
      EXPECT_EQ(wc.wr_id, received_++);
    }
    EXPECT_EQ(received_, kMessages);
    for (uint32_t i = 0; i < kMessages; ++i) {
      EXPECT_TRUE(has_pattern(region_.at(offset_of(kReceived + i), kSliceBytes - i), seed_ + i));
    }
  }

  const Partner& partner_;
  const uint64_t seed_;
  CqPtr send_cq_, receive_cq_;  // null: one queue for both
  Region region_;
  QpPtr qp_;
  Partner::Address peer_;
  uint32_t received_ = 0;
};

void connect_repeatedly(ibv_pd* pd, int socket, size_t pair, size_t rounds) {
  const Partner partner(socket);
  for (size_t i = 0; i < rounds && !::testing::Test::HasFailure(); ++i) {
    Round round(pd, partner, 1000 * pair + i);
    round.use();
    partner.meet();  // the peer has no more requests in flight
  }
  shutdown(socket, SHUT_RDWR);  // the partner does not wait for one that has failed
}

uint64_t counter(const std::string& name) {
  uint64_t sum = 0;
  for (const host::SlotReport& report : runtime::query_counters(milliseconds(1000))) {
    if (report.pid != getpid()) continue;
    for (const runtime::DeviceCounters& device : runtime::parse_counters(report.text)) {
      for (const runtime::NamedCounter& c : device.values) sum += c.name == name ? c.value : 0;
    }
  }
  return sum;
}

class Connections : public LanesTest {};

TEST_F(Connections, OfManyThreadsComeAndGo) {
  const size_t pairs = stress_threads() / 2;
  std::vector<std::array<int, 2>> sockets(pairs);
  for (auto& pair : sockets) ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair.data()), 0);
  run_threads(2 * pairs, [&](size_t i) {
    connect_repeatedly(pd_.get(), sockets[i / 2][i % 2], i / 2, stress_rounds(12));
  });
  for (auto& pair : sockets) {
    for (const int fd : pair) close(fd);
  }
  EXPECT_GE(counter("lanes"), std::min(kLanes, 2 * pairs));
  EXPECT_EQ(counter("queue_pairs"), 0u);
  EXPECT_EQ(counter("memory_keys"), 0u);
}

// Runs in a process of its own, which the test below starts.
TEST_F(Connections, DISABLED_PeerProcess) {
  const char* sockets = std::getenv(kSocketsVariable);
  ASSERT_NE(sockets, nullptr);
  std::vector<int> fds;
  for (char* at = const_cast<char*>(sockets); *at != '\0';) {
    fds.push_back(static_cast<int>(std::strtol(at, &at, 10)));
  }
  run_threads(fds.size(),
              [&](size_t i) { connect_repeatedly(pd_.get(), fds[i], i, stress_rounds(12)); });
}

TEST_F(Connections, OfManyThreadsToAnotherProcessComeAndGo) {
  const size_t threads = stress_threads() / 2;
  std::vector<std::array<int, 2>> sockets(threads);
  std::string others;
  for (auto& pair : sockets) {
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair.data()), 0);
    others += std::to_string(pair[1]) + " ";
  }
  others.pop_back();
  setenv(kSocketsVariable, others.c_str(), 1);
  const pid_t peer = fork();
  if (peer == 0) {
    execl("/proc/self/exe", "peer", "--gtest_also_run_disabled_tests", "--gtest_brief=1",
          "--gtest_filter=Connections.DISABLED_PeerProcess", nullptr);
    _exit(127);
  }
  for (auto& pair : sockets) close(pair[1]);
  run_threads(threads, [&](size_t i) {
    connect_repeatedly(pd_.get(), sockets[i][0], i, stress_rounds(12));
  });
  for (auto& pair : sockets) close(pair[0]);
  int status = 0;
  EXPECT_EQ(waitpid(peer, &status, 0), peer);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(counter("queue_pairs"), 0u);
}

}  // namespace
}  // namespace verbena::test

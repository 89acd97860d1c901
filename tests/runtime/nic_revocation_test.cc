// A Nic withdraws memory and queue pairs while a peer performs a direct copy. The peer is a process
// that executes one step of the copy at a time.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "datapath/shm/handshake.h"
#include "datapath/shm/segment.h"
#include "runtime/nic.h"

namespace verbena::runtime {
namespace {

constexpr uint32_t kDomain = 1;
constexpr uint32_t kRemoteAccess = core::kLocalWrite | core::kRemoteWrite | core::kRemoteRead;
constexpr uint8_t kPeerSlot = 253;  // no Nic uses it: a Nic's first slot depends on its process
constexpr size_t kBytes = 256;

// Commands to the peer. It replies 'y', or 'n' if the step failed.
enum class Step : char { Begin = 'b', Aim = 'a', Copy = 'c', End = 'e', Stop = 's' };

class PeerProcess {
 public:
  // Connects to the process of `slot`. The direct copies write to `memory`.
  PeerProcess(uint8_t slot, uint64_t memory) {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    const pid_t owner = ::getpid();
    pid_ = ::fork();
    control_ = os::UniqueFd(ends[pid_ == 0 ? 1 : 0]);
    ::close(ends[pid_ == 0 ? 0 : 1]);
    if (pid_ == 0) {
      serve(slot, owner, memory);
      ::_exit(0);
    }
    EXPECT_TRUE(replied()) << "no link";
  }
  ~PeerProcess() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

  bool succeeds(Step step) {
    send_step(step);
    return replied();
  }
  void stop() {
    send_step(Step::Stop);
    ::waitpid(pid_, nullptr, WUNTRACED);
  }
  void resume() {
    ::kill(pid_, SIGCONT);
    EXPECT_TRUE(replied());
  }

 private:
  void send_step(Step step) { EXPECT_EQ(::send(control_.get(), &step, 1, MSG_NOSIGNAL), 1); }
  bool replied() {
    char reply = 0;
    return ::recv(control_.get(), &reply, 1, 0) == 1 && reply == 'y';
  }
  void reply(bool done) {
    const char text = done ? 'y' : 'n';
    (void)::send(control_.get(), &text, 1, MSG_NOSIGNAL);
  }

  // --- in the peer ------------------------------------------------------------------------------
  void serve(uint8_t slot, pid_t owner, uint64_t memory) {
    auto own = datapath::OwnExposure::create();
    os::UniqueFd descriptor;
    auto segment = datapath::Segment::create(descriptor);
    const os::UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    const os::UnixAddress name = datapath::shm_address(slot);
    const bool connected = own.ok() && segment.ok() &&
                           ::connect(socket.get(), name.get(), name.bytes) == 0 &&
                           datapath::send_handshake(socket.get(), {.slot = kPeerSlot},
                                                    own.value().descriptor(), descriptor.get());
    char first = 0;
    reply(connected && ::recv(socket.get(), &first, 1, 0) == 1);
    datapath::DirectCopy copy(
        &segment.value().written_by(datapath::LinkEnd::Connecting).control->copy);
    for (Step step{}; ::recv(control_.get(), &step, 1, 0) == 1;) {
      reply(do_step(step, copy, owner, memory));
    }
  }
  static bool do_step(Step step, datapath::DirectCopy& copy, pid_t owner, uint64_t memory) {
    switch (step) {
      case Step::Begin:
        copy.begin();
        return true;
      case Step::Aim:
        return copy.aim(memory, kBytes, true);
      case Step::Copy: {
        std::array<std::byte, kBytes> new_bytes;
        new_bytes.fill(std::byte{0xFF});
        const iovec local{new_bytes.data(), new_bytes.size()};
        return ::syscall(SYS_process_vm_writev, owner, &local, 1, copy.parts(), copy.part_count(),
                         0) == static_cast<long>(kBytes);
      }
      case Step::End:
        copy.end();
        return true;
      case Step::Stop:
        ::raise(SIGSTOP);
        return true;
    }
    return false;
  }

  pid_t pid_ = -1;
  os::UniqueFd control_;
};

class NicRevocation : public testing::Test {
 protected:
  void SetUp() override {
    ::alarm(60);  // the calls below must return
    for (const DeviceInfo& device : discover_devices("").devices) {
      if (device.loopback) nic_ = Nic::open(device).value();
    }
    ASSERT_NE(nic_, nullptr) << "the loopback interface is down";
    qp_ = make_qp();
    peer_.emplace(qp_->qpn().slot(), address());
    key_ = add_region(memory_.data(), memory_.size(), kRemoteAccess);
    connect(*qp_, wire::Qpn::of_slot(kPeerSlot, 77));
  }
  void TearDown() override {
    peer_.reset();
    if (qp_ != nullptr) {
      EXPECT_TRUE(nic_->destroy_qp(qp_, nullptr).ok());
    }
    ::alarm(0);
  }

  core::QueuePair* make_qp() {
    core::QpConfig config;
    config.pd = kDomain;
    config.send_cq = config.receive_cq = &cq_;
    config.max_send_wr = config.max_recv_wr = 4;
    config.max_send_sge = config.max_recv_sge = 1;
    return nic_->create_qp(config, nullptr).value();
  }
  uint32_t add_region(std::byte* at, size_t bytes, uint32_t access) {
    Nic::Guard guard(*nic_);
    return guard.engine()
        .memory()
        .add_region(kDomain, at, bytes, reinterpret_cast<uint64_t>(at), access)
        .value();
  }
  // As ibv_dereg_mr does. True if a direct copy might have been in progress.
  bool remove_region(uint32_t key) {
    auto waited_for = nic_->remove_region(key);
    EXPECT_TRUE(waited_for.ok());
    return waited_for.ok() && waited_for.value() != 0;
  }
  void connect(core::QueuePair& qp, wire::Qpn to) {
    using namespace core::qp_attr;
    core::QpAttributes attr;
    attr.state = core::QpState::Init;
    attr.port = 1;
    attr.access = kRemoteAccess;
    ASSERT_TRUE(nic_->modify_qp(qp, attr, kState | kPort | kPkeyIndex | kAccessFlags).ok());
    attr.state = core::QpState::Rtr;
    attr.path_mtu = wire::Mtu::k4096;
    attr.address.is_global = true;
    attr.address.destination = nic_->gid(0);
    attr.dest_qpn = to;
    ASSERT_TRUE(nic_->modify_qp(qp, attr,
                                kState | kAddressVector | kPathMtu | kDestQpn | kRqPsn |
                                    kMaxDestRdAtomic | kMinRnrTimer)
                    .ok());
    attr.state = core::QpState::Rts;
    ASSERT_TRUE(nic_->modify_qp(qp, attr,
                                kState | kTimeout | kRetryCount | kRnrRetry | kSqPsn | kMaxRdAtomic)
                    .ok());
  }
  void reset(core::QueuePair& qp) {
    core::QpAttributes attr;
    attr.state = core::QpState::Reset;
    ASSERT_TRUE(nic_->modify_qp(qp, attr, core::qp_attr::kState).ok());
  }

  uint64_t address() const { return reinterpret_cast<uint64_t>(memory_.data()); }
  bool unchanged() const {
    return std::ranges::all_of(memory_, [](std::byte b) { return b == std::byte{}; });
  }

  std::shared_ptr<Nic> nic_;
  core::CompletionQueue cq_{16};
  core::QueuePair* qp_ = nullptr;
  std::vector<std::byte> memory_ = std::vector<std::byte>(size_t{1} << 16);
  uint32_t key_ = 0;
  std::optional<PeerProcess> peer_;
};

TEST_F(NicRevocation, RevokesTheCopyOfAStoppedPeerWithoutWaiting) {
  ASSERT_TRUE(peer_->succeeds(Step::Begin));
  ASSERT_TRUE(peer_->succeeds(Step::Aim));
  peer_->stop();
  EXPECT_TRUE(remove_region(key_)) << "the copy may be in progress";
  peer_->resume();
  EXPECT_FALSE(peer_->succeeds(Step::Copy));
  EXPECT_TRUE(unchanged());
}

TEST_F(NicRevocation, DoesNotWaitForAPeerThatStoppedAfterTheCopy) {
  ASSERT_TRUE(peer_->succeeds(Step::Begin));
  ASSERT_TRUE(peer_->succeeds(Step::Aim));
  ASSERT_TRUE(peer_->succeeds(Step::Copy));
  peer_->stop();
  EXPECT_TRUE(remove_region(key_));
  EXPECT_FALSE(unchanged());
}

// A peer that announces a copy but sleeps in another system call.
TEST_F(NicRevocation, WaitsOnlyOnceForACopyThatNeverEnds) {
  ASSERT_TRUE(peer_->succeeds(Step::Begin));
  ASSERT_TRUE(peer_->succeeds(Step::Aim));
  EXPECT_TRUE(remove_region(key_));
  const uint32_t new_key = add_region(memory_.data(), memory_.size(), kRemoteAccess);
  EXPECT_FALSE(remove_region(new_key));
  ASSERT_TRUE(peer_->succeeds(Step::End));
}

TEST_F(NicRevocation, RemovingAnUnexposedRegionRevokesNothing) {
  ASSERT_TRUE(peer_->succeeds(Step::Begin));
  const uint32_t local = add_region(memory_.data(), memory_.size(), core::kLocalWrite);
  EXPECT_FALSE(remove_region(local));
  EXPECT_TRUE(peer_->succeeds(Step::Aim)) << "the copy is not revoked";
  EXPECT_TRUE(peer_->succeeds(Step::Copy));
}

TEST_F(NicRevocation, DoesNotWaitForCopiesOfOtherMemory) {
  std::vector<std::byte> other(4096);
  const uint32_t key = add_region(other.data(), other.size(), kRemoteAccess);
  ASSERT_TRUE(peer_->succeeds(Step::Begin));
  ASSERT_TRUE(peer_->succeeds(Step::Aim));
  EXPECT_FALSE(remove_region(key));
  EXPECT_TRUE(peer_->succeeds(Step::Copy));
}

TEST_F(NicRevocation, DestroyingAQueuePairOfAnotherPeerRevokesNothing) {
  core::QueuePair* const other = make_qp();
  connect(*other, wire::Qpn::of_slot(kPeerSlot - 1, 77));
  ASSERT_TRUE(peer_->succeeds(Step::Begin));
  reset(*other);
  EXPECT_TRUE(nic_->destroy_qp(other, nullptr).ok());
  EXPECT_TRUE(peer_->succeeds(Step::Aim)) << "the copy is not revoked";
  EXPECT_TRUE(peer_->succeeds(Step::Copy));
}

TEST_F(NicRevocation, DestroyingAnUnexposedQueuePairRevokesNothing) {
  core::QueuePair* const unexposed = make_qp();
  ASSERT_TRUE(peer_->succeeds(Step::Begin));
  EXPECT_TRUE(nic_->destroy_qp(unexposed, nullptr).ok());
  EXPECT_TRUE(peer_->succeeds(Step::Aim));
}

TEST_F(NicRevocation, DestroyingAQueuePairRevokesItsCopies) {
  ASSERT_TRUE(peer_->succeeds(Step::Begin));
  ASSERT_TRUE(peer_->succeeds(Step::Aim));
  EXPECT_TRUE(nic_->destroy_qp(std::exchange(qp_, nullptr), nullptr).ok());
  EXPECT_FALSE(peer_->succeeds(Step::Copy));
  EXPECT_TRUE(unchanged());
}

// The thread that detects the failure withdraws the queue pair. The reset call follows later.
TEST_F(NicRevocation, ResettingAFailedQueuePairRevokesItsCopies) {
  ASSERT_TRUE(peer_->succeeds(Step::Begin));
  ASSERT_TRUE(peer_->succeeds(Step::Aim));
  {
    Nic::Guard guard(*nic_);
    guard.engine().fail_all(now());
  }
  reset(*qp_);
  EXPECT_FALSE(peer_->succeeds(Step::Copy));
  EXPECT_TRUE(unchanged());
}

}  // namespace
}  // namespace verbena::runtime

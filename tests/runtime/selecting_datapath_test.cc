// The medium that each packet uses. The media are fakes that implement only the interface.
#include "datapath/selecting_datapath.h"

#include <gtest/gtest.h>
#include <net/if.h>
#include <sys/eventfd.h>

#include "tests/unit/datapath/fake_datapath.h"

namespace verbena::datapath {
namespace {

const wire::Gid kLoopback = wire::Gid::from_ipv4("\x7F\x00\x00\x01");
const wire::Gid kOtherHost = wire::Gid::from_ipv4("\xC0\x00\x02\x01");  // 192.0.2.1
constexpr wire::Qpn kPeer = wire::Qpn::of_slot(7, 100);
constexpr wire::PathId kPath{3};  // the only path of FakeDatapath

class FakeLink final : public LocalLink {
 public:
  std::optional<uint8_t> number_of(const Addresses&) override { return uint8_t{0}; }
  void push(const wire::TxPacket&, uint8_t) override { ++pushed; }
  void send_short_ack(const wire::Ack&, uint8_t) override { ++acks; }
  bool full() override { return is_full; }
  bool peer_sleeps() const override { return true; }
  bool retract(const wire::Unread&, uint8_t) override { return true; }
  int pushed = 0;
  int acks = 0;
  bool is_full = false;
};

class FakeMedium final : public LocalMedium {
 public:
  explicit FakeMedium(bool reaches) : reaches_(reaches) {}
  bool reach(uint8_t slot, Instant) override {
    if (reaches_) set_link(slot, &link);
    return true;
  }
  void end_link() {
    set_link(kPeer.slot(), nullptr);
    note_gone();
  }
  bool has_links() const override { return reaches_; }
  bool access(LocalLink&, const wire::OneSided&, const Addresses&) override { return true; }
  std::span<const wire::RxPacket> receive() override {
    ++receives;
    return {};
  }
  std::span<const wire::RxPacket> busy_poll() override { return {}; }
  void release() override {}
  void flush() override { ++flushes; }
  int wait_fd() const override { return event_.get(); }
  void append_counters(std::vector<Counter>& to) const override { to.push_back({"medium", 1}); }
  bool arm() override { return !has_packets; }
  void disarm() override { ++disarms; }
  void pass(Duration time) override { passed = passed + time; }
  void attend() override {}
  std::optional<std::string> take_notice() override { return std::nullopt; }

  FakeLink link;
  bool has_packets = false;
  int receives = 0;
  int flushes = 0;
  int disarms = 0;
  Duration passed{};

 private:
  bool reaches_;
  os::UniqueFd event_{::eventfd(0, EFD_CLOEXEC)};
};

enum class Reach : bool { None, All };

struct Selecting {
  explicit Selecting(Reach reach) {
    auto owned = std::make_unique<FakeMedium>(reach == Reach::All);
    medium = owned.get();
    datapath = std::make_unique<SelectingDatapath>(std::make_unique<FakeDatapath>(),
                                                   std::move(owned), ::if_nametoindex("lo"));
  }
  void connect(const wire::Gid& destination = kLoopback) {
    EXPECT_TRUE(datapath->reach(destination, kPeer, Instant{}));
    EXPECT_TRUE(
        datapath->open_path({.source = kLoopback, .destination = destination, .peer = kPeer}).ok());
  }
  // Sends one packet. Returns the number of packets sent over the wire so far.
  size_t send() {
    wire::TxPacket p;
    p.path = kPath;
    p.header_bytes = wire::kBthBytes;
    datapath->sink().push(p);
    datapath->flush();
    datapath->disarm();  // polls the wire, too
    return datapath->receive().size();
  }
  FakeMedium* medium = nullptr;
  std::unique_ptr<SelectingDatapath> datapath;
};

TEST(SelectingDatapath, UsesTheMediumIfItReachesThePeer) {
  Selecting s(Reach::All);
  s.connect();
  EXPECT_EQ(s.send(), 0u);
  EXPECT_EQ(s.medium->link.pushed, 1);
  EXPECT_EQ(s.datapath->packet_bytes(kPath), wire::kMaxPayloadBytes);
  wire::OneSided request;
  request.path = kPath;
  EXPECT_TRUE(s.datapath->sink().local_peer()->access(request));
}

TEST(SelectingDatapath, UsesTheWireIfTheMediumDoesNotReachThePeer) {
  Selecting s(Reach::None);
  s.connect();
  EXPECT_EQ(s.send(), 1u);
  EXPECT_EQ(s.datapath->packet_bytes(kPath), 0u);
  EXPECT_FALSE(s.datapath->sink().local_peer()->send_short_ack(kPath, {}));
}

TEST(SelectingDatapath, UsesTheWireToOtherHosts) {
  Selecting s(Reach::All);
  s.connect(kOtherHost);
  EXPECT_EQ(s.send(), 1u);
  EXPECT_FALSE(s.datapath->sink().local_peer()->is_asleep(kPath));
}

TEST(SelectingDatapath, UsesTheWireAfterTheLinkEnded) {
  Selecting s(Reach::All);
  s.connect();
  EXPECT_EQ(s.send(), 0u);
  s.medium->end_link();
  EXPECT_TRUE(s.datapath->anything_gone());
  s.datapath->take_gone();
  EXPECT_FALSE(s.datapath->anything_gone());
  EXPECT_EQ(s.send(), 1u);
}

TEST(SelectingDatapath, APathIsFullFromTheEndOfItsLinkUntilItIsReverted) {
  Selecting s(Reach::All);
  s.connect();
  const wire::LocalPeer& local = *s.datapath->sink().local_peer();
  EXPECT_FALSE(local.is_full(kPath));
  s.medium->end_link();
  EXPECT_TRUE(local.is_full(kPath)) << "its packets may still have the size of the link";
  s.datapath->take_gone();
  EXPECT_FALSE(local.is_full(kPath));
  EXPECT_EQ(s.send(), 1u);
}

TEST(SelectingDatapath, SendsOnlyWirePacketsIfTheLinkTakesNoOthers) {
  Selecting s(Reach::All);
  s.connect();
  EXPECT_TRUE(s.datapath->sink().local_peer()->send_short_ack(kPath, {}));
  s.medium->link.set_wire_packets_only(true);
  EXPECT_FALSE(s.datapath->sink().local_peer()->send_short_ack(kPath, {}));
  EXPECT_EQ(s.medium->link.acks, 1);
  EXPECT_EQ(s.datapath->packet_bytes(kPath), 0u);
}

TEST(SelectingDatapath, DoesNotSleepWhileTheMediumHasPackets) {
  Selecting s(Reach::All);
  EXPECT_TRUE(s.datapath->arm());
  s.medium->has_packets = true;
  EXPECT_FALSE(s.datapath->arm());
  EXPECT_EQ(s.medium->disarms, 1);
}

TEST(SelectingDatapath, PassesElapsedTimeOnToTheMedium) {
  Selecting s(Reach::All);
  Duration given{};
  for (int i = 0; i < 1000; ++i) {
    s.datapath->pass(nanoseconds(100));
    given = given + nanoseconds(100);
    EXPECT_LT(given - s.medium->passed, microseconds(5));
    EXPECT_GE(given, s.medium->passed);
  }
}

TEST(SelectingDatapath, HasRoomForSeveralPackets) {
  Selecting s(Reach::All);
  EXPECT_GT(s.datapath->sink().room(), 2u) << "injected faults may send a packet twice";
}

}  // namespace
}  // namespace verbena::datapath

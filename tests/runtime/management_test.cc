// Management with a host that only records its calls: the destinations of MADs, and refusals of the
// host.
#include "runtime/management.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "cm/messages.h"

namespace verbena::runtime {
namespace {

constexpr uint8_t kSlot = 7;
constexpr uint64_t kService = 0x1061234;

wire::Gid ipv4(uint8_t last) {
  wire::Gid gid;
  gid.bytes[10] = gid.bytes[11] = std::byte{0xFF};
  gid.bytes[12] = std::byte{10};
  gid.bytes[15] = std::byte{last};
  return gid;
}

class FakeHost final : public ManagementHost {
 public:
  FakeHost() {
    device_.name = "verbena_fake";
    device_.interface_index = 1;
    gids_.update({ipv4(1)});
  }

  void lock_management() override { EXPECT_FALSE(std::exchange(locked, true)); }
  void unlock_management() override { EXPECT_TRUE(std::exchange(locked, false)); }
  const DeviceInfo& device() const override { return device_; }
  bool is_abandoned() const override { return abandoned; }
  void await_steering() override { EXPECT_FALSE(locked); }
  Instant time() override { return Instant{} + seconds(1); }
  Instant recent_time() const override { return Instant{} + seconds(1); }
  void set_management_deadline(Instant at) override { deadline = at; }
  bool removed() const override { return false; }
  const GidTable& gids() const override { return gids_; }
  Status listen(const wire::Gid&) override { return listening; }
  Status listen_everywhere() override { return listening; }
  void on_exhaustion() override {}
  core::ManagementPort& management_port() override { return port_; }
  Result<wire::PathId> open_management_path(const wire::Route&) override {
    return static_cast<wire::PathId>(++paths_opened);
  }
  void release_management_path(wire::PathId) override {}
  void transmit(Instant) override { ++transmits; }
  void report_unreachable_hosts(bool) override {}
  std::optional<datapath::UnreachableHost> take_unreachable_host() override { return std::nullopt; }
  host::Forwarded forward(uint8_t slot, const core::ManagementDatagram&) override {
    forwarded_to.push_back(slot);
    return forward_result;
  }
  host::Forwarded forward(std::span<const host::ServiceName>,
                          const core::ManagementDatagram&) override {
    return forward_result;
  }
  void forward_to_everyone(const core::ManagementDatagram&) override { ++broadcasts; }
  Status claim_service(const host::ServiceName& name) override {
    claimed.push_back(name.where);
    return {};
  }
  void release_service(const host::ServiceName& name) override { std::erase(claimed, name.where); }
  bool is_claimed(const host::ServiceName& name) const override {
    return std::ranges::count(claimed_by_others, name.where) != 0;
  }
  void update_services() override {}

  // Queue pair 1 receives a MAD.
  void receive(const cm::Mad& mad, bool was_forwarded = false) {
    wire::Packet packet;
    packet.bth.opcode = static_cast<uint8_t>(wire::Opcode::UdSendOnly);
    packet.deth = {.qkey = core::kManagementQkey, .source = wire::kManagementQpn};
    packet.payload = mad;
    std::array<std::byte, core::ManagementDatagram::kHeaderBytes + core::kMadBytes> bytes{};
    std::ranges::copy(mad, bytes.begin() + core::ManagementDatagram::kHeaderBytes);
    port_.on_packet(packet, bytes,
                    {.source = ipv4(2), .destination = ipv4(1), .forwarded = was_forwarded});
  }

  using Where = host::ServiceName::Where;
  bool locked = false;
  bool abandoned = false;
  Instant deadline = kNever;
  Status listening;
  host::Forwarded forward_result = host::Forwarded::Yes;
  int paths_opened = 0;
  int transmits = 0;
  int broadcasts = 0;
  std::vector<uint8_t> forwarded_to;
  std::vector<Where> claimed;
  std::vector<Where> claimed_by_others;

 private:
  DeviceInfo device_;
  GidTable gids_;
  core::MemoryRegistry memory_{1};
  core::EngineState engine_{memory_, 1, true};
  core::ManagementPort port_{engine_};
};

class ManagementTest : public testing::Test {
 protected:
  static cm::Mad rej_for(uint32_t communication_id) {
    cm::Mad mad{};
    cm::Rej rej;
    rej.local_comm_id = 99;
    rej.remote_comm_id = communication_id;
    rej.store(mad);
    return mad;
  }
  static cm::ConnectParameters request() {
    cm::ConnectParameters parameters;
    parameters.addresses.local_gid = parameters.addresses.local_ip = ipv4(1);
    parameters.addresses.peer_gid = parameters.addresses.peer_ip = ipv4(2);
    parameters.addresses.service_id = kService;
    return parameters;
  }
  void turn() { management_.turn(host_.time()); }

  FakeHost host_;
  Management management_{host_, cm::AgentConfig{.slot = kSlot, .secret = {1, 2}}};
};

TEST_F(ManagementTest, ForwardsAMadToTheProcessWhoseSlotIsInItsCommunicationId) {
  host_.receive(rej_for(0x09000001));
  turn();
  EXPECT_EQ(host_.forwarded_to, std::vector<uint8_t>{9});
}

TEST_F(ManagementTest, KeepsAMadForItsOwnSlot) {
  host_.receive(rej_for(uint32_t{kSlot} << 24 | 1));
  turn();
  EXPECT_TRUE(host_.forwarded_to.empty());
}

TEST_F(ManagementTest, ForwardsAMadAtMostOnce) {
  host_.receive(rej_for(0x09000001), true);
  turn();
  EXPECT_TRUE(host_.forwarded_to.empty());
}

TEST_F(ManagementTest, GivesARejWithoutACommunicationIdToEveryProcess) {
  host_.receive(rej_for(0));
  turn();
  EXPECT_EQ(host_.broadcasts, 1);
}

TEST_F(ManagementTest, AListenerOnEveryAddressClaimsBothFamilies) {
  ASSERT_TRUE(management_.listen({.service_id = kService}).ok());
  EXPECT_EQ(host_.claimed.size(), 2u);
  EXPECT_TRUE(management_.listens_everywhere());
}

TEST_F(ManagementTest, AListenerThatCannotReceiveReleasesItsClaims) {
  host_.listening = Error{EADDRINUSE, "the port is taken"};
  const auto listener = management_.listen({.service_id = kService});
  ASSERT_FALSE(listener.ok());
  EXPECT_EQ(listener.error().code, EADDRINUSE);
  EXPECT_TRUE(host_.claimed.empty());
  EXPECT_FALSE(management_.listens_everywhere());
}

TEST_F(ManagementTest, AListenerOnOneAddressCollidesWithAnotherProcessOnEveryAddress) {
  host_.claimed_by_others = {FakeHost::Where::AnyIpv4};
  const auto listener = management_.listen({.service_id = kService, .address = ipv4(1)});
  ASSERT_FALSE(listener.ok());
  EXPECT_EQ(listener.error().code, EADDRINUSE);
  EXPECT_TRUE(host_.claimed.empty());
}

TEST_F(ManagementTest, RefusesToListenOnAnAddressThatTheDeviceLacks) {
  const auto listener = management_.listen({.service_id = kService, .address = ipv4(3)});
  ASSERT_FALSE(listener.ok());
  EXPECT_EQ(listener.error().code, EADDRNOTAVAIL);
}

TEST_F(ManagementTest, ARequestLeavesAtOnceAndSetsTheDeadline) {
  const cm::ConnectParameters parameters = request();
  ASSERT_TRUE(management_.connect(parameters).ok());
  EXPECT_TRUE(host_.management_port().anything_to_send());
  EXPECT_EQ(host_.transmits, 1);
  EXPECT_LT(host_.deadline, kNever);
}

TEST_F(ManagementTest, OpensOnePathForEachPairOfHosts) {
  const cm::ConnectParameters parameters = request();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(management_.connect(parameters).ok());
  EXPECT_EQ(host_.paths_opened, 1);
}

TEST_F(ManagementTest, CallsFailInTheChildOfAFork) {
  host_.abandoned = true;
  const auto listener = management_.listen({.service_id = kService});
  ASSERT_FALSE(listener.ok());
  EXPECT_EQ(listener.error().code, EIO);
}

}  // namespace
}  // namespace verbena::runtime

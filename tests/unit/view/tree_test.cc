// The entries that programs find below /sys/class/infiniband and /dev/infiniband.
#include "view/tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>

namespace verbena::view {
namespace {

using Kind = Node::Kind;

// A NIC in a PCI slot, and loopback.
class TwoDevices : public Machine {
 public:
  std::vector<runtime::DeviceInfo> devices() const override {
    runtime::DeviceInfo card{.name = "verbena_eth0",
                             .interface = "eth0",
                             .interface_index = 2,
                             .loopback = false,
                             .guid = 0x0011'2233'4455'6677,
                             .port = {.up = true,
                                      .interface_mtu = 1500,
                                      .active_mtu = wire::Mtu::k1024,
                                      .speed_mbps = 25000,
                                      .addresses = {address(1), address(2)}}};
    runtime::DeviceInfo loopback = card;
    loopback.name = "verbena_lo";
    loopback.interface = "lo";
    loopback.interface_index = 1;
    loopback.port.speed_mbps = 2500;
    loopback.port.up = false;
    return {card, loopback};
  }
  std::string hardware(const runtime::DeviceInfo& device) const override {
    return device.interface == "eth0" ? "/sys/devices/pci0000:00/0000:00:03.0" : "";
  }
  uint64_t counter(const std::string& device, std::string_view name) const override {
    ++queries;
    if (device != "verbena_eth0") return 0;
    if (name.find("cnp") != name.npos || name.find("ecn") != name.npos) return 7;
    return name == "_bytes_sent" ? 4000 : name == "udp_too_short" || name == "timeouts" ? 3 : 0;
  }
  mutable int queries = 0;

 private:
  static wire::Gid address(unsigned last) {
    wire::Gid gid;
    gid.bytes[10] = gid.bytes[11] = std::byte{0xFF};
    gid.bytes[12] = std::byte{192};
    gid.bytes[15] = std::byte(last);
    return gid;
  }
};

class Tree : public testing::Test {
 protected:
  Node at(std::string_view path, LastLink last = LastLink::Follow) {
    const auto node = look_up(machine_, "/", path, last);
    return node ? *node : Node{.kind = Kind::Elsewhere, .path = "(not asked)"};
  }
  std::string text(const std::string& path) { return at("/sys/class/infiniband/" + path).text; }
  std::vector<std::string> names(const std::string& path) {
    const Node node = at(path);
    EXPECT_EQ(node.kind, Kind::Directory) << path;
    return node.names;
  }

  TwoDevices machine_;
};

using Names = std::vector<std::string>;

TEST_F(Tree, ListsDevicesInBothFolders) {
  EXPECT_EQ(names("/sys/class/infiniband"), (Names{"verbena_eth0", "verbena_lo"}));
  EXPECT_EQ(names("/dev/infiniband"), (Names{"uverbs2", "uverbs1", "rdma_cm"}));
  EXPECT_EQ(names("/sys/class/infiniband/verbena_lo/ports"), Names{"1"});
}

TEST_F(Tree, DescribesADevice) {
  EXPECT_EQ(text("verbena_eth0/node_type"), "1: CA\n");
  EXPECT_EQ(text("verbena_eth0/node_guid"), "0011:2233:4455:6677\n");
  EXPECT_EQ(text("verbena_eth0/ports/1/state"), "4: ACTIVE\n");
  EXPECT_EQ(text("verbena_eth0/ports/1/rate"), "25 Gb/sec (1X EDR)\n");
  EXPECT_EQ(text("verbena_lo/ports/1/state"), "1: DOWN\n");
  EXPECT_EQ(text("verbena_lo/ports/1/rate"), "2.5 Gb/sec (1X SDR)\n");
  EXPECT_EQ(text("verbena_lo/ports/1/link_layer"), "Ethernet\n");
}

TEST_F(Tree, HasTheWholeGidTableButOnlyTypesOfUsedEntries) {
  const std::string port = "verbena_eth0/ports/1/";
  EXPECT_EQ(names("/sys/class/infiniband/" + port + "gids").size(), runtime::GidTable::kSize);
  EXPECT_EQ(text(port + "gids/1"), "0000:0000:0000:0000:0000:ffff:c000:0002\n");
  EXPECT_EQ(text(port + "gids/2"), "0000:0000:0000:0000:0000:0000:0000:0000\n");
  EXPECT_EQ(text(port + "gid_attrs/types/1"), "RoCE v2\n");
  EXPECT_EQ(text(port + "gid_attrs/ndevs/1"), "eth0\n");
  EXPECT_EQ(at("/sys/class/infiniband/" + port + "gid_attrs/types/2").refusal, EINVAL);
  EXPECT_EQ(at("/sys/class/infiniband/" + port + "gids/128").kind, Kind::None);
}

TEST_F(Tree, QueriesCountersOnlyWhenOneIsRead) {
  names("/sys/class/infiniband/verbena_eth0/ports/1/counters");
  EXPECT_EQ(machine_.queries, 0);
  EXPECT_EQ(text("verbena_eth0/ports/1/counters/port_xmit_data"), "1000\n");  // words of four bytes
  EXPECT_EQ(text("verbena_eth0/ports/1/counters/port_rcv_errors"), "3\n");
  EXPECT_EQ(text("verbena_eth0/ports/1/hw_counters/local_ack_timeout_err"), "3\n");
  for (const char* const name :
       {"np_cnp_sent", "np_ecn_marked_roce_packets", "rp_cnp_handled", "rp_cnp_ignored"}) {
    EXPECT_EQ(text("verbena_eth0/ports/1/hw_counters/" + std::string(name)), "7\n") << name;
  }
  EXPECT_EQ(text("verbena_lo/ports/1/counters/port_xmit_data"), "0\n");
}

TEST_F(Tree, LinksToTheHardwareIfThereIsAny) {
  const Node link = at("/sys/class/infiniband/verbena_eth0", LastLink::Keep);
  EXPECT_EQ(link.kind, Kind::Link);
  EXPECT_EQ(link.text, "../../devices/pci0000:00/0000:00:03.0/infiniband/verbena_eth0");
  const Node followed = at("/sys/class/infiniband/verbena_eth0");
  EXPECT_EQ(followed.kind, Kind::Directory);
  EXPECT_EQ(followed.path, "/sys/devices/pci0000:00/0000:00:03.0/infiniband/verbena_eth0");
  // A trailing slash follows the link.
  EXPECT_EQ(at("/sys/class/infiniband/verbena_eth0/", LastLink::Keep).kind, Kind::Directory);
  EXPECT_EQ(names("/sys/devices/pci0000:00/0000:00:03.0/infiniband"), Names{"verbena_eth0"});

  const Node numa = at("/sys/class/infiniband/verbena_eth0/device/numa_node");
  EXPECT_EQ(numa.kind, Kind::Elsewhere);
  EXPECT_EQ(numa.path, "/sys/devices/pci0000:00/0000:00:03.0/numa_node");
  EXPECT_EQ(at("/sys/class/infiniband/verbena_eth0/device").path,
            "/sys/devices/pci0000:00/0000:00:03.0");
  EXPECT_EQ(text("verbena_lo/device/numa_node"), "-1\n");
}

TEST_F(Tree, IgnoresPathsOutsideTheView) {
  EXPECT_EQ(at("/sys/class/infiniband/mlx5_0").kind, Kind::None);
  EXPECT_EQ(at("/dev/infiniband/uverbs7").kind, Kind::None);
  EXPECT_FALSE(look_up(machine_, "/", "/sys/class/infiniband_verbs", LastLink::Follow));
  EXPECT_FALSE(look_up(machine_, "/", "/home/infiniband/notes", LastLink::Follow));
  EXPECT_TRUE(may_be_shown("/dev/infiniband"));
  EXPECT_FALSE(may_be_shown("/etc/passwd"));
}

TEST_F(Tree, NormalizesPaths) {
  EXPECT_EQ(at("/sys//class/./infiniband/verbena_lo/../verbena_eth0/node_type").text, "1: CA\n");
  EXPECT_EQ(look_up(machine_, "/sys/class/infiniband", "verbena_lo/fw_ver", LastLink::Keep)->kind,
            Kind::File);
  EXPECT_EQ(look_up(machine_, "/", "dev/infiniband/uverbs1", LastLink::Keep)->kind,
            Kind::CharacterDevice);
  // The kernel has no such folder and cannot resolve ".." from it.
  const Node up = at("/dev/infiniband/../null");
  EXPECT_EQ(up.kind, Kind::Elsewhere);
  EXPECT_EQ(up.path, "/dev/null");
}

}  // namespace
}  // namespace verbena::view

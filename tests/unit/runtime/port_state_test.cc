// How a port's properties are derived from its interface.
#include "runtime/port_state.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <net/if.h>

namespace verbena::runtime {
namespace {

using wire::Gid;
using wire::Mtu;

Gid gid(const char* text) {
  in_addr v4{};
  in6_addr v6{};
  if (::inet_pton(AF_INET, text, &v4) == 1) return Gid::from_ipv4(&v4);
  EXPECT_EQ(::inet_pton(AF_INET6, text, &v6), 1) << text;
  return Gid::from_ipv6(&v6);
}

TEST(PortState, ActiveMtuIsTheLargestThatFitsWithAllHeaders) {
  const struct {
    uint32_t interface_mtu;
    Mtu expected;
  } cases[] = {
      {65536, Mtu::k4096}, {9000, Mtu::k4096}, {4500, Mtu::k4096}, {4188, Mtu::k4096},
      {4187, Mtu::k2048},  {2140, Mtu::k2048}, {2139, Mtu::k1024}, {1500, Mtu::k1024},
      {1420, Mtu::k1024},  {1116, Mtu::k1024}, {1115, Mtu::k512},  {604, Mtu::k512},
      {603, Mtu::k256},    {348, Mtu::k256},   {68, Mtu::k256},    {0, Mtu::k256},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(roce_mtu_for(c.interface_mtu), c.expected) << "interface MTU " << c.interface_mtu;
  }
}

TEST(PortState, AddressesAreIpv4ThenIpv6ThenLinkLocal) {
  Interface link;
  for (const char* text : {"fe80::1", "2001:db8::2", "10.0.0.2", "2001:db8::1", "10.0.0.1"}) {
    link.addresses.push_back({.gid = gid(text)});
  }
  const std::vector<Gid> expected = {gid("10.0.0.2"), gid("10.0.0.1"), gid("2001:db8::2"),
                                     gid("2001:db8::1"), gid("fe80::1")};
  EXPECT_EQ(port_state_of(link).addresses, expected);
}

TEST(PortState, OmitsUnusableAndDuplicateAddresses) {
  Interface link;
  link.addresses = {{.gid = gid("10.0.0.1")},
                    {.gid = gid("10.0.0.1")},
                    {.gid = gid("2001:db8::1"), .tentative = true},
                    {.gid = gid("2001:db8::2"), .duplicate = true}};
  EXPECT_EQ(port_state_of(link).addresses, std::vector<Gid>{gid("10.0.0.1")});
}

TEST(PortState, UpRequiresTheFlagAndTheCarrier) {
  Interface link;
  EXPECT_FALSE(port_state_of(link).up);
  link.flags = IFF_UP;
  EXPECT_FALSE(port_state_of(link).up);
  link.flags = IFF_RUNNING;
  EXPECT_FALSE(port_state_of(link).up);
  link.flags = IFF_UP | IFF_RUNNING;
  EXPECT_TRUE(port_state_of(link).up);
}

TEST(PortState, LoopbackReportsALowerSpeedThanAnUnknownInterface) {
  Interface loopback;
  loopback.flags = IFF_LOOPBACK;
  const Interface unknown;
  EXPECT_LT(port_state_of(loopback).speed_mbps, port_state_of(unknown).speed_mbps);
}

}  // namespace
}  // namespace verbena::runtime

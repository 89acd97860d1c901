// The layout of messages: compared with datagrams that the Linux kernel's rdma_cm sent, and field
// by field for messages that are not in the capture.
#include "cm/messages.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "cm/ip_addressing.h"

namespace verbena::cm {
namespace {

// The text omits trailing zeros.
Mad from_hex(const std::string& hex) {
  Mad mad{};
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    mad[i / 2] = static_cast<std::byte>(std::strtoul(hex.substr(i, 2).c_str(), nullptr, 16));
  }
  return mad;
}

const char* const kKernelReq =
    "0107020300000000000000026f3fd6bf0010000000000000bfd63f6f000000000000000001061c06505400fffe7700"
    "0300000000000000000000110100000001000000a025b92ca7ffff37f0ffffffff00000000000000000000ffff0a4d"
    "000300000000000000000000ffff0a4d00024f823000004000980000000000000000000000000000000000000000"
    "0000000000000000000000000000000000000000000000000040ac430000000000000000000000000a4d00030000"
    "000000000000000000000a4d0002";
const char* const kKernelRep =
    "0107020300000000000000026f3fd6bf00130000000000008b0b2e4bbfd63f6f0000000000002f0000000000f8b6f9"
    "00010178e0505400fffe770002";
const char* const kKernelRtu = "0107020300000000000000026f3fd6bf0014000000000000bfd63f6f8b0b2e4b";
const char* const kKernelDreq =
    "0107020300000000000000026f3fd6bf0015000000000000bfd63f6f8b0b2e4b00002f";
const char* const kKernelDrep = "0107020300000000000000026f3fd6bf00160000000000008b0b2e4bbfd63f6f";

wire::Gid ipv4(uint8_t last) {
  const uint8_t address[] = {10, 77, 0, last};
  return wire::Gid::from_ipv4(address);
}

wire::Gid ipv6(uint8_t last) {
  const uint8_t address[16] = {0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last};
  return wire::Gid::from_ipv6(address);
}

template <typename Message>
void expect_same_bytes(const Mad& mad) {
  Mad stored;
  stored.fill(std::byte{0xEE});
  Message::load(mad).store(stored);
  EXPECT_EQ(stored, mad);
}

// Loads and stores all bits of every byte that the message uses.
template <typename Message>
void expect_round_trip() {
  for (const int fill : {0x00, 0x55, 0xAA, 0xFF}) {
    Mad filled;
    filled.fill(static_cast<std::byte>(fill));
    Mad once;
    Message::load(filled).store(once);
    Mad twice;
    Message::load(once).store(twice);
    EXPECT_EQ(once, twice) << fill;
    EXPECT_TRUE(is_cm_mad(once));
    EXPECT_EQ(MadHeader::load(once.data()).attribute, Message::kAttribute);
  }
}

TEST(Messages, LoadsTheKernelsReq) {
  const Mad mad = from_hex(kKernelReq);
  ASSERT_TRUE(is_cm_mad(mad));
  const MadHeader header = MadHeader::load(mad.data());
  EXPECT_EQ(header.attribute, Attribute::Req);
  EXPECT_EQ(header.tid, 0x000000026f3fd6bfu);
  const Req req = Req::load(mad);
  EXPECT_EQ(req.tid, header.tid);
  EXPECT_EQ(req.local_comm_id, 0xbfd63f6fu);
  EXPECT_EQ(req.service_id, service_id(PortSpace::Tcp, 7174));
  EXPECT_EQ(req.local_ca_guid, 0x505400fffe770003u);
  EXPECT_EQ(req.local_qpn.value(), 0x11u);
  EXPECT_EQ(req.responder_resources, 1);
  EXPECT_EQ(req.initiator_depth, 1);
  EXPECT_EQ(req.remote_response_timeout, 20);
  EXPECT_EQ(req.transport, TransportType::Rc);
  EXPECT_FALSE(req.flow_control);
  EXPECT_EQ(req.starting_psn.value(), 0x25b92cu);
  EXPECT_EQ(req.local_response_timeout, 20);
  EXPECT_EQ(req.retry_count, 7);
  EXPECT_EQ(req.pkey, 0xFFFF);
  EXPECT_EQ(req.path_mtu, 3);
  EXPECT_EQ(req.rnr_retry_count, 7);
  EXPECT_EQ(req.max_cm_retries, 15);
  EXPECT_FALSE(req.srq);
  EXPECT_FALSE(req.is_xrc());
  EXPECT_EQ(req.primary.local_lid, 0xFFFF);
  EXPECT_EQ(req.primary.remote_lid, 0xFFFF);
  EXPECT_EQ(req.primary.local_gid, ipv4(3));
  EXPECT_EQ(req.primary.remote_gid, ipv4(2));
  EXPECT_EQ(req.primary.flow_label, 0x4f823u);
  EXPECT_EQ(req.primary.hop_limit, 64);
  EXPECT_FALSE(req.primary.subnet_local);
  EXPECT_EQ(req.primary.ack_timeout, 19);
  EXPECT_TRUE(req.alternate.local_gid.is_zero());
  const auto ip = IpHeader::load(req.private_data.data());
  ASSERT_TRUE(ip);
  EXPECT_EQ(ip->source_port, 0xac43);
  EXPECT_EQ(ip->source, ipv4(3));
  EXPECT_EQ(ip->destination, ipv4(2));
}

TEST(Messages, LoadsTheKernelsRep) {
  const Rep rep = Rep::load(from_hex(kKernelRep));
  EXPECT_EQ(rep.tid, 0x000000026f3fd6bfu);
  EXPECT_EQ(rep.local_comm_id, 0x8b0b2e4bu);
  EXPECT_EQ(rep.remote_comm_id, 0xbfd63f6fu);
  EXPECT_EQ(rep.local_qpn.value(), 0x2fu);
  EXPECT_EQ(rep.starting_psn.value(), 0xf8b6f9u);
  EXPECT_EQ(rep.responder_resources, 1);
  EXPECT_EQ(rep.initiator_depth, 1);
  EXPECT_EQ(rep.target_ack_delay, 15);
  EXPECT_EQ(rep.failover_accepted, 0);
  EXPECT_FALSE(rep.flow_control);
  EXPECT_EQ(rep.rnr_retry_count, 7);
  EXPECT_FALSE(rep.srq);
  EXPECT_EQ(rep.local_ca_guid, 0x505400fffe770002u);
}

TEST(Messages, LoadsTheKernelsRtuDreqAndDrep) {
  const Rtu rtu = Rtu::load(from_hex(kKernelRtu));
  EXPECT_EQ(rtu.local_comm_id, 0xbfd63f6fu);
  EXPECT_EQ(rtu.remote_comm_id, 0x8b0b2e4bu);
  const Dreq dreq = Dreq::load(from_hex(kKernelDreq));
  EXPECT_EQ(dreq.local_comm_id, 0xbfd63f6fu);
  EXPECT_EQ(dreq.remote_comm_id, 0x8b0b2e4bu);
  EXPECT_EQ(dreq.remote_qpn.value(), 0x2fu);
  const Drep drep = Drep::load(from_hex(kKernelDrep));
  EXPECT_EQ(drep.local_comm_id, 0x8b0b2e4bu);
  EXPECT_EQ(drep.remote_comm_id, 0xbfd63f6fu);
}

TEST(Messages, StoresTheKernelsBytes) {
  expect_same_bytes<Req>(from_hex(kKernelReq));
  expect_same_bytes<Rep>(from_hex(kKernelRep));
  expect_same_bytes<Rtu>(from_hex(kKernelRtu));
  expect_same_bytes<Dreq>(from_hex(kKernelDreq));
  expect_same_bytes<Drep>(from_hex(kKernelDrep));
}

TEST(Messages, StoresWhatItLoads) {
  expect_round_trip<Req>();
  expect_round_trip<Mra>();
  expect_round_trip<Rej>();
  expect_round_trip<Rep>();
  expect_round_trip<Rtu>();
  expect_round_trip<Dreq>();
  expect_round_trip<Drep>();
  expect_round_trip<Apr>();
  expect_round_trip<SidrReq>();
  expect_round_trip<SidrRep>();
}

// Private data extends to the last byte of every message except LAP and APR.
TEST(Messages, PrivateDataEndsWithTheDatagram) {
  const auto last_is_private = [](auto message) {
    message.private_data.back() = std::byte{0xA5};
    Mad mad;
    message.store(mad);
    EXPECT_EQ(mad.back(), std::byte{0xA5}) << name_of(message.kAttribute);
  };
  last_is_private(Req{});
  last_is_private(Mra{});
  last_is_private(Rej{});
  last_is_private(Rep{});
  last_is_private(Rtu{});
  last_is_private(Dreq{});
  last_is_private(Drep{});
  last_is_private(SidrReq{});
  last_is_private(SidrRep{});
}

TEST(Messages, ReqFieldsShareBytes) {
  Req req;
  req.transport = TransportType::Extended;
  req.extended_transport = kExtendedXrc;
  req.srq = true;
  req.rdc_exists = true;
  req.flow_control = true;
  req.vendor_id = 0x123456;
  req.ece_options = 0x89ABCDEF;
  req.alternate.ack_timeout = 31;
  req.alternate.sl = 9;
  req.alternate.subnet_local = true;
  req.alternate.packet_rate = 0x2A;
  req.alternate.flow_label = 0xFFFFF;
  Mad mad;
  req.store(mad);
  EXPECT_TRUE(req.is_xrc());
  EXPECT_EQ(load_be32(mad.data() + 20), 0x89ABCDEFu);  // the attribute modifier
  EXPECT_EQ(load_be24(mad.data() + 24 + 5), 0x123456u);
  EXPECT_EQ(load_u8(mad.data() + 24 + 43), 0x07);
  EXPECT_EQ(load_u8(mad.data() + 24 + 50), 0x08);
  EXPECT_EQ(load_u8(mad.data() + 24 + 51), 0x09);
  EXPECT_EQ(load_be32(mad.data() + 24 + 132), 0xFFFFF02Au);
  EXPECT_EQ(load_u8(mad.data() + 24 + 138), 0x98);
  EXPECT_EQ(load_u8(mad.data() + 24 + 139), 0xF8);
  const Req loaded = Req::load(mad);
  EXPECT_TRUE(loaded.is_xrc());
  EXPECT_EQ(loaded.vendor_id, 0x123456u);
  EXPECT_EQ(loaded.ece_options, 0x89ABCDEFu);
  EXPECT_EQ(loaded.alternate.flow_label, 0xFFFFFu);
}

TEST(Messages, RepVendorIdIsInThreeParts) {
  Rep rep;
  rep.vendor_id = 0x123456;
  rep.local_eecn = 0x777777;
  rep.srq = true;
  rep.rnr_retry_count = 5;
  Mad mad;
  rep.store(mad);
  EXPECT_EQ(load_u8(mad.data() + 24 + 15), 0x12);
  EXPECT_EQ(load_u8(mad.data() + 24 + 19), 0x34);
  EXPECT_EQ(load_u8(mad.data() + 24 + 23), 0x56);
  EXPECT_EQ(load_u8(mad.data() + 24 + 27), 0xB0);
  EXPECT_EQ(Rep::load(mad).vendor_id, 0x123456u);
  EXPECT_EQ(Rep::load(mad).local_eecn, 0x777777u);
}

TEST(Messages, StoresMraFields) {
  Mra mra;
  mra.about = About::Rep;
  mra.service_timeout = 24;
  mra.private_data[0] = std::byte{1};
  Mad mad;
  mra.store(mad);
  EXPECT_EQ(load_u8(mad.data() + 24 + 8), 0x40);
  EXPECT_EQ(load_u8(mad.data() + 24 + 9), 24 << 3);
  EXPECT_EQ(load_u8(mad.data() + 24 + 10), 1);
}

TEST(Messages, StoresRejFields) {
  Rej rej;
  rej.about = About::Other;
  rej.ari_length = 8;
  rej.reason = RejectReason::StaleConnection;
  rej.ari[0] = std::byte{7};
  rej.private_data[0] = std::byte{9};
  Mad mad;
  rej.store(mad);
  EXPECT_EQ(load_u8(mad.data() + 24 + 8), 0x80);
  EXPECT_EQ(load_u8(mad.data() + 24 + 9), 8 << 1);
  EXPECT_EQ(load_be16(mad.data() + 24 + 10), 10);
  EXPECT_EQ(load_u8(mad.data() + 24 + 12), 7);
  EXPECT_EQ(load_u8(mad.data() + 24 + 84), 9);
}

TEST(Messages, StoresSidrFields) {
  SidrReq request;
  request.request_id = 0x01020304;
  request.service_id = service_id(PortSpace::Udp, 7174);
  request.private_data[0] = std::byte{5};
  Mad mad;
  request.store(mad);
  EXPECT_EQ(load_be32(mad.data() + 24), 0x01020304u);
  EXPECT_EQ(load_be16(mad.data() + 28), 0xFFFF);
  EXPECT_EQ(load_be64(mad.data() + 32), 0x01111C06u);
  EXPECT_EQ(load_u8(mad.data() + 40), 5);

  SidrRep reply;
  reply.request_id = 0x01020304;
  reply.status = SidrStatus::Reject;
  reply.vendor_id = 0x123456;
  reply.qpn = wire::Qpn(0xABCDEF);
  reply.service_id = request.service_id;
  reply.qkey = 0x01234567;
  reply.private_data[0] = std::byte{6};
  reply.store(mad);
  EXPECT_EQ(load_be32(mad.data() + 24), 0x01020304u);
  EXPECT_EQ(load_u8(mad.data() + 28), 2);
  EXPECT_EQ(load_be16(mad.data() + 30), 0x1234);
  EXPECT_EQ(load_be32(mad.data() + 32), 0xABCDEF56u);
  EXPECT_EQ(load_be64(mad.data() + 36), request.service_id);
  EXPECT_EQ(load_be32(mad.data() + 44), 0x01234567u);
  EXPECT_EQ(load_u8(mad.data() + 24 + 96), 6);
}

TEST(Messages, RejectsDatagramsThatAreNoCmMads) {
  const Mad good = from_hex(kKernelRtu);
  EXPECT_TRUE(is_cm_mad(good));
  EXPECT_FALSE(is_cm_mad(std::span(good).first(255)));
  EXPECT_FALSE(is_cm_mad({}));
  for (const size_t at : {0, 1, 2, 3}) {  // version, class, class version, method
    Mad bad = good;
    bad[at] ^= std::byte{0x10};
    EXPECT_FALSE(is_cm_mad(bad)) << at;
  }
}

TEST(IpAddressing, ConvertsPortsToServiceIds) {
  EXPECT_EQ(service_id(PortSpace::Tcp, 0x1c06), 0x01061C06u);
  EXPECT_EQ(service_id(PortSpace::Udp, 1), 0x01110001u);
  EXPECT_EQ(service_id(PortSpace::Ib, 1), 0x013F0001u);
  EXPECT_EQ(service_id(PortSpace::Ipoib, 1), 0x00020001u);
  EXPECT_EQ(port_of(0x01061C06), 7174);
  EXPECT_EQ(port_space_of(0x01061C06), PortSpace::Tcp);
  EXPECT_EQ(port_space_of(0x013F0001), PortSpace::Ib);
  EXPECT_EQ(port_space_of(0x1000000001061C06), std::nullopt);
}

TEST(IpAddressing, StoresAndLoadsTheIpHeader) {
  std::byte bytes[IpHeader::kBytes];
  for (const bool v6 : {false, true}) {
    const IpHeader header{4242, v6 ? ipv6(1) : ipv4(1), v6 ? ipv6(2) : ipv4(2)};
    std::memset(bytes, 0xEE, sizeof bytes);
    header.store(bytes);
    EXPECT_EQ(load_u8(bytes), 0);
    EXPECT_EQ(load_u8(bytes + 1), v6 ? 0x60 : 0x40);
    EXPECT_EQ(load_be16(bytes + 2), 4242);
    EXPECT_EQ(load_be32(bytes + 4), v6 ? 0x20010db8u : 0u);  // unused bytes are zero
    const auto loaded = IpHeader::load(bytes);
    ASSERT_TRUE(loaded);
    EXPECT_EQ(loaded->source, header.source);
    EXPECT_EQ(loaded->destination, header.destination);
    EXPECT_EQ(loaded->source_port, 4242);
  }
  store_u8(bytes, 0x10);  // another major version
  EXPECT_FALSE(IpHeader::load(bytes));
  store_u8(bytes, 0x01);  // another minor one
  EXPECT_TRUE(IpHeader::load(bytes));
  store_u8(bytes + 1, 0x50);
  EXPECT_FALSE(IpHeader::load(bytes));
}

}  // namespace
}  // namespace verbena::cm

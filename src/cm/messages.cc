// Encodes and decodes each field.
#include "cm/messages.h"

#include <cstring>

namespace verbena::cm {
namespace {

const std::byte* body(const Mad& mad) { return mad.data() + MadHeader::kBytes; }
std::byte* body(Mad& mad) { return mad.data() + MadHeader::kBytes; }

template <size_t N>
Bytes<N> load_bytes(const std::byte* p) {
  Bytes<N> out;
  std::memcpy(out.data(), p, N);
  return out;
}

template <size_t N>
void store_bytes(std::byte* p, const Bytes<N>& bytes) {
  std::memcpy(p, bytes.data(), N);
}

// Clears the datagram, writes the common header, and returns the start of the message.
std::byte* begin(Mad& mad, Attribute attribute, uint64_t tid, uint32_t modifier = 0) {
  mad.fill(std::byte{0});
  MadHeader header;
  header.tid = tid;
  header.attribute = attribute;
  header.modifier = modifier;
  header.store(mad.data());
  return body(mad);
}

// The fields that nearly all messages begin with.
template <typename Message>
Message load_ids(const Mad& mad) {
  Message m;
  m.tid = MadHeader::load(mad.data()).tid;
  m.local_comm_id = load_be32(body(mad));
  m.remote_comm_id = load_be32(body(mad) + 4);
  return m;
}

template <typename Message>
std::byte* begin_ids(Mad& mad, const Message& m, uint32_t modifier = 0) {
  std::byte* p = begin(mad, Message::kAttribute, m.tid, modifier);
  store_be32(p, m.local_comm_id);
  store_be32(p + 4, m.remote_comm_id);
  return p;
}

uint8_t pack(int value) { return static_cast<uint8_t>(value); }

}  // namespace

PathFields PathFields::load(const std::byte* p) {
  PathFields path;
  path.local_lid = load_be16(p);
  path.remote_lid = load_be16(p + 2);
  path.local_gid = wire::Gid::from_ipv6(p + 4);
  path.remote_gid = wire::Gid::from_ipv6(p + 20);
  path.flow_label = load_be32(p + 36) >> 12;
  path.packet_rate = load_u8(p + 39) & 0x3F;
  path.traffic_class = load_u8(p + 40);
  path.hop_limit = load_u8(p + 41);
  path.sl = load_u8(p + 42) >> 4;
  path.subnet_local = (load_u8(p + 42) & 0x08) != 0;
  path.ack_timeout = load_u8(p + 43) >> 3;
  return path;
}

void PathFields::store(std::byte* p) const {
  store_be16(p, local_lid);
  store_be16(p + 2, remote_lid);
  std::memcpy(p + 4, local_gid.bytes.data(), 16);
  std::memcpy(p + 20, remote_gid.bytes.data(), 16);
  store_be32(p + 36, flow_label << 12 | (packet_rate & 0x3F));
  store_u8(p + 40, traffic_class);
  store_u8(p + 41, hop_limit);
  store_u8(p + 42, pack((sl & 0xF) << 4 | (subnet_local ? 0x08 : 0)));
  store_u8(p + 43, pack((ack_timeout & 0x1F) << 3));
}

Req Req::load(const Mad& mad) {
  const MadHeader header = MadHeader::load(mad.data());
  const std::byte* p = body(mad);
  Req r;
  r.tid = header.tid;
  r.ece_options = header.modifier;
  r.local_comm_id = load_be32(p);
  r.vendor_id = load_be24(p + 5);
  r.service_id = load_be64(p + 8);
  r.local_ca_guid = load_be64(p + 16);
  r.local_qkey = load_be32(p + 28);
  r.local_qpn = wire::Qpn(load_be24(p + 32));
  r.responder_resources = load_u8(p + 35);
  r.local_eecn = load_be24(p + 36);
  r.initiator_depth = load_u8(p + 39);
  r.remote_eecn = load_be24(p + 40);
  r.remote_response_timeout = load_u8(p + 43) >> 3;
  r.transport = static_cast<TransportType>(load_u8(p + 43) >> 1 & 3);
  r.flow_control = (load_u8(p + 43) & 1) != 0;
  r.starting_psn = wire::Psn(load_be24(p + 44));
  r.local_response_timeout = load_u8(p + 47) >> 3;
  r.retry_count = load_u8(p + 47) & 7;
  r.pkey = load_be16(p + 48);
  r.path_mtu = load_u8(p + 50) >> 4;
  r.rdc_exists = (load_u8(p + 50) & 0x08) != 0;
  r.rnr_retry_count = load_u8(p + 50) & 7;
  r.max_cm_retries = load_u8(p + 51) >> 4;
  r.srq = (load_u8(p + 51) & 0x08) != 0;
  r.extended_transport = load_u8(p + 51) & 7;
  r.primary = PathFields::load(p + 52);
  r.alternate = PathFields::load(p + 96);
  r.private_data = load_bytes<kPrivateBytes>(p + 140);
  return r;
}

void Req::store(Mad& mad) const {
  std::byte* p = begin(mad, kAttribute, tid, ece_options);
  store_be32(p, local_comm_id);
  store_be24(p + 5, vendor_id);
  store_be64(p + 8, service_id);
  store_be64(p + 16, local_ca_guid);
  store_be32(p + 28, local_qkey);
  store_be24(p + 32, local_qpn.value());
  store_u8(p + 35, responder_resources);
  store_be24(p + 36, local_eecn);
  store_u8(p + 39, initiator_depth);
  store_be24(p + 40, remote_eecn);
  store_u8(p + 43, pack((remote_response_timeout & 0x1F) << 3 | static_cast<int>(transport) << 1 |
                        (flow_control ? 1 : 0)));
  store_be24(p + 44, starting_psn.value());
  store_u8(p + 47, pack((local_response_timeout & 0x1F) << 3 | (retry_count & 7)));
  store_be16(p + 48, pkey);
  store_u8(p + 50, pack((path_mtu & 0xF) << 4 | (rdc_exists ? 0x08 : 0) | (rnr_retry_count & 7)));
  store_u8(p + 51, pack((max_cm_retries & 0xF) << 4 | (srq ? 0x08 : 0) | (extended_transport & 7)));
  primary.store(p + 52);
  alternate.store(p + 96);
  store_bytes(p + 140, private_data);
}

Mra Mra::load(const Mad& mad) {
  Mra m = load_ids<Mra>(mad);
  const std::byte* p = body(mad);
  m.about = static_cast<About>(load_u8(p + 8) >> 6);
  m.service_timeout = load_u8(p + 9) >> 3;
  m.private_data = load_bytes<kPrivateBytes>(p + 10);
  return m;
}

void Mra::store(Mad& mad) const {
  std::byte* p = begin_ids(mad, *this);
  store_u8(p + 8, pack((static_cast<int>(about) & 3) << 6));
  store_u8(p + 9, pack((service_timeout & 0x1F) << 3));
  store_bytes(p + 10, private_data);
}

Rej Rej::load(const Mad& mad) {
  Rej r = load_ids<Rej>(mad);
  const std::byte* p = body(mad);
  r.about = static_cast<About>(load_u8(p + 8) >> 6);
  r.ari_length = load_u8(p + 9) >> 1;
  r.reason = static_cast<RejectReason>(load_be16(p + 10));
  r.ari = load_bytes<kAriBytes>(p + 12);
  r.private_data = load_bytes<kPrivateBytes>(p + 84);
  return r;
}

void Rej::store(Mad& mad) const {
  std::byte* p = begin_ids(mad, *this);
  store_u8(p + 8, pack((static_cast<int>(about) & 3) << 6));
  store_u8(p + 9, pack((ari_length & 0x7F) << 1));
  store_be16(p + 10, static_cast<uint16_t>(reason));
  store_bytes(p + 12, ari);
  store_bytes(p + 84, private_data);
}

Rep Rep::load(const Mad& mad) {
  Rep r = load_ids<Rep>(mad);
  const std::byte* p = body(mad);
  r.ece_options = MadHeader::load(mad.data()).modifier;
  r.local_qkey = load_be32(p + 8);
  r.local_qpn = wire::Qpn(load_be24(p + 12));
  r.local_eecn = load_be24(p + 16);
  r.starting_psn = wire::Psn(load_be24(p + 20));
  r.vendor_id = uint32_t{load_u8(p + 15)} << 16 | uint32_t{load_u8(p + 19)} << 8 | load_u8(p + 23);
  r.responder_resources = load_u8(p + 24);
  r.initiator_depth = load_u8(p + 25);
  r.target_ack_delay = load_u8(p + 26) >> 3;
  r.failover_accepted = load_u8(p + 26) >> 1 & 3;
  r.flow_control = (load_u8(p + 26) & 1) != 0;
  r.rnr_retry_count = load_u8(p + 27) >> 5;
  r.srq = (load_u8(p + 27) & 0x10) != 0;
  r.local_ca_guid = load_be64(p + 28);
  r.private_data = load_bytes<kPrivateBytes>(p + 36);
  return r;
}

void Rep::store(Mad& mad) const {
  std::byte* p = begin_ids(mad, *this, ece_options);
  store_be32(p + 8, local_qkey);
  store_be24(p + 12, local_qpn.value());
  store_u8(p + 15, static_cast<uint8_t>(vendor_id >> 16));
  store_be24(p + 16, local_eecn);
  store_u8(p + 19, static_cast<uint8_t>(vendor_id >> 8));
  store_be24(p + 20, starting_psn.value());
  store_u8(p + 23, static_cast<uint8_t>(vendor_id));
  store_u8(p + 24, responder_resources);
  store_u8(p + 25, initiator_depth);
  store_u8(p + 26, pack((target_ack_delay & 0x1F) << 3 | (failover_accepted & 3) << 1 |
                        (flow_control ? 1 : 0)));
  store_u8(p + 27, pack((rnr_retry_count & 7) << 5 | (srq ? 0x10 : 0)));
  store_be64(p + 28, local_ca_guid);
  store_bytes(p + 36, private_data);
}

Rtu Rtu::load(const Mad& mad) {
  Rtu r = load_ids<Rtu>(mad);
  r.private_data = load_bytes<kPrivateBytes>(body(mad) + 8);
  return r;
}

void Rtu::store(Mad& mad) const { store_bytes(begin_ids(mad, *this) + 8, private_data); }

Dreq Dreq::load(const Mad& mad) {
  Dreq d = load_ids<Dreq>(mad);
  d.remote_qpn = wire::Qpn(load_be24(body(mad) + 8));
  d.private_data = load_bytes<kPrivateBytes>(body(mad) + 12);
  return d;
}

void Dreq::store(Mad& mad) const {
  std::byte* p = begin_ids(mad, *this);
  store_be24(p + 8, remote_qpn.value());
  store_bytes(p + 12, private_data);
}

Drep Drep::load(const Mad& mad) {
  Drep d = load_ids<Drep>(mad);
  d.private_data = load_bytes<kPrivateBytes>(body(mad) + 8);
  return d;
}

void Drep::store(Mad& mad) const { store_bytes(begin_ids(mad, *this) + 8, private_data); }

Lap Lap::load(const Mad& mad) { return load_ids<Lap>(mad); }

Apr Apr::load(const Mad& mad) {
  Apr a = load_ids<Apr>(mad);
  a.status = load_u8(body(mad) + 9);
  return a;
}

void Apr::store(Mad& mad) const { store_u8(begin_ids(mad, *this) + 9, status); }

SidrReq SidrReq::load(const Mad& mad) {
  const std::byte* p = body(mad);
  SidrReq r;
  r.tid = MadHeader::load(mad.data()).tid;
  r.request_id = load_be32(p);
  r.pkey = load_be16(p + 4);
  r.service_id = load_be64(p + 8);
  r.private_data = load_bytes<kPrivateBytes>(p + 16);
  return r;
}

void SidrReq::store(Mad& mad) const {
  std::byte* p = begin(mad, kAttribute, tid);
  store_be32(p, request_id);
  store_be16(p + 4, pkey);
  store_be64(p + 8, service_id);
  store_bytes(p + 16, private_data);
}

SidrRep SidrRep::load(const Mad& mad) {
  const MadHeader header = MadHeader::load(mad.data());
  const std::byte* p = body(mad);
  SidrRep r;
  r.tid = header.tid;
  r.ece_options = header.modifier;
  r.request_id = load_be32(p);
  r.status = static_cast<SidrStatus>(load_u8(p + 4));
  r.info_length = load_u8(p + 5);
  r.vendor_id = uint32_t{load_be16(p + 6)} << 8 | load_u8(p + 11);
  r.qpn = wire::Qpn(load_be24(p + 8));
  r.service_id = load_be64(p + 12);
  r.qkey = load_be32(p + 20);
  r.info = load_bytes<kInfoBytes>(p + 24);
  r.private_data = load_bytes<kPrivateBytes>(p + 96);
  return r;
}

void SidrRep::store(Mad& mad) const {
  std::byte* p = begin(mad, kAttribute, tid, ece_options);
  store_be32(p, request_id);
  store_u8(p + 4, static_cast<uint8_t>(status));
  store_u8(p + 5, info_length);
  store_be16(p + 6, static_cast<uint16_t>(vendor_id >> 8));
  store_be24(p + 8, qpn.value());
  store_u8(p + 11, static_cast<uint8_t>(vendor_id));
  store_be64(p + 12, service_id);
  store_be32(p + 20, qkey);
  store_bytes(p + 24, info);
  store_bytes(p + 96, private_data);
}

}  // namespace verbena::cm

// The messages of communication management as plain values (IBA 12.6, 12.11). load() reads a whole
// 256-byte datagram that is_cm_mad() accepted; store() writes all of it, reserved bytes as zero.
// Offsets in comments count from the end of the common MAD header.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "cm/mad.h"
#include "wire/identifiers.h"
#include "wire/psn.h"

namespace verbena::cm {

template <size_t N>
using Bytes = std::array<std::byte, N>;

// The message that an MRA or REJ refers to.
enum class About : uint8_t { Req = 0, Rep = 1, Other = 2 };  // Other: LAP in an MRA

// REJ reasons (IBA table 109).
enum class RejectReason : uint16_t {
  NoQp = 1,
  NoEec = 2,
  NoResources = 3,
  Timeout = 4,
  UnsupportedRequest = 5,
  InvalidCommId = 6,
  InvalidCommInstance = 7,
  InvalidServiceId = 8,
  InvalidTransportType = 9,
  StaleConnection = 10,
  RdcNotExist = 11,
  InvalidGid = 12,
  InvalidLid = 13,
  InvalidSl = 14,
  InvalidTrafficClass = 15,
  InvalidHopLimit = 16,
  InvalidPacketRate = 17,
  InvalidAltGid = 18,
  InvalidAltLid = 19,
  InvalidAltSl = 20,
  InvalidAltTrafficClass = 21,
  InvalidAltHopLimit = 22,
  InvalidAltPacketRate = 23,
  PortCmRedirect = 24,
  PortRedirect = 25,
  InvalidMtu = 26,
  InsufficientResponderResources = 27,
  Consumer = 28,
  RnrRetryCount = 29,
  DuplicateLocalCommId = 30,
  InvalidClassVersion = 31,
  InvalidFlowLabel = 32,
  InvalidAltFlowLabel = 33,
  VendorOptionNotSupported = 35,
};

enum class TransportType : uint8_t { Rc = 0, Uc = 1, Rd = 2, Extended = 3 };
inline constexpr uint8_t kExtendedXrc = 1;

// A path in a REQ, 44 bytes:
//   0 local LID | 2 remote LID | 4 local GID | 20 remote GID | 36 flow label:20 resv:6 rate:6
//   40 traffic class | 41 hop limit | 42 SL:4 subnet local:1 resv:3 | 43 ACK timeout:5 resv:3
struct PathFields {
  uint16_t local_lid = 0;
  uint16_t remote_lid = 0;
  wire::Gid local_gid;
  wire::Gid remote_gid;
  uint32_t flow_label = 0;
  uint8_t packet_rate = 0;
  uint8_t traffic_class = 0;
  uint8_t hop_limit = 0;
  uint8_t sl = 0;
  bool subnet_local = false;
  uint8_t ack_timeout = 0;

  static PathFields load(const std::byte* p);
  void store(std::byte* p) const;
};

// 0 local id | 5 vendor id:24 | 8 service id | 16 CA GUID | 28 Q_Key | 32 QPN:24 | 35 responder
// resources | 36 EECN:24 | 39 initiator depth | 40 remote EECN:24 | 43 remote response timeout:5
// transport:2 flow control:1 | 44 PSN:24 | 47 local response timeout:5 retry:3 | 48 P_Key | 50
// MTU:4 RDC:1 RNR retry:3 | 51 max CM retries:4 SRQ:1 extended transport:3 | 52 primary path | 96
// alternate path | 140 private data
struct Req {
  static constexpr Attribute kAttribute = Attribute::Req;
  static constexpr size_t kPrivateBytes = 92;

  uint64_t tid = 0;
  uint32_t ece_options = 0;  // sent as the attribute modifier
  uint32_t local_comm_id = 0;
  uint32_t vendor_id = 0;
  uint64_t service_id = 0;
  uint64_t local_ca_guid = 0;
  uint32_t local_qkey = 0;
  wire::Qpn local_qpn;
  uint8_t responder_resources = 0;
  uint32_t local_eecn = 0;
  uint8_t initiator_depth = 0;
  uint32_t remote_eecn = 0;
  uint8_t remote_response_timeout = 0;
  TransportType transport = TransportType::Rc;
  bool flow_control = false;
  wire::Psn starting_psn{0};  // the first PSN that the receiver of this message sends
  uint8_t local_response_timeout = 0;
  uint8_t retry_count = 0;
  uint16_t pkey = 0xFFFF;
  uint8_t path_mtu = 0;  // 1: 256 bytes ... 5: 4096
  bool rdc_exists = false;
  uint8_t rnr_retry_count = 0;
  uint8_t max_cm_retries = 0;
  bool srq = false;
  uint8_t extended_transport = 0;
  PathFields primary;
  PathFields alternate;
  Bytes<kPrivateBytes> private_data{};

  bool is_xrc() const {
    return transport == TransportType::Extended && extended_transport == kExtendedXrc;
  }
  static Req load(const Mad& mad);
  void store(Mad& mad) const;
};

// 0 local id | 4 remote id | 8 message MRAed:2 | 9 service timeout:5 | 10 private data
struct Mra {
  static constexpr Attribute kAttribute = Attribute::Mra;
  static constexpr size_t kPrivateBytes = 222;

  uint64_t tid = 0;
  uint32_t local_comm_id = 0;
  uint32_t remote_comm_id = 0;
  About about = About::Req;
  uint8_t service_timeout = 0;
  Bytes<kPrivateBytes> private_data{};

  static Mra load(const Mad& mad);
  void store(Mad& mad) const;
};

// 0 local id | 4 remote id | 8 message rejected:2 | 9 ARI length:7 | 10 reason | 12 additional
// reject information | 84 private data
struct Rej {
  static constexpr Attribute kAttribute = Attribute::Rej;
  static constexpr size_t kAriBytes = 72;
  static constexpr size_t kPrivateBytes = 148;

  uint64_t tid = 0;
  uint32_t local_comm_id = 0;
  uint32_t remote_comm_id = 0;
  About about = About::Req;
  uint8_t ari_length = 0;  // as received: may exceed kAriBytes
  RejectReason reason = RejectReason::Consumer;
  Bytes<kAriBytes> ari{};
  Bytes<kPrivateBytes> private_data{};

  static Rej load(const Mad& mad);
  void store(Mad& mad) const;
};

// 0 local id | 4 remote id | 8 Q_Key | 12 QPN:24 | 15 vendor id, high | 16 EECN:24 | 19 vendor id,
// middle | 20 PSN:24 | 23 vendor id, low | 24 responder resources | 25 initiator depth | 26 target
// ACK delay:5 failover:2 flow control:1 | 27 RNR retry:3 SRQ:1 resv:4 | 28 CA GUID | 36 private
// data
struct Rep {
  static constexpr Attribute kAttribute = Attribute::Rep;
  static constexpr size_t kPrivateBytes = 196;

  uint64_t tid = 0;
  uint32_t ece_options = 0;
  uint32_t local_comm_id = 0;
  uint32_t remote_comm_id = 0;
  uint32_t local_qkey = 0;
  wire::Qpn local_qpn;
  uint32_t local_eecn = 0;    // the queue pair's number when it is an XRC target
  wire::Psn starting_psn{0};  // the first PSN that the receiver of this message sends
  uint32_t vendor_id = 0;
  uint8_t responder_resources = 0;
  uint8_t initiator_depth = 0;
  uint8_t target_ack_delay = 0;
  uint8_t failover_accepted = 0;
  bool flow_control = false;
  uint8_t rnr_retry_count = 0;
  bool srq = false;
  uint64_t local_ca_guid = 0;
  Bytes<kPrivateBytes> private_data{};

  static Rep load(const Mad& mad);
  void store(Mad& mad) const;
};

// 0 local id | 4 remote id | 8 private data
struct Rtu {
  static constexpr Attribute kAttribute = Attribute::Rtu;
  static constexpr size_t kPrivateBytes = 224;

  uint64_t tid = 0;
  uint32_t local_comm_id = 0;
  uint32_t remote_comm_id = 0;
  Bytes<kPrivateBytes> private_data{};

  static Rtu load(const Mad& mad);
  void store(Mad& mad) const;
};

// 0 local id | 4 remote id | 8 the receiver's QPN:24 | 12 private data
struct Dreq {
  static constexpr Attribute kAttribute = Attribute::Dreq;
  static constexpr size_t kPrivateBytes = 220;

  uint64_t tid = 0;
  uint32_t local_comm_id = 0;
  uint32_t remote_comm_id = 0;
  wire::Qpn remote_qpn;
  Bytes<kPrivateBytes> private_data{};

  static Dreq load(const Mad& mad);
  void store(Mad& mad) const;
};

// 0 local id | 4 remote id | 8 private data
struct Drep {
  static constexpr Attribute kAttribute = Attribute::Drep;
  static constexpr size_t kPrivateBytes = 224;

  uint64_t tid = 0;
  uint32_t local_comm_id = 0;
  uint32_t remote_comm_id = 0;
  Bytes<kPrivateBytes> private_data{};

  static Drep load(const Mad& mad);
  void store(Mad& mad) const;
};

// A request to load an alternate path. RoCE has none, so only the fields that a reply needs are
// read. 0 local id | 4 remote id
struct Lap {
  static constexpr Attribute kAttribute = Attribute::Lap;

  uint64_t tid = 0;
  uint32_t local_comm_id = 0;
  uint32_t remote_comm_id = 0;

  static Lap load(const Mad& mad);
};

inline constexpr uint8_t kAlternatePathNotSupported = 2;

// The reply to a LAP. 0 local id | 4 remote id | 8 information length | 9 status
struct Apr {
  static constexpr Attribute kAttribute = Attribute::Apr;

  uint64_t tid = 0;
  uint32_t local_comm_id = 0;
  uint32_t remote_comm_id = 0;
  uint8_t status = kAlternatePathNotSupported;

  static Apr load(const Mad& mad);
  void store(Mad& mad) const;
};

// 0 request id | 4 P_Key | 8 service id | 16 private data
struct SidrReq {
  static constexpr Attribute kAttribute = Attribute::SidrReq;
  static constexpr size_t kPrivateBytes = 216;

  uint64_t tid = 0;
  uint32_t request_id = 0;
  uint16_t pkey = 0xFFFF;
  uint64_t service_id = 0;
  Bytes<kPrivateBytes> private_data{};

  static SidrReq load(const Mad& mad);
  void store(Mad& mad) const;
};

enum class SidrStatus : uint8_t {
  Success = 0,
  UnsupportedServiceId = 1,
  Reject = 2,
  NoQp = 3,
  Redirect = 4,
  UnsupportedVersion = 5,
};

// 0 request id | 4 status | 5 information length | 6 vendor id, high:16 | 8 QPN:24 | 11 vendor id,
// low | 12 service id | 20 Q_Key | 24 additional information | 96 private data
struct SidrRep {
  static constexpr Attribute kAttribute = Attribute::SidrRep;
  static constexpr size_t kInfoBytes = 72;
  static constexpr size_t kPrivateBytes = 136;

  uint64_t tid = 0;
  uint32_t ece_options = 0;
  uint32_t request_id = 0;
  SidrStatus status = SidrStatus::Success;
  uint8_t info_length = 0;
  uint32_t vendor_id = 0;
  wire::Qpn qpn;
  uint64_t service_id = 0;
  uint32_t qkey = 0;
  Bytes<kInfoBytes> info{};
  Bytes<kPrivateBytes> private_data{};

  static SidrRep load(const Mad& mad);
  void store(Mad& mad) const;
};

}  // namespace verbena::cm

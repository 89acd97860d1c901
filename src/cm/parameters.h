// The parameters of the owner's calls, and the properties of a connection that the owner can query.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/siphash.h"
#include "base/time.h"
#include "cm/ip_addressing.h"
#include "cm/messages.h"
#include "wire/identifiers.h"
#include "wire/psn.h"

namespace verbena::cm {

// CM messages encode times as exponents: 4.096 us * 2^value.
constexpr Duration iba_time(uint8_t exponent) { return nanoseconds(int64_t{4096} << exponent); }

inline constexpr uint8_t kMaxRetries = 15;  // the largest value that a REQ can hold

// The peer chooses times for us to wait. These limits bound how long we keep its state.
inline constexpr uint8_t kMaxResponseTimeout = 22;  // 17 s
inline constexpr uint8_t kMaxServiceTimeout = 24;   // 69 s
inline constexpr uint8_t kMaxAckTimeout = 20;       // 4.3 s; also the length of TIMEWAIT

struct AgentConfig {
  uint8_t slot = 1;  // the top byte of every communication ID of this agent
  SipKey secret{};   // communication and transaction IDs derive from it
  uint64_t ca_guid = 0;
  uint8_t target_ack_delay = 15;
  uint8_t service_timeout = 24;  // in our MRAs to REQ: the application decides in its own time
  // In our MRAs to REP, while the queue pair is being made ready. It is short (0.27 s), because an
  // RTU that is lost after the MRA is retransmitted only when the peer retransmits its REP.
  uint8_t establish_timeout = 16;
  // The wait before the first retransmission. Each later wait is twice as long, up to the
  // standard's time. Zero: the standard's time from the start.
  Duration first_retry = milliseconds(250);
  uint32_t max_connections = 1u << 16;  // including those in TIMEWAIT
};

// Both ends of an exchange. Packets go to the GIDs; programs see the IP addresses (IPv4 mapped) and
// ports.
struct Addresses {
  wire::Gid local_gid;
  wire::Gid peer_gid;
  wire::Gid local_ip;
  wire::Gid peer_ip;
  uint16_t local_port = 0;
  uint16_t peer_port = 0;
  uint64_t service_id = 0;
};

enum class QpKind : uint8_t { Rc, Uc, Xrc };

struct Ece {
  uint32_t vendor_id = 0;
  uint32_t options = 0;
};

struct ConnectParameters {
  // addresses.service_id names the service and determines all ports except the local one.
  Addresses addresses;
  QpKind qp_kind = QpKind::Rc;
  wire::Qpn qpn;
  wire::Psn starting_psn{0};  // the first PSN that the peer sends
  uint8_t responder_resources = 0;
  uint8_t initiator_depth = 0;
  uint8_t retry_count = 7;
  uint8_t rnr_retry_count = 7;
  bool flow_control = false;
  bool srq = false;
  uint16_t pkey = 0xFFFF;
  wire::Mtu mtu = wire::Mtu::k1024;
  uint32_t flow_label = 0;
  uint8_t traffic_class = 0;
  uint8_t hop_limit = 64;
  uint8_t ack_timeout = 17;       // twice the packet lifetime
  uint8_t response_timeout = 20;  // the time within which either CM replies
  uint8_t max_cm_retries = 15;
  Ece ece;
  std::span<const std::byte> private_data;  // at most kMaxConnectPrivateBytes
};
inline constexpr size_t kMaxConnectPrivateBytes = Req::kPrivateBytes - IpHeader::kBytes;

struct AcceptParameters {
  wire::Qpn qpn;
  wire::Psn starting_psn{0};  // the first PSN that the peer sends
  uint8_t responder_resources = 0;
  uint8_t initiator_depth = 0;
  uint8_t rnr_retry_count = 7;
  bool flow_control = false;
  bool srq = false;
  Ece ece;
  std::span<const std::byte> private_data;  // at most Rep::kPrivateBytes
};

struct SidrParameters {
  Addresses addresses;
  uint16_t pkey = 0xFFFF;
  uint8_t traffic_class = 0;
  uint8_t response_timeout = 20;
  uint8_t max_cm_retries = 15;
  std::span<const std::byte> private_data;  // at most kMaxSidrPrivateBytes
};
inline constexpr size_t kMaxSidrPrivateBytes = SidrReq::kPrivateBytes - IpHeader::kBytes;

struct SidrReply {
  SidrStatus status = SidrStatus::Success;
  wire::Qpn qpn;
  uint32_t qkey = 0;
  Ece ece;
  std::span<const std::byte> private_data;  // at most SidrRep::kPrivateBytes
};

enum class Family : uint8_t { Both, Ipv4, Ipv6 };

struct ListenParameters {
  uint64_t service_id = 0;
  std::optional<wire::Gid> address{};  // none: every address of the family
  Family family = Family::Both;
  uint32_t backlog = 128;  // limit of requests that the application has not taken yet
};

// The agreed parameters of two queue pairs, from this side's point of view: remote_* are the
// peer's; responder_resources and initiator_depth are our limits.
struct ConnectionInfo {
  Addresses addresses;
  bool active = false;  // this side sent the REQ
  QpKind qp_kind = QpKind::Rc;
  wire::Qpn local_qpn;
  wire::Psn rq_psn{0};  // the peer's first PSN; this side chose it
  wire::Qpn remote_qpn;
  wire::Psn sq_psn{0};  // our first PSN; the peer chose it
  uint64_t remote_ca_guid = 0;
  uint8_t responder_resources = 0;
  uint8_t initiator_depth = 0;
  uint8_t retry_count = 0;
  uint8_t rnr_retry_count = 0;
  bool flow_control = false;
  bool remote_srq = false;
  uint16_t pkey = 0xFFFF;
  wire::Mtu mtu = wire::Mtu::k1024;
  uint32_t flow_label = 0;
  uint8_t traffic_class = 0;
  uint8_t hop_limit = 64;
  uint8_t ack_timeout = 0;
  uint8_t target_ack_delay = 0;
  Ece remote_ece;
};

// A SIDR exchange, from this side's point of view.
struct SidrInfo {
  Addresses addresses;
  bool active = false;
  uint16_t pkey = 0xFFFF;
  uint8_t traffic_class = 0;
};

}  // namespace verbena::cm

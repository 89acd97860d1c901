// What the owner of an agent tells it, and what it can ask about a connection.
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

// Times in CM messages are exponents: 4.096 us * 2^value.
constexpr Duration iba_time(uint8_t exponent) { return nanoseconds(int64_t{4096} << exponent); }

inline constexpr uint8_t kMostRetries = 15;  // what a REQ can say

// A peer names times for us to wait. These bound how long it can make us keep its state.
inline constexpr uint8_t kMaxResponseTimeout = 22;  // 17 s
inline constexpr uint8_t kMaxServiceTimeout = 24;   // 69 s
inline constexpr uint8_t kMaxAckTimeout = 20;       // 4.3 s; also the length of TIMEWAIT

struct AgentConfig {
  uint8_t slot = 1;  // the top byte of every communication id this agent gives out
  SipKey secret{};   // communication and transaction ids derive from it
  uint64_t ca_guid = 0;
  uint8_t target_ack_delay = 15;
  uint8_t service_timeout = 24;  // what our MRAs to REQ promise: a person's code decides
  // Those to REP: the queue pair is about to be made ready. Short, for an RTU that is lost after
  // such a promise comes again only when the peer repeats its REP. 0.27 s.
  uint8_t establish_timeout = 16;
  // The first retransmission; each later one waits twice as long, up to the standard's time. Zero:
  // the standard's time at once.
  Duration first_retry = milliseconds(250);
  uint32_t max_connections = 1u << 16;  // those that end (TIMEWAIT) included
};

// Both ends of an exchange. GIDs are where packets go; IP addresses (IPv4 mapped) and ports are
// what programs see.
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
  // addresses.service_id names the service; the ports but the local one follow from it.
  Addresses addresses;
  QpKind qp_kind = QpKind::Rc;
  wire::Qpn qpn;
  wire::Psn starting_psn{0};  // of what the peer will send
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
  uint8_t ack_timeout = 17;       // twice the packet life time
  uint8_t response_timeout = 20;  // how long either CM may take to answer
  uint8_t max_cm_retries = 15;
  Ece ece;
  std::span<const std::byte> private_data;  // at most kMaxConnectPrivateBytes
};
inline constexpr size_t kMaxConnectPrivateBytes = Req::kPrivateBytes - IpHeader::kBytes;

struct AcceptParameters {
  wire::Qpn qpn;
  wire::Psn starting_psn{0};  // of what the peer will send
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

struct SidrAnswer {
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
  uint32_t backlog = 128;  // requests that the application has not taken yet
};

// What is agreed between two queue pairs, as this side sees it: remote_* is the peer's,
// responder_resources and initiator_depth are what we may use.
struct ConnectionInfo {
  Addresses addresses;
  bool active = false;  // we asked
  QpKind qp_kind = QpKind::Rc;
  wire::Qpn local_qpn;
  wire::Psn rq_psn{0};  // where the peer begins to send: we told it
  wire::Qpn remote_qpn;
  wire::Psn sq_psn{0};  // where we begin to send: the peer told us
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

// An exchange about a datagram service, as this side sees it.
struct SidrInfo {
  Addresses addresses;
  bool active = false;
  uint16_t pkey = 0xFFFF;
  uint8_t traffic_class = 0;
};

}  // namespace verbena::cm

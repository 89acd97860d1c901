// The attributes of modify_qp and query_qp, and which of them each state transition requires or
// permits.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "core/types.h"

namespace verbena::core {

// Attribute mask bits, as ibv_qp_attr_mask.
namespace qp_attr {
inline constexpr uint32_t kState = 1u << 0;
inline constexpr uint32_t kCurState = 1u << 1;
inline constexpr uint32_t kEnSqdAsyncNotify = 1u << 2;
inline constexpr uint32_t kAccessFlags = 1u << 3;
inline constexpr uint32_t kPkeyIndex = 1u << 4;
inline constexpr uint32_t kPort = 1u << 5;
inline constexpr uint32_t kQkey = 1u << 6;
inline constexpr uint32_t kAddressVector = 1u << 7;
inline constexpr uint32_t kPathMtu = 1u << 8;
inline constexpr uint32_t kTimeout = 1u << 9;
inline constexpr uint32_t kRetryCount = 1u << 10;
inline constexpr uint32_t kRnrRetry = 1u << 11;
inline constexpr uint32_t kRqPsn = 1u << 12;
inline constexpr uint32_t kMaxRdAtomic = 1u << 13;
inline constexpr uint32_t kAlternatePath = 1u << 14;
inline constexpr uint32_t kMinRnrTimer = 1u << 15;
inline constexpr uint32_t kSqPsn = 1u << 16;
inline constexpr uint32_t kMaxDestRdAtomic = 1u << 17;
inline constexpr uint32_t kPathMigState = 1u << 18;
inline constexpr uint32_t kCapabilities = 1u << 19;
inline constexpr uint32_t kDestQpn = 1u << 20;
inline constexpr uint32_t kRateLimit = 1u << 25;
}  // namespace qp_attr

struct AddressVector {
  wire::Gid destination;
  uint32_t flow_label = 0;
  uint16_t dlid = 0;
  uint8_t sgid_index = 0;
  uint8_t hop_limit = 0;
  uint8_t traffic_class = 0;
  uint8_t sl = 0;
  uint8_t src_path_bits = 0;
  uint8_t static_rate = 0;
  uint8_t port = 0;
  bool is_global = false;
};

// The destination of datagrams, created once and used by any number of requests. Its owner has
// opened the path.
struct AddressHandle {
  uint32_t pd = 0;
  AddressVector address;
  wire::PathId path{};
  wire::Gid source_gid;
  wire::Mtu mtu = wire::Mtu::k1024;  // the longest datagram: the port's active MTU
};

struct QpAttributes {
  QpState state = QpState::Reset;
  QpState current_state = QpState::Reset;
  bool sqd_notify = false;
  uint32_t access = 0;
  uint16_t pkey_index = 0;
  uint8_t port = 0;
  uint32_t qkey = 0;
  AddressVector address;
  wire::Mtu path_mtu = wire::Mtu::k1024;
  uint8_t timeout = 0;
  uint8_t retry_count = 0;
  uint8_t rnr_retry = 0;
  uint8_t min_rnr_timer = 0;
  uint32_t rq_psn = 0;
  uint32_t sq_psn = 0;
  uint32_t max_read_atomic = 0;
  uint32_t max_dest_read_atomic = 0;
  wire::Qpn dest_qpn;
  uint32_t rate_limit = 0;

  // The engine's owner fills these when the address vector is set: the open path, and the source
  // address of its packets.
  wire::PathId path{};
  wire::Gid source_gid;
  uint32_t path_packet_bytes = 0;  // the packet payload size there, if larger than path_mtu; or 0
  bool is_on_this_host = false;    // the peer: no network lies between
};

// EINVAL if `from` -> `to` is no transition of such a queue pair, a required attribute is missing,
// or an attribute is given that the transition does not permit.
Status check_transition(QpType type, QpState from, QpState to, uint32_t mask);

}  // namespace verbena::core

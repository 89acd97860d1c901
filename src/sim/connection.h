// How two queue pairs are connected: the calls of modify_qp that take each of them to RTS.
#pragma once

#include <array>
#include <cstdint>

#include "core/qp_attributes.h"

namespace verbena::sim {

struct ConnectionShape {
  wire::Mtu mtu = wire::Mtu::k1024;
  uint32_t psn_a = 0;  // a's first request
  uint32_t psn_b = 0;
  uint32_t read_depth_a = 4;  // outstanding READs and atomics of a at most
  uint32_t read_depth_b = 4;
  uint8_t timeout = 9;  // 2 ms
  uint8_t retry_count = 7;
  uint8_t rnr_retry = 7;
  uint8_t min_rnr_timer = 5;  // 60 us
  uint32_t access = core::kRemoteWrite | core::kRemoteRead | core::kRemoteAtomic |
                    core::kFlushGlobal | core::kFlushPersistent;
};

// One end of a connection.
struct ConnectionEnd {
  wire::Gid source{};
  wire::Gid destination{};
  wire::PathId path{};
  uint32_t path_packet_bytes = 0;  // see QpAttributes
  wire::Qpn peer{};
  uint32_t sq_psn = 0;
  uint32_t rq_psn = 0;
  uint32_t read_depth = 4;
  uint32_t peer_read_depth = 4;
};

struct Transition {
  core::QpAttributes attr;
  uint32_t mask = 0;
};

// From RESET to INIT, RTR and RTS.
std::array<Transition, 3> transitions_to_rts(core::QpType type, const ConnectionEnd& end,
                                             const ConnectionShape& shape);

}  // namespace verbena::sim

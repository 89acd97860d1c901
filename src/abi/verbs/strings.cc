// Names of enumerators. The texts are those of rdma-core: scripts search logs for them.
#include <array>
#include <cstddef>

#include "abi/verbs/objects.h"
#include "abi/verbs/private_nodes.h"

namespace verbena::abi {
namespace {

template <size_t kSize>
const char* pick(const std::array<const char*, kSize>& names, int value) {
  if (value < 0 || static_cast<size_t>(value) >= kSize) return "unknown";
  return names[static_cast<size_t>(value)];
}

constexpr std::array kNodeTypes = {
    "unknown",           "InfiniBand channel adapter",
    "InfiniBand switch", "InfiniBand router",
    "iWARP NIC",         "usNIC",
    "usNIC UDP",         "unspecified",
};
static_assert(kNodeTypes.size() == IBV_NODE_UNSPECIFIED + 1);

constexpr std::array kPortStates = {
    "no state change (NOP)", "down", "init", "armed", "active", "active defer",
};
static_assert(kPortStates.size() == IBV_PORT_ACTIVE_DEFER + 1);

constexpr std::array kEventTypes = {
    "CQ error",
    "local work queue catastrophic error",
    "invalid request local work queue error",
    "local access violation work queue error",
    "communication established",
    "send queue drained",
    "path migrated",
    "path migration request error",
    "local catastrophic error",
    "port active",
    "port error",
    "LID change",
    "P_Key change",
    "SM change",
    "SRQ catastrophic error",
    "SRQ limit reached",
    "last WQE reached",
    "client reregistration",
    "GID table change",
    "WQ fatal",
};
static_assert(kEventTypes.size() == IBV_EVENT_WQ_FATAL + 1);

constexpr std::array kWcStatuses = {
    "success",
    "local length error",
    "local QP operation error",
    "local EE context operation error",
    "local protection error",
    "Work Request Flushed Error",
    "memory management operation error",
    "bad response error",
    "local access error",
    "remote invalid request error",
    "remote access error",
    "remote operation error",
    "transport retry counter exceeded",
    "RNR retry counter exceeded",
    "local RDD violation error",
    "remote invalid RD request",
    "aborted error",
    "invalid EE context number",
    "invalid EE context state",
    "fatal error",
    "response timeout error",
    "general error",
    "TM error",
    "TM software rendezvous",
};
static_assert(kWcStatuses.size() == IBV_WC_TM_RNDV_INCOMPLETE + 1);

constexpr std::array kWrOpcodes = {
    "rdma-write",
    "rdma-write-with-imm",
    "send",
    "send-with-imm",
    "rdma-read",
    "atomic-cmp-and-swp",
    "atomic-fetch-and-add",
    "local-inv",
    "bind-mw",
    "send-with-inv",
    "tso",
    "driver1",
    "unknown",
    "unknown",
    "flush",
    "atomic-write",
};
static_assert(kWrOpcodes.size() == IBV_WR_ATOMIC_WRITE + 1);

}  // namespace
}  // namespace verbena::abi

using namespace verbena::abi;

extern "C" {

VERBENA_EXPORT const char* ibv_node_type_str(ibv_node_type type) { return pick(kNodeTypes, type); }
VERBENA_EXPORT const char* ibv_port_state_str(ibv_port_state state) {
  return pick(kPortStates, state);
}
VERBENA_EXPORT const char* ibv_event_type_str(ibv_event_type event) {
  return pick(kEventTypes, event);
}
VERBENA_EXPORT const char* ibv_wc_status_str(ibv_wc_status status) {
  return pick(kWcStatuses, status);
}
// Only newer headers declare it; drivers use it in their logs.
const char* private_ibv_wr_opcode_str(ibv_wr_opcode opcode) {
  return pick(kWrOpcodes, static_cast<int>(opcode));
}

}  // extern "C"

VERBENA_SINCE_34(ibv_wr_opcode_str)

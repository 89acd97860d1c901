// The types of verbs, without any C header. Numeric values equal those of <infiniband/verbs.h>; the
// ABI layer asserts it, so that translating is a cast.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/time.h"
#include "wire/identifiers.h"
#include "wire/packet_io.h"

namespace verbena::core {

enum class QpState : uint8_t { Reset = 0, Init, Rtr, Rts, Sqd, Sqe, Error };

enum class QpType : uint8_t { Rc = 2, Uc = 3, Ud = 4, XrcSend = 9, XrcReceive = 10 };

enum class SendOp : uint8_t {
  Write = 0,
  WriteImm = 1,
  Send = 2,
  SendImm = 3,
  Read = 4,
  CompareSwap = 5,
  FetchAdd = 6,
  LocalInvalidate = 7,
  BindWindow = 8,
  SendInvalidate = 9,
  Flush = 14,
  AtomicWrite = 15,
};

// Operations with a response of their own and a responder resource; max_rd_atomic limits how many
// are outstanding. The response to ATOMIC WRITE and FLUSH is that of a READ of zero bytes.
constexpr bool is_read_or_atomic(SendOp op) {
  return op == SendOp::Read || op == SendOp::CompareSwap || op == SendOp::FetchAdd ||
         op == SendOp::AtomicWrite || op == SendOp::Flush;
}
// Returns the previous value.
constexpr bool is_atomic(SendOp op) { return op == SendOp::CompareSwap || op == SendOp::FetchAdd; }
// Executed without a packet.
constexpr bool is_local(SendOp op) {
  return op == SendOp::LocalInvalidate || op == SendOp::BindWindow;
}
// SEND or WRITE of any kind: has a payload and gets an ACK.
constexpr bool is_message(SendOp op) { return !is_local(op) && !is_read_or_atomic(op); }
const char* name_of(SendOp op);
// Transports without ACKs and retransmission.
constexpr bool is_unreliable(QpType type) { return type == QpType::Uc || type == QpType::Ud; }

// Send flags, as ibv_send_flags.
inline constexpr uint32_t kFence = 1;
inline constexpr uint32_t kSignaled = 2;
inline constexpr uint32_t kSolicited = 4;
inline constexpr uint32_t kInline = 8;

// Access rights, as ibv_access_flags.
inline constexpr uint32_t kLocalWrite = 1;
inline constexpr uint32_t kRemoteWrite = 2;
inline constexpr uint32_t kRemoteRead = 4;
inline constexpr uint32_t kRemoteAtomic = 8;
inline constexpr uint32_t kWindowBind = 16;
inline constexpr uint32_t kZeroBased = 32;
inline constexpr uint32_t kFlushGlobal = 1u << 8;
inline constexpr uint32_t kFlushPersistent = 1u << 9;

enum class WcStatus : uint8_t {
  Success = 0,
  LocalLength = 1,
  LocalQpOperation = 2,
  LocalProtection = 4,
  Flushed = 5,
  WindowBind = 6,
  BadResponse = 7,
  LocalAccess = 8,
  RemoteInvalidRequest = 9,
  RemoteAccess = 10,
  RemoteOperation = 11,
  RetryExceeded = 12,
  RnrRetryExceeded = 13,
  Fatal = 19,
};

enum class WcOpcode : uint8_t {
  Send = 0,
  Write = 1,
  Read = 2,
  CompareSwap = 3,
  FetchAdd = 4,
  BindWindow = 5,
  LocalInvalidate = 6,
  Flush = 8,
  AtomicWrite = 9,
  Receive = 128,
  ReceiveWriteImm = 129,
};

// Completion flags, as ibv_wc_flags.
inline constexpr uint8_t kWcGrh = 1;
inline constexpr uint8_t kWcWithImmediate = 2;
inline constexpr uint8_t kWcWithInvalidate = 8;
inline constexpr uint8_t kWcFlags = 31;
// Above the flags, for datagrams: the type of the network header in front of the payload.
inline constexpr int kWcNetworkShift = 5;
inline constexpr uint8_t kWcIpv6 = 1 << kWcNetworkShift;
inline constexpr uint8_t kWcIpv4 = 2 << kWcNetworkShift;

struct Completion {
  uint64_t wr_id = 0;
  WcStatus status = WcStatus::Success;
  WcOpcode opcode = WcOpcode::Send;
  uint8_t flags = 0;
  bool solicited = false;  // wakes a queue armed for solicited events only
  uint32_t byte_count = 0;
  uint32_t immediate_or_rkey = 0;  // immediate in host order
  // Not adjacent: a compiler would merge the loads, and a load wider than the stores stalls.
  wire::Qpn qpn;
  uint32_t vendor_error = 0;
  wire::Qpn source_qpn;
  Instant time;  // the turn in which it completed; QpCommon::complete() fills it
};

// An area of registered memory, as ibv_sge.
struct Sge {
  uint64_t address = 0;
  uint32_t length = 0;
  uint32_t lkey = 0;
};

inline constexpr uint32_t kMaxSges = 32;
inline constexpr uint32_t kMaxMessageBytes = 1u << 31;
inline constexpr uint32_t kMaxInlineBytes = 1024;
inline constexpr uint32_t kMaxReadAtomic = 128;

struct WindowBinding {
  uint32_t region_lkey = 0;
  uint64_t address = 0;
  uint64_t length = 0;
  uint32_t access = 0;
  uint32_t new_rkey = 0;
};

struct AddressHandle;

// The destination of a UD message.
struct DatagramTarget {
  const AddressHandle* handle = nullptr;
  wire::Qpn qpn;
  uint32_t qkey = 0;
};

// As wire::FlushEth. The range of a FLUSH begins at remote_address.
struct FlushTarget {
  uint32_t length = 0;
  uint8_t placement = 0;
  uint8_t selectivity = 0;
};

// One work request for the send queue. Inline requests need no lkeys.
struct SendRequest {
  uint64_t wr_id = 0;
  SendOp op = SendOp::Send;
  uint32_t flags = 0;
  std::span<const Sge> sges;
  uint32_t immediate_or_rkey = 0;  // immediate in host order; rkey to invalidate
  uint64_t remote_address = 0;
  uint32_t rkey = 0;
  uint64_t compare_add = 0;
  uint64_t swap = 0;
  uint32_t window_rkey = 0;  // BindWindow: the window's present key
  WindowBinding bind;
  DatagramTarget datagram;   // UD
  uint32_t remote_srqn = 0;  // XRC
  FlushTarget flush;
};

struct ReceiveRequest {
  uint64_t wr_id = 0;
  std::span<const Sge> sges;
};

}  // namespace verbena::core

// Sentences for completions in error, because a status number explains nothing.
#include "runtime/failure_text.h"

#include <arpa/inet.h>

#include <cinttypes>
#include <cstdio>

#include "wire/opcode.h"

namespace verbena::runtime {
namespace {

using core::WcStatus;

struct Words {
  const char* what;
  const char* cause;
};

// For requests of the peer that this process refused.
Words words_as_responder(const core::QpFailure& f) {
  switch (f.status) {
    case WcStatus::RemoteAccess:
      return {"the peer may not access this memory",
              "the peer has a wrong or outdated rkey, the range exceeds the MR, or the local MR or "
              "QP lacks the remote access flag"};
    case WcStatus::LocalLength:
      return {"the message is longer than the receive buffer",
              "post larger receives, or send shorter messages"};
    case WcStatus::LocalProtection:
      return {"the local receive buffer is not registered for it",
              "the lkey of the receive is wrong, its MR is deregistered or lacks "
              "IBV_ACCESS_LOCAL_WRITE"};
    default:
      return {"the request is invalid",
              "more READs or atomics in flight than the local max_dest_rd_atomic, a different path "
              "MTU on the two sides, or a misaligned atomic"};
  }
}

Words words_for(const core::QpFailure& f) {
  if (f.as_responder) return words_as_responder(f);
  switch (f.status) {
    case WcStatus::RetryExceeded:
      if (f.memory_ended) {
        return {"the memory that was shared with the peer is closed",
                "the peer's process has ended or closed its device"};
      }
      return {
          "no response",
          "the peer has ended, its QP is not ready, a firewall drops UDP port 4791, or the path "
          "MTU is larger than the network supports"};
    case WcStatus::RnrRetryExceeded:
      return {"the peer has no receive posted and rnr_retry is used up",
              "the peer posts receives too late or too few; post more, or raise rnr_retry "
              "(7 = unlimited) and min_rnr_timer"};
    case WcStatus::RemoteAccess:
      return {
          "the peer refused access",
          "the rkey is wrong or its MR is deregistered, the range exceeds the MR, or the MR or QP "
          "lacks the remote access flag"};
    case WcStatus::RemoteInvalidRequest:
      return {
          "the peer rejected the request as invalid",
          "a SEND longer than the peer's receive buffer, more READs or atomics in flight than its "
          "max_dest_rd_atomic, or a different path MTU on the two sides"};
    case WcStatus::RemoteOperation:
      return {"the peer could not complete it",
              "the peer's receive buffers are not registered with the access it needs"};
    case WcStatus::LocalProtection:
      return {"the local buffer is not registered for it",
              "the lkey is wrong, its MR is deregistered, belongs to another PD, or lacks "
              "IBV_ACCESS_LOCAL_WRITE"};
    case WcStatus::LocalLength:
      return {"the message is longer than the receive buffer",
              "post larger receives, or send shorter messages"};
    case WcStatus::BadResponse:
      return {"the response does not match the request",
              "a broken or different RoCE implementation at the peer"};
    case WcStatus::LocalQpOperation:
      return {"the operation could not be done",
              "the key to invalidate is not a bound type 2 window"};
    case WcStatus::WindowBind:
      return {
          "the window could not be bound",
          "the MR lacks IBV_ACCESS_MW_BIND, the range exceeds it, or the window is already bound"};
    case WcStatus::Fatal:
      return {"its completion queue is full", "make the CQ larger or poll it more often"};
    default:
      return {"failed", "unknown"};
  }
}

const char* transport_of(core::QpType type) {
  switch (type) {
    case core::QpType::Rc:
      return "";  // the usual type is not mentioned
    case core::QpType::Uc:
      return "UC ";
    case core::QpType::Ud:
      return "UD ";
    case core::QpType::XrcSend:
    case core::QpType::XrcReceive:
      return "XRC ";
  }
  return "";
}

// A UD queue pair has no fixed peer.
std::string name_of_qp(const core::QpFailure& f) {
  char text[128];
  if (f.type == core::QpType::Ud) {
    std::snprintf(text, sizeof text, "UD QP 0x%06x", f.qpn.value());
  } else {
    std::snprintf(text, sizeof text, "%sQP 0x%06x connected to QP 0x%06x at %s",
                  transport_of(f.type), f.qpn.value(), f.peer_qpn.value(), to_text(f.peer).c_str());
  }
  return text;
}

const char* state_of(const core::QpFailure& f) {
  const bool goes_on_receiving = core::is_unreliable(f.type) && f.op && !f.as_responder;
  return goes_on_receiving ? "has stopped sending (state SQE)" : "is in error";
}

bool has_remote_address(core::SendOp op) {
  return core::is_read_or_atomic(op) || op == core::SendOp::Write || op == core::SendOp::WriteImm;
}

std::string request_of(const core::QpFailure& f) {
  char text[240];
  if (f.as_responder && core::is_unreliable(f.type)) {
    char sender[80] = "";
    if (f.type == core::QpType::Ud) {
      std::snprintf(sender, sizeof sender, " of QP 0x%06x at %s", f.peer_qpn.value(),
                    to_text(f.peer).c_str());
    }
    std::snprintf(text, sizeof text, "could not receive the %s%s (PSN %u, %u bytes)",
                  wire::name_of(f.packet_opcode), sender, f.psn, f.length);
  } else if (f.as_responder) {
    std::snprintf(text, sizeof text,
                  "refused the peer's %s (PSN %u, address 0x%" PRIx64 ", rkey 0x%x, %u bytes)",
                  wire::name_of(f.packet_opcode), f.psn, f.remote_address, f.rkey, f.length);
  } else if (f.op && has_remote_address(*f.op)) {
    std::snprintf(text, sizeof text,
                  "%s of %u bytes failed (wr_id 0x%" PRIx64 ", PSN %u), to address 0x%" PRIx64
                  " with rkey 0x%x",
                  core::name_of(*f.op), f.length, f.wr_id, f.psn, f.remote_address, f.rkey);
  } else if (f.op) {
    std::snprintf(text, sizeof text,
                  "%s of %u bytes failed (wr_id 0x%" PRIx64 ", PSN %u, no remote address)",
                  core::name_of(*f.op), f.length, f.wr_id, f.psn);
  } else {
    std::snprintf(text, sizeof text, "failed");
  }
  return text;
}

}  // namespace

std::string to_text(const wire::Gid& gid) {
  char text[INET6_ADDRSTRLEN] = "?";
  if (gid.is_ipv4()) {
    inet_ntop(AF_INET, gid.bytes.data() + 12, text, sizeof text);
  } else {
    inet_ntop(AF_INET6, gid.bytes.data(), text, sizeof text);
  }
  return text;
}

std::string describe(const core::QpFailure& f) {
  const Words words = words_for(f);
  char tries[48] = "";
  if (f.retries != 0) std::snprintf(tries, sizeof tries, " after %u tries", f.retries);
  const bool sent_nak = f.as_responder && !core::is_unreliable(f.type);
  char line[900];
  std::snprintf(line, sizeof line, "%s %s: %s: %s%s (%s). Usual cause: %s.", name_of_qp(f).c_str(),
                state_of(f), request_of(f).c_str(), words.what, tries,
                sent_nak ? "a NAK was sent" : "completion in error", words.cause);
  return line;
}

}  // namespace verbena::runtime

// The words for operations, responses and connection messages.
#include "tools/explain/sentences.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "cm/messages.h"
#include "core/loss_recovery.h"
#include "wire/traffic_class.h"

namespace verbena::explain {
namespace {

using wire::Position;
using wire::Verb;

const char* position_of(const wire::OpcodeInfo& op) {
  switch (op.position) {
    case Position::First:
      return " (first)";
    case Position::Middle:
      return " (middle)";
    case Position::Last:
      return " (last)";
    case Position::Only:
      break;
  }
  return "";
}

std::string bytes_of(const wire::Packet& p, const Remarks& remarks) {
  const size_t n = remarks.payload_bytes;
  if (p.op.position == Position::Only) return fmt::format("{} bytes", n);
  if (!remarks.offset) return fmt::format("{} bytes", n);
  return fmt::format("bytes {} to {}", *remarks.offset, *remarks.offset + n);
}

std::string target_of(uint64_t address, uint32_t rkey) {
  return fmt::format("0x{:x} under rkey 0x{:x}", address, rkey);
}

const char* nak_reason(uint8_t code) {
  switch (static_cast<wire::NakCode>(code)) {
    case wire::NakCode::SequenceError:
      return "PSN sequence error";
    case wire::NakCode::InvalidRequest:
      return "invalid request";
    case wire::NakCode::RemoteAccess:
      return "remote access error: the rkey, the range or the permission is wrong";
    case wire::NakCode::RemoteOperational:
      return "remote operational error";
    case wire::NakCode::InvalidRdRequest:
      return "invalid RD request";
  }
  return "reserved code";
}

std::string outstanding_of(const Remarks& remarks) {
  if (remarks.requests == nullptr) return "";
  const uint32_t qpn = remarks.requests->id.qpn;
  if (remarks.outstanding == 0) {
    return fmt::format("; all requests to QP 0x{:06x} have a response", qpn);
  }
  return fmt::format("; {} to QP 0x{:06x} without a response", counted(remarks.outstanding, "PSN"),
                     qpn);
}

std::string acknowledgement(const wire::Packet& p, const Remarks& remarks) {
  const uint32_t psn = p.bth.psn.value();
  switch (p.aeth.kind) {
    case wire::AckKind::Ack:
      return fmt::format("ACK of everything up to PSN {}, MSN {}{}", psn, p.aeth.msn,
                         outstanding_of(remarks));
    case wire::AckKind::RnrNak:
      return fmt::format("RNR NAK: no receive was ready for PSN {}; try again after {:.2f} ms", psn,
                         static_cast<double>(core::rnr_delay(p.aeth.value).ns) / 1e6);
    case wire::AckKind::Nak:
      return static_cast<wire::NakCode>(p.aeth.value) == wire::NakCode::SequenceError
                 ? fmt::format("NAK: PSN sequence error, expects PSN {}", psn)
                 : fmt::format("NAK of PSN {}: {}", psn, nak_reason(p.aeth.value));
    case wire::AckKind::Reserved:
      break;
  }
  return fmt::format("reserved acknowledgement of PSN {}", psn);
}

const char* connection_message(cm::Attribute attribute) {
  switch (attribute) {
    case cm::Attribute::Req:
      return "REQ: asks for a connection";
    case cm::Attribute::Mra:
      return "MRA: asks for more time";
    case cm::Attribute::Rej:
      return "REJ: rejects the connection";
    case cm::Attribute::Rep:
      return "REP: accepts the connection";
    case cm::Attribute::Rtu:
      return "RTU: ready to use";
    case cm::Attribute::Dreq:
      return "DREQ: asks to disconnect";
    case cm::Attribute::Drep:
      return "DREP: disconnected";
    case cm::Attribute::SidrReq:
      return "SIDR REQ: asks for the queue pair of a service";
    case cm::Attribute::SidrRep:
      return "SIDR REP: names the queue pair of a service";
    case cm::Attribute::Lap:
      return "LAP: offers another path";
    case cm::Attribute::Apr:
      return "APR: responds to the offer of another path";
  }
  return "an unknown connection message";
}

bool is_management(const wire::Packet& p) {
  return p.bth.destination == wire::kManagementQpn && p.payload.size() >= cm::kMadBytes;
}

std::string management(const wire::Packet& p) {
  cm::Mad mad;
  std::copy_n(p.payload.begin(), mad.size(), mad.begin());
  const cm::MadHeader header = cm::MadHeader::load(mad.data());
  if (header.management_class != cm::kCmClass) {
    return fmt::format("management datagram of class 0x{:02x}", header.management_class);
  }
  std::string text = connection_message(header.attribute);
  if (header.attribute == cm::Attribute::Req) {
    const cm::Req req = cm::Req::load(mad);
    text += fmt::format(", for QP 0x{:06x}, first PSN {}", req.local_qpn.value(),
                        req.starting_psn.value());
  } else if (header.attribute == cm::Attribute::Rep) {
    const cm::Rep rep = cm::Rep::load(mad);
    text += fmt::format(", by QP 0x{:06x}, first PSN {}", rep.local_qpn.value(),
                        rep.starting_psn.value());
  } else if (header.attribute == cm::Attribute::Rej) {
    text += fmt::format(", reason {}", static_cast<unsigned>(cm::Rej::load(mad).reason));
  }
  return text;
}

std::string immediate_of(const wire::Packet& p) {
  std::string text;
  if (p.op.has_immediate) text += fmt::format(", immediate 0x{:08x}", p.immediate);
  if (p.op.has_invalidate) text += fmt::format(", invalidates rkey 0x{:x}", p.invalidate_rkey);
  return text;
}

std::string request(const wire::Packet& p, const Remarks& remarks) {
  const uint32_t psn = p.bth.psn.value();
  switch (p.op.verb) {
    case Verb::Send:
      return fmt::format("SEND{} PSN {}, {}{}", position_of(p.op), psn, bytes_of(p, remarks),
                         immediate_of(p));
    case Verb::Write:
      return fmt::format("WRITE{} PSN {}, {}{}{}", position_of(p.op), psn, bytes_of(p, remarks),
                         p.op.has_reth ? fmt::format(" of {} to {}", p.reth.length,
                                                     target_of(p.reth.address, p.reth.rkey))
                                       : "",
                         immediate_of(p));
    case Verb::ReadRequest:
      return fmt::format("READ request PSN {}, {} bytes from {}", psn, p.reth.length,
                         target_of(p.reth.address, p.reth.rkey));
    case Verb::CompareSwap:
      return fmt::format("compare and swap PSN {}: writes {} to {} if the value is {}", psn,
                         p.atomic.swap_or_add, target_of(p.atomic.address, p.atomic.rkey),
                         p.atomic.compare);
    case Verb::FetchAdd:
      return fmt::format("fetch and add PSN {}: adds {} to {}", psn, p.atomic.swap_or_add,
                         target_of(p.atomic.address, p.atomic.rkey));
    case Verb::Flush:
      return fmt::format("FLUSH PSN {}, {} bytes at {}", psn, p.reth.length,
                         target_of(p.reth.address, p.reth.rkey));
    case Verb::AtomicWrite:
      return fmt::format("atomic WRITE PSN {} to {}", psn, target_of(p.reth.address, p.reth.rkey));
    default:
      return wire::name_of(p.bth.opcode);
  }
}

std::string response(const wire::Packet& p, const Remarks& remarks) {
  switch (p.op.verb) {
    case Verb::Ack:
      return acknowledgement(p, remarks);
    case Verb::AtomicAck:
      return fmt::format("atomic response PSN {}, the value was {}{}", p.bth.psn.value(),
                         p.original, outstanding_of(remarks));
    case Verb::ReadResponse:
      return fmt::format("READ response{} PSN {}, {}{}", position_of(p.op), p.bth.psn.value(),
                         bytes_of(p, remarks), outstanding_of(remarks));
    default:
      return wire::name_of(p.bth.opcode);
  }
}

}  // namespace

std::string counted(uint64_t count, const char* noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string address_of(const wire::Gid& gid) {
  char text[INET6_ADDRSTRLEN] = "";
  const bool v4 = gid.is_ipv4();
  ::inet_ntop(v4 ? AF_INET : AF_INET6, gid.bytes.data() + (v4 ? 12 : 0), text, sizeof text);
  return text;
}

std::string sentence_of(const wire::Packet& p, const Remarks& remarks) {
  if (p.op.verb == Verb::Cnp) return "CNP: packets were marked; send more slowly";
  if (is_management(p)) return management(p);
  if (p.op.direction == wire::Direction::Response) return response(p, remarks);
  std::string text = request(p, remarks);
  if (p.op.transport == wire::Transport::Ud) {
    text = fmt::format("UD {}, from QP 0x{:06x}", text, p.deth.source.value());
  } else if (p.op.transport == wire::Transport::Uc) {
    text = "UC " + text;
  } else if (p.op.transport == wire::Transport::Xrc) {
    text = fmt::format("XRC {}, for SRQ 0x{:06x}", text, p.xrc_srqn);
  }
  if (p.bth.solicited) text += ", solicited";
  if (remarks.piggybacked)
    text += fmt::format(", piggybacks the ACK up to PSN {}", (*remarks.piggybacked).value());
  if (p.bth.ack_request) text += ", asks for an ACK";
  return text;
}

std::string remarks_of(const Datagram& d, const Remarks& remarks) {
  std::string text;
  const auto add = [&](const std::string& remark) {
    text += text.empty() ? remark : "; " + remark;
  };
  if (!d.icrc_is_good) add("ICRC is wrong: the receiver drops it");
  if (remarks.is_retransmission)
    add(remarks.first_copy_is_missing ? "retransmission; the first copy is not in the capture"
                                      : "retransmission");
  if (remarks.missing == 1) add("one PSN is missing in the capture");
  if (remarks.missing > 1) add(fmt::format("{} PSNs are missing in the capture", remarks.missing));
  if (wire::is_marked(d.traffic_class)) add("marked by a congested queue (CE)");
  return text;
}

bool is_trouble(const wire::Packet& p) {
  if (p.op.verb == Verb::Cnp) return true;
  if (p.op.has_aeth) return p.aeth.kind != wire::AckKind::Ack;
  return is_management(p) &&
         load_be16(p.payload.data() + 16) == static_cast<uint16_t>(cm::Attribute::Rej);
}

}  // namespace verbena::explain

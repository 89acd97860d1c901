// Delivery of datagrams. An invalid datagram is dropped and counted, without a response
// (IBA 9.8.3).
#include "core/ud_receiver.h"

#include <array>

#include "wire/icrc.h"

namespace verbena::core {
namespace {

// The IP header of the datagram, at the position where hardware puts it.
std::array<std::byte, UdReceiver::kHeaderBytes> header_area(const wire::Packet& p,
                                                            const wire::RxMeta& meta) {
  constexpr size_t kLargestHeaders = 48;
  constexpr size_t kIpv4HeaderBytes = 20;
  std::array<std::byte, kLargestHeaders> headers{};
  const size_t datagram_bytes = p.op.header_bytes + p.payload.size() + p.bth.pad + wire::kIcrcBytes;
  wire::store_ip_udp_headers({.source = meta.source, .destination = meta.destination},
                             meta.traffic_class, meta.hop_limit, datagram_bytes, headers.data());
  std::array<std::byte, UdReceiver::kHeaderBytes> area{};
  if (meta.destination.is_ipv4()) {
    std::copy_n(headers.begin(), kIpv4HeaderBytes, area.end() - kIpv4HeaderBytes);
  } else {
    std::copy_n(headers.begin(), area.size(), area.begin());
  }
  return area;
}

}  // namespace

void UdReceiver::on_request(const wire::Packet& p, const wire::RxMeta& meta) {
  if (p.deth.qkey != qp_.attr.qkey) return qp_.count(CounterId::wrong_qkey);
  const size_t bytes = kHeaderBytes + p.payload.size();
  // A datagram that is too long consumes no receive.
  if (!receives_.consume(bytes)) {
    return qp_.count(receives_.empty() ? CounterId::no_receive_posted
                                       : CounterId::receive_too_small);
  }

  const auto byte_count = static_cast<uint32_t>(bytes);
  const bool placed = place(p, meta);
  if (!placed) {
    QpFailure& f = qp_.fail(WcStatus::LocalProtection);
    f.as_responder = true;
    f.packet_opcode = p.bth.opcode;
    f.psn = p.bth.psn.value();
    f.length = byte_count;
    f.peer_qpn = p.deth.source;
    f.peer = meta.source;
    qp_.engine.raise({.kind = EventKind::QpFatal, .qp = qp_.self});
  }
  receives_.complete([&](Completion& c) {
    if (!placed) c.status = WcStatus::LocalProtection;
    c.opcode = WcOpcode::Receive;
    c.flags = static_cast<uint8_t>(kWcGrh | (meta.destination.is_ipv4() ? kWcIpv4 : kWcIpv6));
    c.byte_count = byte_count;
    c.solicited = p.bth.solicited;
    c.source_qpn = p.deth.source;
    if (p.op.has_immediate) {
      c.flags |= kWcWithImmediate;
      c.immediate_or_rkey = p.immediate;
    }
  });
}

bool UdReceiver::place(const wire::Packet& p, const wire::RxMeta& meta) {
  const auto area = header_area(p, meta);
  if (p.payload.empty()) return receives_.scatter(0, area, true);
  return receives_.scatter(0, area, false) && receives_.scatter(kHeaderBytes, p.payload, true);
}

}  // namespace verbena::core

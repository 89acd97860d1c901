// The checks of received MADs, and the sending of MADs (IBA 13.5.1).
#include "core/management_port.h"

namespace verbena::core {
namespace {

// Far above the MADs of one turn; the owner empties the queue after each turn.
constexpr size_t kMaxQueued = 4096;

}  // namespace

void ManagementPort::on_packet(const wire::Packet& p, std::span<const std::byte> bytes,
                               const wire::RxMeta& meta) {
  const auto count = [&](CounterId id) { engine_.counters.add(id); };
  if (p.bth.opcode != static_cast<uint8_t>(wire::Opcode::UdSendOnly)) {
    return count(CounterId::wrong_transport);
  }
  if ((p.bth.pkey & 0x7FFF) != 0x7FFF) return count(CounterId::wrong_pkey);
  if (p.deth.qkey != kManagementQkey) return count(CounterId::wrong_qkey);
  ManagementDatagram datagram;
  if (p.deth.source != wire::kManagementQpn || p.payload.size() != kMadBytes ||
      bytes.size() != datagram.packet.size()) {
    return count(CounterId::bad_management);
  }
  if (inbox_.size() >= kMaxQueued) return count(CounterId::management_overruns);
  datagram.meta = meta;
  std::ranges::copy(bytes, datagram.packet.begin());
  if (!try_allocating([&] { inbox_.push_back(datagram); })) count(CounterId::out_of_memory);
}

bool ManagementPort::take(ManagementDatagram& into) {
  if (inbox_.empty()) return false;
  into = inbox_.front();
  inbox_.pop_front();
  return true;
}

void ManagementPort::send(wire::PathId path, std::span<const std::byte, kMadBytes> mad) {
  if (outbox_.size() >= kMaxQueued) return engine_.counters.add(CounterId::management_overruns);
  if (!try_allocating([&] { outbox_.emplace_back(); })) {
    return engine_.counters.add(CounterId::out_of_memory);
  }
  Outgoing& out = outbox_.back();
  out.path = path;
  std::ranges::copy(mad, out.mad.begin());
  engine_.paths.add(path);
}

void ManagementPort::transmit(wire::PacketSink& sink) {
  while (!outbox_.empty() && sink.room() > 0) {
    const Outgoing& out = outbox_.front();
    wire::Packet p;
    p.bth.opcode = static_cast<uint8_t>(wire::Opcode::UdSendOnly);
    p.op = wire::info_of(wire::Opcode::UdSendOnly);
    p.bth.destination = wire::kManagementQpn;
    p.bth.psn = next_psn_;
    p.deth = {.qkey = kManagementQkey, .source = wire::kManagementQpn};
    next_psn_ = next_psn_ + 1;

    wire::TxPacket tx;
    tx.path = out.path;
    tx.header_bytes = static_cast<uint8_t>(wire::store_headers(p, tx.header.data()));
    const std::span<const std::byte> payload[] = {out.mad};
    tx.payload = payload;
    sink.push(tx);
    engine_.counters.add(CounterId::packets_sent);
    engine_.paths.release(out.path);
    outbox_.pop_front();
  }
}

}  // namespace verbena::core

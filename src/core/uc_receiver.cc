// Order, length and access checks of UC requests (IBA 9.8.2). The receive of an incomplete message
// is used for the next one.
#include "core/uc_receiver.h"

#include "core/placement.h"

namespace verbena::core {

using wire::Position;
using wire::Verb;

void UcReceiver::start() {
  expected_ = wire::Psn(qp_.attr.rq_psn);
  message_.reset();
}

void UcReceiver::reset() {
  receives_.reset();
  message_.reset();
}

void UcReceiver::flush() {
  receives_.flush();
  message_.reset();
}

void UcReceiver::on_request(const wire::Packet& p, const wire::RxMeta&) {
  const bool in_order = p.bth.psn == expected_;
  if (!in_order) qp_.count(CounterId::out_of_sequence);
  expected_ = p.bth.psn + 1;
  // A first packet starts a new message, whatever was lost; others need all packets before them.
  const bool starts = p.op.starts_message();
  if (message_ && (starts || !in_order || message_->verb != p.op.verb)) {
    drop_message(CounterId::incomplete_messages);
  }
  if (!message_ && !starts) return;  // the rest of an incomplete message
  if (starts) message_ = InboundMessage{.verb = p.op.verb, .reth = p.reth};
  if (!length_fits(p)) return drop_message(CounterId::incomplete_messages);
  if (p.op.verb == Verb::Send) {
    execute_send(p);
  } else {
    execute_write(p);
  }
}

void UcReceiver::drop_message(CounterId why) {
  qp_.count(why);
  message_.reset();
}

bool UcReceiver::length_fits(const wire::Packet& p) const {
  const uint32_t mtu = qp_.packet_payload_bytes_of(p);
  const size_t bytes = p.payload.size();
  const bool full = p.op.position == Position::First || p.op.position == Position::Middle;
  if (full ? bytes != mtu : bytes > mtu) return false;
  if (p.op.position == Position::Last && bytes == 0) return false;
  const uint64_t total = uint64_t{message_->received} + bytes;
  if (p.op.verb != Verb::Write) return total <= kMaxMessageBytes;
  const uint32_t announced = message_->reth.length;
  return announced <= kMaxMessageBytes &&
         (p.op.ends_message() ? total == announced : total < announced);
}

bool UcReceiver::ensure_receive() {
  if (receives_.has_receive()) return true;
  return receives_.consume();
}

void UcReceiver::execute_send(const wire::Packet& p) {
  if (p.op.starts_message() && !ensure_receive()) return drop_message(CounterId::no_receive_posted);
  if (p.payload.size() > receives_.length() - message_->received) {
    return drop_message(CounterId::receive_too_small);
  }
  if (!receives_.scatter(message_->received, p.payload, p.op.ends_message())) {
    return fail_receive(p);
  }
  message_->received += static_cast<uint32_t>(p.payload.size());
  if (p.op.ends_message()) complete_receive(p, WcOpcode::Receive);
}

void UcReceiver::execute_write(const wire::Packet& p) {
  const wire::Reth& reth = message_->reth;
  MemoryView& memory = qp_.engine.memory;
  const auto resolve = [&](uint32_t offset, size_t bytes) {
    return memory.resolve(reth.rkey, qp_.pd, qp_.qpn, reth.address + offset, bytes, kRemoteWrite);
  };
  // The whole range is checked before the first byte is written. Each packet is resolved again,
  // since the region may have been deregistered.
  const bool granted =
      (qp_.attr.access & kRemoteWrite) != 0 &&
      (!p.op.starts_message() || reth.length == 0 ||
       memory.grants(reth.rkey, qp_.pd, qp_.qpn, reth.address, reth.length, kRemoteWrite));
  if (!granted) return drop_message(CounterId::writes_refused);
  if (!p.payload.empty()) {
    const MemoryArea to = resolve(message_->received, p.payload.size());
    if (to == nullptr) return drop_message(CounterId::writes_refused);
    place(to, p.payload, p.op.ends_message());
    message_->received += static_cast<uint32_t>(p.payload.size());
  }
  if (!p.op.ends_message()) return;
  if (!p.op.has_immediate) return message_.reset();
  if (!ensure_receive()) return drop_message(CounterId::no_receive_posted);
  complete_receive(p, WcOpcode::ReceiveWriteImm);
}

void UcReceiver::complete_receive(const wire::Packet& p, WcOpcode opcode) {
  receives_.complete([&](Completion& c) {
    c.opcode = opcode;
    c.byte_count = message_->received;
    c.solicited = p.bth.solicited;
    c.source_qpn = qp_.attr.dest_qpn;
    if (p.op.has_immediate) {
      c.flags = kWcWithImmediate;
      c.immediate_or_rkey = p.immediate;
    }
  });
  message_.reset();
}

// The receive's own lkeys do not grant the access. This is a local error, and fatal.
void UcReceiver::fail_receive(const wire::Packet& p) {
  message_.reset();
  QpFailure& f = qp_.fail(WcStatus::LocalProtection);
  f.as_responder = true;
  f.packet_opcode = p.bth.opcode;
  f.psn = p.bth.psn.value();
  f.length = static_cast<uint32_t>(p.payload.size());
  qp_.engine.raise({.kind = EventKind::QpFatal, .qp = qp_.self});
  receives_.complete([](Completion& c) {
    c.status = WcStatus::LocalProtection;
    c.opcode = WcOpcode::Receive;
  });
}

}  // namespace verbena::core

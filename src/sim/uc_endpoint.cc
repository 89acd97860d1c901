// Checks the guarantees of UC.
#include "sim/uc_endpoint.h"

#include <algorithm>

namespace verbena::sim {

using core::SendOp;
using core::WcOpcode;
using core::WcStatus;

namespace {

// Fewer and larger messages than for RC, because UC does not retransmit.
WorkloadShape uc_shape(WorkloadShape shape, uint32_t max_bytes) {
  shape.max_message = std::clamp(shape.max_message, NumberedMessages::kNumberBytes, max_bytes);
  shape.requests = std::min(shape.requests, 150u);
  shape.qp.type = core::QpType::Uc;
  return shape;
}

bool is_write(SendOp op) { return op == SendOp::Write || op == SendOp::WriteImm; }

}  // namespace

UcEndpoint::UcEndpoint(World& world, Host& host, core::CompletionQueue& cq,
                       const WorkloadShape& shape, Report& report)
    : Actor(world, host, uc_shape(shape, kMaxBytes), report),
      qp_(host.create_qp(cq, cq, shape_.qp)),
      messages_(world, host, qp_, shape_, shape_.max_message, 0),
      receives_(world, host, {shape_.qp.depth, shape_.max_message, shape_.qp.sges}) {
  receives_.serve(qp_);
  places_ = host.add_region(uint64_t{kPlaces} * shape_.max_message,
                            core::kLocalWrite | core::kRemoteWrite);
}

std::string UcEndpoint::describe() const {
  return "host " + std::to_string(host_.id()) + " UC: posted " + std::to_string(posted_) + " of " +
         std::to_string(shape_.requests) + ", receives " + std::to_string(receives_.waiting());
}

void UcEndpoint::fill_receives() {
  if (qp_.state() == core::QpState::Error) return;
  const std::string what = receives_.fill();
  if (!what.empty()) problem(what);
}

void UcEndpoint::work() {
  if (!prng().chance(shape_.late_receives)) fill_receives();
  const uint64_t burst = prng().below(6);
  for (uint64_t i = 0; i < burst && posted_ < shape_.requests && messages_.has_room(); ++i) {
    static constexpr SendOp kOps[] = {SendOp::Send, SendOp::SendImm, SendOp::Write,
                                      SendOp::WriteImm};
    SendOp op = kOps[prng().below(4)];
    if (is_write(op) && next_place_ + 1 >= kPlaces)
      op = SendOp::SendImm;  // one is kept for the last message
    const uint32_t mtu = wire::bytes_of(qp_.attributes().path_mtu);
    const uint64_t wanted =
        prng().below(3) == 0 ? mtu * prng().below(4) : prng().below(shape_.max_message + 1);
    const uint32_t least = NumberedMessages::has_immediate(op) ? 0 : NumberedMessages::kNumberBytes;
    post_one(op, std::clamp(static_cast<uint32_t>(wanted), least, shape_.max_message));
  }
}

void UcEndpoint::post_one(SendOp op, uint32_t length) {
  NumberedMessage p{.op = op, .length = length};
  core::SendRequest s;
  if (is_write(op)) {
    p.to = next_place_++;
    s.rkey = peer_->places_.key;
    s.remote_address = peer_->places_.iova + uint64_t{p.to} * shape_.max_message;
  }
  ++posted_;
  if (!messages_.post(p, s, posted_ >= shape_.requests)) problem("post_send refused");
}

bool UcEndpoint::send_last_message() {
  if (last_messages_begin_) return false;
  last_messages_begin_ = messages_.all().size();
  const uint32_t length =
      std::min(shape_.max_message, wire::bytes_of(qp_.attributes().path_mtu) + 8);
  peer_->fill_receives();
  post_one(SendOp::Send, length);
  post_one(SendOp::Write, length);
  return true;
}

void UcEndpoint::on_completion(const core::Completion& c) {
  if (c.opcode >= WcOpcode::Receive) return on_receive(c);
  const std::string what = messages_.completed(c);
  if (!what.empty()) problem(what);
  if (c.status != WcStatus::Success) problem("a request failed");
}

void UcEndpoint::on_receive(const core::Completion& c) {
  Receive r;
  const std::string what = receives_.complete(c, &r);
  if (!what.empty()) return problem(what);
  if (c.status == WcStatus::Flushed && stopped_) return;
  if (c.status != WcStatus::Success) return problem("a receive failed");
  if (c.byte_count > shape_.max_message) return problem("the message is longer than the receive");
  const bool wrote = c.opcode == WcOpcode::ReceiveWriteImm;
  const Bytes got = wrote ? Bytes{} : receives_.read(r, c.byte_count);
  const uint32_t number = NumberedMessages::number_in(c, got);
  NumberedMessage* p = peer_->messages_.find(number);
  if (p == nullptr) return problem("a message was received that was not sent");
  const Bytes sent = peer_->messages_.content(number);
  if (c.byte_count != p->length || wrote != (p->op == SendOp::WriteImm) ||
      (wrote ? !check_place(*p, sent, true) : got != sent)) {
    problem("a message was received incomplete");
  }
  if (c.source_qpn != peer_->qp_.qpn()) problem("wrong source");
  if (++p->arrived > (shape_.duplicates ? 2 : 1)) problem("a message was received too often");
  if (!shape_.reorders && number < last_arrived_) problem("a message was overtaken");
  last_arrived_ = std::max(last_arrived_, number);
}

// A WRITE may end at any packet, but writes only the bytes that were sent.
bool UcEndpoint::check_place(const NumberedMessage& p, const Bytes& message, bool whole) {
  const auto place = places_.at(uint64_t{p.to} * shape_.max_message, message.size());
  return std::ranges::equal(place, message, [&](std::byte is, std::byte sent) {
    return is == sent || (!whole && is == std::byte{0});
  });
}

uint64_t UcEndpoint::missing() const {
  return static_cast<uint64_t>(std::ranges::count_if(
      peer_->messages_.all(),
      [](const NumberedMessage& p) { return p.arrived == 0 && p.op != SendOp::Write; }));
}

void UcEndpoint::check() {
  const auto& sent = peer_->messages_.all();
  for (uint32_t i = 0; i < sent.size(); ++i) {
    const bool is_last_message = i >= peer_->last_messages_begin_;
    if (is_write(sent[i].op)) {
      if (!check_place(sent[i], peer_->messages_.content(i), is_last_message)) {
        problem("a WRITE left other bytes than were sent");
      }
    } else if (is_last_message && sent[i].arrived != 1) {
      problem("the last message was not received exactly once");
    }
  }
  if (qp_.state() != core::QpState::Rts) problem("not in RTS");
}

void UcEndpoint::stop() {
  stopped_ = true;
  host_.to_error(qp_);
}

}  // namespace verbena::sim

// What UC promises, and what it does not.
#include "sim/uc_endpoint.h"

#include <algorithm>

namespace verbena::sim {

using core::SendOp;
using core::WcOpcode;
using core::WcStatus;

namespace {

// With fewer, larger messages than RC has: nothing is repeated, so little is learned twice.
WorkloadShape uc_shape(WorkloadShape shape, uint32_t max_bytes) {
  shape.max_message = std::clamp(shape.max_message, Parcels::kNumberBytes, max_bytes);
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
      parcels_(world, host, qp_, shape_, shape_.max_message, 0),
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
  for (uint64_t i = 0; i < burst && posted_ < shape_.requests && parcels_.room(); ++i) {
    static constexpr SendOp kOps[] = {SendOp::Send, SendOp::SendImm, SendOp::Write,
                                      SendOp::WriteImm};
    SendOp op = kOps[prng().below(4)];
    if (is_write(op) && next_place_ + 1 >= kPlaces) op = SendOp::SendImm;  // one for the farewell
    const uint32_t mtu = wire::bytes_of(qp_.attributes().path_mtu);
    const uint64_t wanted =
        prng().below(3) == 0 ? mtu * prng().below(4) : prng().below(shape_.max_message + 1);
    const uint32_t least = Parcels::has_immediate(op) ? 0 : Parcels::kNumberBytes;
    post_one(op, std::clamp(static_cast<uint32_t>(wanted), least, shape_.max_message));
  }
}

void UcEndpoint::post_one(SendOp op, uint32_t length) {
  Parcel p{.op = op, .length = length};
  core::SendRequest s;
  if (is_write(op)) {
    p.to = next_place_++;
    s.rkey = peer_->places_.key;
    s.remote_address = peer_->places_.iova + uint64_t{p.to} * shape_.max_message;
  }
  ++posted_;
  if (!parcels_.post(p, s, posted_ >= shape_.requests)) problem("post_send refused");
}

bool UcEndpoint::send_last_message() {
  if (first_farewell_) return false;
  first_farewell_ = parcels_.all().size();
  const uint32_t length =
      std::min(shape_.max_message, wire::bytes_of(qp_.attributes().path_mtu) + 8);
  peer_->fill_receives();
  post_one(SendOp::Send, length);
  post_one(SendOp::Write, length);
  return true;
}

void UcEndpoint::on_completion(const core::Completion& c) {
  if (c.opcode >= WcOpcode::Receive) return on_receive(c);
  const std::string what = parcels_.completed(c);
  if (!what.empty()) problem(what);
  if (c.status != WcStatus::Success) problem("a request failed");
}

void UcEndpoint::on_receive(const core::Completion& c) {
  Receive r;
  const std::string what = receives_.complete(c, &r);
  if (!what.empty()) return problem(what);
  if (c.status == WcStatus::Flushed && stopped_) return;
  if (c.status != WcStatus::Success) return problem("a receive failed");
  if (c.byte_count > shape_.max_message) return problem("longer than the receive");
  const bool wrote = c.opcode == WcOpcode::ReceiveWriteImm;
  const Bytes got = wrote ? Bytes{} : receives_.read(r, c.byte_count);
  const uint32_t number = Parcels::number_in(c, got);
  Parcel* p = peer_->parcels_.find(number);
  if (p == nullptr) return problem("a message arrived that nobody sent");
  const Bytes sent = peer_->parcels_.content(number);
  if (c.byte_count != p->length || wrote != (p->op == SendOp::WriteImm) ||
      (wrote ? !check_place(*p, sent, true) : got != sent)) {
    problem("a message did not arrive whole");
  }
  if (c.source_qpn != peer_->qp_.qpn()) problem("wrong source");
  if (++p->arrived > (shape_.duplicates ? 2 : 1)) problem("a message arrived too often");
  if (!shape_.reorders && number < last_arrived_) problem("a message was overtaken");
  last_arrived_ = std::max(last_arrived_, number);
}

// A WRITE may be cut short anywhere, but leaves nothing else than what was sent.
bool UcEndpoint::check_place(const Parcel& p, const Bytes& message, bool whole) {
  const auto place = places_.at(uint64_t{p.to} * shape_.max_message, message.size());
  return std::ranges::equal(place, message, [&](std::byte is, std::byte sent) {
    return is == sent || (!whole && is == std::byte{0});
  });
}

uint64_t UcEndpoint::missing() const {
  return static_cast<uint64_t>(std::ranges::count_if(peer_->parcels_.all(), [](const Parcel& p) {
    return p.arrived == 0 && p.op != SendOp::Write;
  }));
}

void UcEndpoint::check() {
  const auto& sent = peer_->parcels_.all();
  for (uint32_t i = 0; i < sent.size(); ++i) {
    const bool last_words = i >= peer_->first_farewell_;
    if (is_write(sent[i].op)) {
      if (!check_place(sent[i], peer_->parcels_.content(i), last_words)) {
        problem("a WRITE left something else than was sent");
      }
    } else if (last_words && sent[i].arrived != 1) {
      problem("the farewell did not arrive, or twice");
    }
  }
  if (qp_.state() != core::QpState::Rts) problem("not in RTS");
}

void UcEndpoint::stop() {
  stopped_ = true;
  host_.to_error(qp_);
}

}  // namespace verbena::sim

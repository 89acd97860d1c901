// Sends numbered messages and checks their content.
#include "sim/numbered_messages.h"

#include <algorithm>

#include "base/bytes.h"

namespace verbena::sim {

NumberedMessages::NumberedMessages(World& world, Host& host, core::QueuePair& qp,
                                   const WorkloadShape& shape, uint32_t max_bytes, uint32_t sender)
    : world_(world),
      host_(host),
      qp_(qp),
      shape_(shape.qp),
      max_bytes_(max_bytes),
      sender_(sender),
      salt_(world.prng().next()) {
  local_ = host.add_region(uint64_t{shape_.depth} * max_bytes + 64, 0);
  for (int i = 0; i < static_cast<int>(shape_.depth); ++i) free_.push_back(i);
}

bool NumberedMessages::post(const NumberedMessage& p, core::SendRequest s, bool must_signal) {
  Prng& prng = world_.prng();
  const auto number = sender_ << 24 | static_cast<uint32_t>(all_.size());
  all_.push_back(p);
  const Bytes message = content(number);
  const int slot = free_.back();
  free_.pop_back();
  std::vector<core::Sge> sges =
      split(local_, static_cast<uint64_t>(slot) * max_bytes_, p.length, shape_.sges, prng);
  scatter(local_, sges, message);

  s.wr_id = number;
  s.op = p.op;
  if (has_immediate(p.op)) s.immediate_or_rkey = number;
  must_signal |= since_signaled_ + 1 >= shape_.depth / 2;
  const bool signaled = must_signal || shape_.signal_all || prng.below(2) == 0;
  if (must_signal || (signaled && !shape_.signal_all)) s.flags |= core::kSignaled;
  since_signaled_ = signaled ? 0 : since_signaled_ + 1;
  if (prng.below(5) == 0) s.flags |= core::kSolicited;
  const std::vector<core::Sge> named = sges;
  const bool is_inline = p.length <= shape_.max_inline && prng.below(2) == 0;
  if (is_inline) {
    s.flags |= core::kInline;
    for (core::Sge& sge : sges) {
      sge.address = reinterpret_cast<uint64_t>(local_.bytes.data()) + (sge.address - local_.iova);
      sge.lkey = 0;
    }
  }
  s.sges = sges;
  ledger_.posted(number, signaled);
  waiting_.push_back({number, slot});
  const bool accepted = host_.post_send(qp_, s).ok();
  if (is_inline) scatter(local_, named, Bytes(p.length, std::byte{0xDD}));
  return accepted;
}

std::string NumberedMessages::completed(const core::Completion& c) {
  std::string what = ledger_.completed(c);
  while (!waiting_.empty() && waiting_.front().wr_id <= c.wr_id) {
    free_.push_back(waiting_.front().slot);
    waiting_.pop_front();
  }
  const NumberedMessage* p = find(static_cast<uint32_t>(c.wr_id));
  if (!what.empty() || p == nullptr) return what;
  const bool is_write = p->op == core::SendOp::Write || p->op == core::SendOp::WriteImm;
  const auto opcode = is_write ? core::WcOpcode::Write : core::WcOpcode::Send;
  return c.opcode == opcode ? "" : "completion with the wrong opcode";
}

uint32_t NumberedMessages::number_in(const core::Completion& c,
                                     std::span<const std::byte> message) {
  if ((c.flags & core::kWcWithImmediate) != 0) return c.immediate_or_rkey;
  return message.size() < kNumberBytes ? ~0u : load_be32(message.data());
}

NumberedMessage* NumberedMessages::find(uint32_t number) {
  const uint32_t index = number & 0xFFFFFF;
  return sender_in(number) == sender_ && index < all_.size() ? &all_[index] : nullptr;
}

Bytes NumberedMessages::content(uint32_t number) const {
  Prng bytes(salt_ ^ number);
  Bytes message = random_bytes(all_[number & 0xFFFFFF].length, bytes);
  if (message.size() >= kNumberBytes) store_be32(message.data(), number);
  return message;
}

}  // namespace verbena::sim

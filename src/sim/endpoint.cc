// Posting, completing, checking.
#include "sim/endpoint.h"

#include <algorithm>
#include <cstring>

namespace verbena::sim {

using core::SendOp;
using core::WcOpcode;
using core::WcStatus;

namespace {

constexpr uint32_t kRemoteAll =
    core::kLocalWrite | core::kRemoteWrite | core::kRemoteRead | core::kRemoteAtomic;
constexpr std::byte kUntouched{0xC3};

WcOpcode expected_opcode(SendOp op) {
  switch (op) {
    case SendOp::Write:
    case SendOp::WriteImm:
      return WcOpcode::Write;
    case SendOp::Read:
      return WcOpcode::Read;
    case SendOp::CompareSwap:
      return WcOpcode::CompareSwap;
    case SendOp::FetchAdd:
      return WcOpcode::FetchAdd;
    case SendOp::LocalInvalidate:
      return WcOpcode::LocalInvalidate;
    case SendOp::BindWindow:
      return WcOpcode::BindWindow;
    default:
      return WcOpcode::Send;
  }
}

bool same(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

}  // namespace

Endpoint::Endpoint(World& world, Host& host, core::CompletionQueue& cq, const WorkloadShape& shape,
                   Report& report)
    : world_(world),
      host_(host),
      shape_(shape),
      report_(report),
      qp_(host.create_qp(cq, cq, shape.qp)) {
  const uint64_t all_slots = uint64_t{shape.qp.depth} * shape.max_message + 64;
  local_ = host.add_region(all_slots, core::kLocalWrite);
  slots_region_ = host.add_region(all_slots, kRemoteAll);
  hot_ = host.add_region(4096, kRemoteAll);
  fixed_ = host.add_region(shape.max_message + 64, core::kRemoteRead);
  words_ = host.add_region(16, kRemoteAll);
  receive_ = host.add_region(all_slots, core::kLocalWrite);
  window_area_ = host.add_region(2048, core::kLocalWrite | core::kWindowBind);
  fixed_model_ = random_bytes(static_cast<uint32_t>(fixed_.bytes.size()), world.prng());
  std::ranges::copy(fixed_model_, fixed_.bytes.begin());
  hot_model_.resize(hot_.bytes.size());
  window_model_.resize(window_area_.bytes.size());
  for (int i = 0; i < static_cast<int>(shape.qp.depth); ++i) {
    free_local_.push_back(i);
    free_remote_.push_back(i);
    free_receive_.push_back(i);
  }
  if (shape.windows) {
    window_.key = host.engine().memory().add_window(1, core::WindowType::Type2).value();
  }
}

void Endpoint::set_peer(Endpoint& peer, SharedCounter* counter_at_peer) {
  peer_ = &peer;
  counter_ = counter_at_peer;
}

std::string Endpoint::describe() const {
  char text[200];
  std::snprintf(
      text, sizeof text,
      "host %u qpn 0x%06x: posted %u of %u, waiting %zu, inbound %zu, receives %zu, state %d",
      host_.id(), qp_.qpn().value(), posted_, shape_.requests, requests_.size(), inbound_.size(),
      receives_.size(), static_cast<int>(qp_.state()));
  return text;
}

void Endpoint::problem(const std::string& what) {
  if (shape_.strict) report_.problem(world_.now(), describe() + ": " + what);
}

void Endpoint::work() {
  Prng& prng = world_.prng();
  if (!prng.chance(shape_.late_receives)) fill_receive_queue();
  const uint64_t burst = prng.below(6);
  for (uint64_t i = 0; i < burst && posted_ < shape_.requests; ++i) post_one();
}

void Endpoint::fill_receive_queue() {
  Prng& prng = world_.prng();
  while (receives_.size() < shape_.qp.depth && qp_.state() != core::QpState::Error) {
    Receive r;
    r.wr_id = next_wr_id_++;
    r.slot = free_receive_.back();
    free_receive_.pop_back();
    const uint64_t offset = static_cast<uint64_t>(r.slot) * shape_.max_message;
    std::ranges::fill(receive_.at(offset, shape_.max_message), kUntouched);
    r.sges = cut(receive_, offset, shape_.max_message, shape_.qp.sges, prng);
    if (!host_.post_receive(qp_, {.wr_id = r.wr_id, .sges = r.sges}).ok()) {
      problem("post_receive refused although there is room");
      return;
    }
    receives_.push_back(std::move(r));
  }
}

void Endpoint::on_completion(const core::Completion& c) {
  if (c.qpn != qp_.qpn()) problem("completion names another queue pair");
  if (!shape_.strict && c.status != WcStatus::Success) return;
  if (c.opcode >= WcOpcode::Receive) {
    on_receive_completion(c);
  } else {
    on_send_completion(c);
  }
}

void Endpoint::on_send_completion(const core::Completion& c) {
  if (c.status != WcStatus::Success) {
    problem("request " + std::to_string(c.wr_id) + " failed with status " +
            std::to_string(static_cast<int>(c.status)));
    return;
  }
  // Unsignalled ones before it are done as well: requests complete in order.
  while (!requests_.empty() && requests_.front().wr_id != c.wr_id) {
    if (requests_.front().signaled) problem("a signalled request was skipped, or completed twice");
    finish(requests_.front(), nullptr);
    requests_.pop_front();
  }
  if (requests_.empty()) return problem("completion of a request that is not waiting");
  Request& r = requests_.front();
  if (!r.signaled) problem("an unsignalled request completed");
  if (c.opcode != expected_opcode(r.op)) problem("completion with the wrong opcode");
  finish(r, &c);
  requests_.pop_front();
}

void Endpoint::finish(Request& r, const core::Completion* c) {
  if (core::is_read_or_atomic(r.op)) {
    if (c != nullptr && c->byte_count != r.message.size()) problem("wrong byte count");
    const Bytes got = gather(local_, r.sges, static_cast<uint32_t>(r.message.size()));
    if (r.shared_counter) {
      uint64_t original = 0;
      if (got.size() == 8) std::memcpy(&original, got.data(), 8);
      if (!counter_->seen.insert(original).second) problem("two fetch-and-adds saw the same value");
    } else if (!same(got, r.message)) {
      problem(std::string(core::name_of(r.op)) + " returned something else than memory held");
    }
  }
  if (r.check_remote) {
    const uint64_t at = static_cast<uint64_t>(r.remote_slot) * shape_.max_message;
    if (!same(peer_->slots_region_.at(at, r.message.size()), r.message)) {
      problem("a WRITE completed but the peer's memory has something else");
    }
  }
  if (r.op == SendOp::BindWindow) {
    window_.key = r.new_window_key;
    window_.state = Window::Bound;
  }
  if (r.op == SendOp::LocalInvalidate) window_.state = Window::Unbound;
  if (r.local_slot >= 0) free_local_.push_back(r.local_slot);
  if (r.remote_slot >= 0) free_remote_.push_back(r.remote_slot);
}

void Endpoint::on_receive_completion(const core::Completion& c) {
  if (receives_.empty() || receives_.front().wr_id != c.wr_id) {
    return problem("receives complete out of order, or twice");
  }
  const Receive r = std::move(receives_.front());
  receives_.pop_front();
  free_receive_.push_back(r.slot);
  if (c.status != WcStatus::Success) {
    return problem("receive failed with status " + std::to_string(static_cast<int>(c.status)));
  }
  if (inbound_.empty()) return problem("a message arrived that nobody sent, or one twice");
  const Inbound in = std::move(inbound_.front());
  inbound_.pop_front();

  const bool is_write = in.op == SendOp::WriteImm;
  if (c.opcode != (is_write ? WcOpcode::ReceiveWriteImm : WcOpcode::Receive)) {
    problem("receive completed with the wrong opcode");
  }
  if (c.byte_count != in.message.size()) problem("receive has the wrong byte count");
  uint8_t flags = 0;
  if (in.op == SendOp::SendImm || is_write) flags = core::kWcWithImmediate;
  if (in.op == SendOp::SendInvalidate) flags = core::kWcWithInvalidate;
  if (c.flags != flags) problem("receive has the wrong flags");
  if (flags != 0 && c.immediate_or_rkey != in.immediate_or_rkey) problem("wrong immediate or rkey");
  if (in.op == SendOp::SendInvalidate) window_.state = Window::Unbound;

  Bytes expected(shape_.max_message, kUntouched);
  if (!is_write) std::ranges::copy(in.message, expected.begin());
  if (!same(gather(receive_, r.sges, shape_.max_message), expected)) {
    problem("a message arrived with other bytes than were sent");
  }
}

void Endpoint::check_memory() {
  if (!same(fixed_.bytes, fixed_model_)) problem("read-only memory changed");
  if (!same(hot_.bytes, hot_model_)) problem("overlapping WRITEs left the wrong bytes");
  if (!same(window_area_.bytes, window_model_)) problem("memory behind a window is wrong");
  if (!same(words_.bytes, std::as_bytes(std::span(word_model_))))
    problem("atomics left wrong values");
  if (receives_.size() > shape_.qp.depth) problem("more receives than the queue holds");
}

}  // namespace verbena::sim

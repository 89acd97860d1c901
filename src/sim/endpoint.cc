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
// The operation returns data into the local slot.
bool fetches(SendOp op) { return op == SendOp::Read || core::is_atomic(op); }

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
    case SendOp::AtomicWrite:
      return WcOpcode::AtomicWrite;
    case SendOp::Flush:
      return WcOpcode::Flush;
    default:
      return WcOpcode::Send;
  }
}

uint64_t load_word(std::span<const std::byte> bytes) {
  uint64_t word = 0;
  std::memcpy(&word, bytes.data(), sizeof word);
  return word;
}

bool same(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

QpShape sending_shape(QpShape shape, const EndpointKind& kind) {
  if (kind.xrc) {
    shape.type = core::QpType::XrcSend;
  } else if (!kind.shared.empty()) {
    shape.srq = kind.shared.front()->srq();
  }
  return shape;
}

core::QueuePair& receiving_qp(Host& host, core::CompletionQueue& cq, QpShape shape,
                              core::QueuePair& sending, const EndpointKind& kind) {
  if (!kind.xrc) return sending;
  shape.type = core::QpType::XrcReceive;
  shape.xrc_domain = Endpoint::kXrcDomain;
  return host.create_qp(cq, cq, shape);
}

}  // namespace

Endpoint::Endpoint(World& world, Host& host, core::CompletionQueue& cq, const WorkloadShape& shape,
                   Report& report, const EndpointKind& kind)
    : Actor(world, host, shape, report),
      qp_(host.create_qp(cq, cq, sending_shape(shape.qp, kind))),
      inbound_host_(kind.xrc ? *kind.receiver : host),
      inbound_qp_(receiving_qp(inbound_host_, cq, shape.qp, qp_, kind)),
      receives_(kind.shared) {
  if (receives_.empty()) {
    own_receives_ = std::make_unique<ReceivePool>(
        world, host, PoolShape{shape.qp.depth, shape.max_message, shape.qp.sges});
    own_receives_->serve(qp_);
    receives_.push_back(own_receives_.get());
  }
  const uint64_t all_slots = uint64_t{shape.qp.depth} * shape.max_message + 64;
  local_ = host.add_region(all_slots, core::kLocalWrite);
  slots_region_ = host.add_region(all_slots, kRemoteAll);
  hot_ = host.add_region(4096, kRemoteAll);
  fixed_ = host.add_region(shape.max_message + 64, core::kRemoteRead);
  words_ = host.add_region(16, kRemoteAll);
  durable_ = host.add_durable_region(kRemoteAll | core::kFlushGlobal | core::kFlushPersistent);
  window_area_ = host.add_region(uint64_t{2} * kWindowHalf, core::kLocalWrite | core::kWindowBind);
  fixed_model_ = random_bytes(static_cast<uint32_t>(fixed_.bytes.size()), prng());
  std::ranges::copy(fixed_model_, fixed_.bytes.begin());
  hot_model_.resize(hot_.bytes.size());
  window_model_ = random_bytes(static_cast<uint32_t>(window_area_.bytes.size()), prng());
  std::ranges::copy(window_model_, window_area_.bytes.begin());
  for (int i = 0; i < static_cast<int>(shape.qp.depth); ++i) {
    free_local_.push_back(i);
    free_remote_.push_back(i);
  }
  // A type 2 window belongs to the queue pair that bound it. XRC requests use another queue pair.
  window_.type =
      kind.xrc || prng().below(2) == 0 ? core::WindowType::Type1 : core::WindowType::Type2;
  window_.key = host.engine().memory().add_window(1, window_.type).value();
}

void Endpoint::set_peer(Endpoint& peer, SharedCounter* counter_at_peer) {
  peer_ = &peer;
  counter_ = counter_at_peer;
}

std::string Endpoint::describe() const {
  char text[200];
  std::snprintf(
      text, sizeof text,
      "host %u %s qpn 0x%06x: posted %u of %u, waiting %zu, inbound %zu, receives %zu, state %d",
      host_.id(), qp_.type() == core::QpType::Rc ? "RC" : "XRC", qp_.qpn().value(), posted_,
      shape_.requests, requests_.size(), inbound_.size(), receives_.front()->waiting(),
      static_cast<int>(qp_.state()));
  return text;
}

void Endpoint::work() {
  if (!prng().chance(shape_.late_receives)) fill_receives();
  const uint64_t burst = prng().below(6);
  for (uint64_t i = 0; i < burst && posted_ < shape_.requests; ++i) post_one();
}

void Endpoint::fill_receives() {
  if (inbound_qp_.state() == core::QpState::Error) return;
  for (ReceivePool* pool : receives_) {
    const std::string what = pool->fill();
    if (!what.empty()) problem(what);
  }
}

void Endpoint::on_completion(const core::Completion& c) {
  const bool is_receive = c.opcode >= WcOpcode::Receive;
  if (c.qpn != (is_receive ? inbound_qp_ : qp_).qpn())
    problem("completion of the wrong queue pair");
  if (is_receive) {
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
  // Earlier unsignalled requests are done as well: requests complete in order.
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
  if (fetches(r.op)) {
    if (c != nullptr && c->byte_count != r.message.size()) problem("wrong byte count");
    const Bytes got = gather(local_, r.sges, static_cast<uint32_t>(r.message.size()));
    if (r.shared_counter) {
      uint64_t original = 0;
      if (got.size() == 8) std::memcpy(&original, got.data(), 8);
      if (!counter_->seen.insert(original).second) problem("two fetch-and-adds saw the same value");
    } else if (!same(got, r.message)) {
      problem(std::string(core::name_of(r.op)) + " returned other data than memory contained");
    }
  }
  if (r.check_remote) {
    const uint64_t at = static_cast<uint64_t>(r.remote_slot) * shape_.max_message;
    if (!same(peer_->slots_region_.at(at, r.message.size()), r.message)) {
      problem("a WRITE completed but the peer's memory has other data");
    }
  }
  if (r.op == SendOp::Flush && load_word(peer_->durable_.kept) < r.durable) {
    problem("a FLUSH completed but earlier WRITEs are not persistent");
  }
  if (core::is_local(r.op)) {
    window_.state = window_.state == Window::Binding ? Window::Bound : Window::Unbound;
  }
  if (r.through_window) --peer_->window_.uses;
  if (r.local_slot >= 0) free_local_.push_back(r.local_slot);
  if (r.remote_slot >= 0) free_remote_.push_back(r.remote_slot);
}

void Endpoint::on_receive_completion(const core::Completion& c) {
  const auto pool = std::ranges::find_if(
      receives_, [&](const ReceivePool* candidate) { return candidate->posted(c.wr_id); });
  if (pool == receives_.end()) return problem("a receive completed that was not posted");
  Receive r;
  const std::string what = (*pool)->complete(c, &r);
  if (!what.empty()) return problem(what);
  if (c.status == WcStatus::Flushed && stopped_) return;
  if (c.status != WcStatus::Success) {
    return problem("receive failed with status " + std::to_string(static_cast<int>(c.status)));
  }
  if (inbound_.empty()) return problem("a message was received that was not sent, or twice");
  const Inbound in = std::move(inbound_.front());
  inbound_.pop_front();

  const bool is_write = in.op == SendOp::WriteImm;
  if (c.opcode != (is_write ? WcOpcode::ReceiveWriteImm : WcOpcode::Receive)) {
    problem("receive completed with the wrong opcode");
  }
  if (in.srqn != 0 && in.srqn != (*pool)->srq()->number()) {
    problem("a receive of a queue that the message did not name");
  }
  if (c.byte_count != in.message.size()) problem("receive has the wrong byte count");
  uint8_t flags = 0;
  if (in.op == SendOp::SendImm || is_write) flags = core::kWcWithImmediate;
  if (in.op == SendOp::SendInvalidate) flags = core::kWcWithInvalidate;
  if (c.flags != flags) problem("receive has the wrong flags");
  if (flags != 0 && c.immediate_or_rkey != in.immediate_or_rkey) problem("wrong immediate or rkey");
  if (in.op == SendOp::SendInvalidate) window_.state = Window::Unbound;

  Bytes expected(shape_.max_message, ReceivePool::kUntouched);
  if (!is_write) std::ranges::copy(in.message, expected.begin());
  if (!same((*pool)->read(r, shape_.max_message), expected)) {
    problem("a message was received with other bytes than were sent");
  }
}

void Endpoint::check() {
  if (!same(fixed_.bytes, fixed_model_)) problem("read-only memory changed");
  if (!same(hot_.bytes, hot_model_)) problem("overlapping WRITEs left the wrong bytes");
  if (!same(window_area_.bytes, window_model_)) problem("memory behind a window is wrong");
  if (!same(words_.bytes, std::as_bytes(std::span(word_model_)))) {
    problem("atomics left wrong values");
  }
  if (load_word(durable_.bytes) != durable_model_) problem("a counted WRITE is missing");
  if (load_word(durable_.times) != flushes_) problem("a FLUSH was not executed exactly once");
  for (const core::QueuePair* qp : {&qp_, &inbound_qp_}) {
    if (!qp->peer()->is_idle()) problem("bytes are in flight although all work is done");
    if (qp->state() != core::QpState::Rts) problem("queue pair not in RTS");
  }
}

void Endpoint::stop() {
  stopped_ = true;
  host_.to_error(qp_);
  if (&inbound_qp_ != &qp_) inbound_host_.to_error(inbound_qp_);
}

}  // namespace verbena::sim

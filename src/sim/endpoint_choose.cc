// Chooses an endpoint's next request and applies it to the model.
#include <algorithm>
#include <cstring>

#include "sim/endpoint.h"

namespace verbena::sim {

using core::SendOp;

void Endpoint::post_one() {
  Prng& prng = world_.prng();
  if (requests_.size() >= shape_.qp.depth || free_local_.empty()) return;
  Request r;
  core::SendRequest s;
  r.wr_id = s.wr_id = next_wr_id_++;
  if (prng.chance(0.15)) s.flags |= core::kFence;
  if (prng.chance(0.2)) s.flags |= core::kSolicited;

  if (qp_.type() == core::QpType::XrcSend) {
    const auto& queues = peer_->receives_;
    s.remote_srqn = queues[prng.below(queues.size())]->srq()->number();
  }

  using Choice = bool (Endpoint::*)(Request&, core::SendRequest&);
  static constexpr Choice kChoices[] = {
      &Endpoint::choose_send,   &Endpoint::choose_send,    &Endpoint::choose_write,
      &Endpoint::choose_write,  &Endpoint::choose_read,    &Endpoint::choose_read,
      &Endpoint::choose_atomic, &Endpoint::choose_durable, &Endpoint::choose_window};
  if (!(this->*kChoices[prng.below(std::size(kChoices))])(r, s)) return;

  // The last request, and one per half queue, is signalled and completes all before it.
  const bool must_signal = posted_ + 1 == shape_.requests ||
                           since_signaled_ + 1 >= shape_.qp.depth / 2 || core::is_local(r.op);
  r.signaled = must_signal || shape_.qp.signal_all || prng.below(2) == 0;
  if (must_signal || (r.signaled && !shape_.qp.signal_all)) s.flags |= core::kSignaled;
  since_signaled_ = r.signaled ? 0 : since_signaled_ + 1;

  s.op = r.op;
  std::vector<core::Sge> as_posted = r.sges;
  const bool gives_data = !core::is_read_or_atomic(r.op) && !core::is_local(r.op);
  const bool may_inline =
      (gives_data || r.op == SendOp::AtomicWrite) && r.message.size() <= shape_.qp.max_inline;
  const bool is_inline = may_inline && prng.below(2) == 0;
  if (is_inline) {
    // Inline data has real addresses and no key, and may be overwritten at once.
    s.flags |= core::kInline;
    for (core::Sge& sge : as_posted) {
      sge.address = reinterpret_cast<uint64_t>(local_.bytes.data()) + (sge.address - local_.iova);
      sge.lkey = 0;
    }
  }
  s.sges = as_posted;
  if (!host_.post_send(qp_, s).ok()) problem("post_send refused although the queue has room");
  if (is_inline) scatter(local_, r.sges, Bytes(r.message.size(), std::byte{0xDD}));
  ++posted_;
  requests_.push_back(std::move(r));
}

uint32_t Endpoint::random_length() {
  Prng& prng = world_.prng();
  const uint32_t mtu = wire::bytes_of(qp_.attributes().path_mtu);
  uint64_t length = 0;
  switch (prng.below(8)) {
    case 0:
      length = 0;
      break;
    case 1:
      length = prng.below(16);
      break;
    case 2:
    case 3:
      length = prng.below(300);
      break;
    case 4:
      length = mtu * (1 + prng.below(4));
      break;  // whole packets
    case 5:
      length = mtu * (1 + prng.below(4));
      length += prng.below(3) - 1;  // one byte less or more
      break;
    default:
      length = prng.below(shape_.max_message + 1);
      break;
  }
  return static_cast<uint32_t>(std::min<uint64_t>(length, shape_.max_message));
}

// Puts a fresh message into a local slot.
void Endpoint::fill_message(Request& r, core::SendRequest&, uint32_t length) {
  r.local_slot = free_local_.back();
  free_local_.pop_back();
  r.message = random_bytes(length, world_.prng());
  r.sges = split(local_, static_cast<uint64_t>(r.local_slot) * shape_.max_message, length,
                 shape_.qp.sges, world_.prng());
  scatter(local_, r.sges, r.message);
}

bool Endpoint::choose_send(Request& r, core::SendRequest& s) {
  Prng& prng = world_.prng();
  r.op = prng.below(2) == 0 ? SendOp::Send : SendOp::SendImm;
  Window& w = peer_->window_;
  if (w.type == core::WindowType::Type2 && w.state == Window::Bound && prng.below(4) == 0) {
    r.op = SendOp::SendInvalidate;
    w.state = Window::Ending;
    if (w.uses != 0) s.flags |= core::kFence;  // READs through the window must have ended
  }
  fill_message(r, s, random_length());
  s.immediate_or_rkey = r.op == SendOp::SendInvalidate ? w.key : static_cast<uint32_t>(prng.next());
  peer_->inbound_.push_back({r.op, r.message, s.immediate_or_rkey, s.remote_srqn});
  return true;
}

bool Endpoint::choose_write(Request& r, core::SendRequest& s) {
  Prng& prng = world_.prng();
  r.op = prng.below(4) == 0 ? SendOp::WriteImm : SendOp::Write;
  s.immediate_or_rkey = static_cast<uint32_t>(prng.next());
  const uint64_t at_window = prng.below(512);
  if (prng.below(3) == 0 && use_window(r, s, at_window)) {
    fill_message(r, s, static_cast<uint32_t>(prng.below(1000)) % (shape_.max_message + 1));
    std::ranges::copy(r.message, peer_->window_model_.begin() +
                                     static_cast<ptrdiff_t>(peer_->window_.begin + at_window));
  } else if (prng.below(3) == 0) {
    const auto at = static_cast<uint32_t>(prng.below(2048));
    fill_message(r, s, static_cast<uint32_t>(prng.below(2048)) % (shape_.max_message + 1));
    s.rkey = peer_->hot_.key;
    s.remote_address = peer_->hot_.iova + at;
    std::ranges::copy(r.message, peer_->hot_model_.begin() + at);
  } else {
    if (free_remote_.empty()) return false;
    r.remote_slot = free_remote_.back();
    free_remote_.pop_back();
    fill_message(r, s, random_length());
    r.check_remote = true;
    s.rkey = peer_->slots_region_.key;
    s.remote_address =
        peer_->slots_region_.iova + static_cast<uint64_t>(r.remote_slot) * shape_.max_message;
  }
  if (r.op == SendOp::WriteImm) {
    peer_->inbound_.push_back({r.op, r.message, s.immediate_or_rkey, s.remote_srqn});
  }
  return true;
}

bool Endpoint::choose_read(Request& r, core::SendRequest& s) {
  Prng& prng = world_.prng();
  r.op = SendOp::Read;
  // Reads the data of an earlier WRITE that has not completed yet, to check the order.
  Request* written = nullptr;
  for (Request& earlier : requests_) {
    if (earlier.check_remote) written = &earlier;
  }
  if (written != nullptr && prng.below(2) == 0) {
    r.message = written->message;
    s.rkey = peer_->slots_region_.key;
    s.remote_address = peer_->slots_region_.iova +
                       static_cast<uint64_t>(written->remote_slot) * shape_.max_message;
    // The slot stays in use until the READ completes.
    r.remote_slot = std::exchange(written->remote_slot, -1);
    written->check_remote = false;
  } else if (const Window& w = peer_->window_;
             prng.below(3) == 0 && use_window(r, s, kWindowHalf - w.begin)) {
    const auto half = peer_->window_model_.begin() + kWindowHalf;
    r.message.assign(half, half + std::min<ptrdiff_t>(random_length(), kWindowHalf));
  } else {
    const uint32_t length = random_length();
    const auto at = prng.below(peer_->fixed_.bytes.size() - length + 1);
    r.message.assign(peer_->fixed_model_.begin() + static_cast<ptrdiff_t>(at),
                     peer_->fixed_model_.begin() + static_cast<ptrdiff_t>(at + length));
    s.rkey = peer_->fixed_.key;
    s.remote_address = peer_->fixed_.iova + at;
  }
  r.local_slot = free_local_.back();
  free_local_.pop_back();
  r.sges = split(local_, static_cast<uint64_t>(r.local_slot) * shape_.max_message,
                 static_cast<uint32_t>(r.message.size()), shape_.qp.sges, prng);
  return true;
}

bool Endpoint::choose_atomic(Request& r, core::SendRequest& s) {
  Prng& prng = world_.prng();
  if (prng.below(4) == 0) {
    // Reads the words of the atomics, where a wrong order or a repeated execution is detected.
    const uint64_t which = prng.below(2);
    r.op = SendOp::AtomicWrite;
    fill_message(r, s, 8);
    std::memcpy(&peer_->word_model_[which], r.message.data(), 8);
    s.rkey = peer_->words_.key;
    s.remote_address = peer_->words_.iova + 8 * which;
    return true;
  }
  r.local_slot = free_local_.back();
  free_local_.pop_back();
  r.sges = {
      {local_.iova + static_cast<uint64_t>(r.local_slot) * shape_.max_message, 8, local_.key}};
  uint64_t original = 0;
  if (counter_ != nullptr && prng.below(3) == 0) {
    r.op = SendOp::FetchAdd;
    r.shared_counter = true;
    s.compare_add = 1;
    s.rkey = counter_->region.key;
    s.remote_address = counter_->region.iova;
    ++counter_->added;
  } else {
    const bool swap = prng.below(2) == 0;
    uint64_t& word = peer_->word_model_[swap ? 1 : 0];
    original = word;
    s.rkey = peer_->words_.key;
    s.remote_address = peer_->words_.iova + (swap ? 8 : 0);
    if (swap) {
      r.op = SendOp::CompareSwap;
      s.compare_add = prng.below(4) == 0 ? word + 1 : word;
      s.swap = prng.next();
      if (s.compare_add == word) word = s.swap;
    } else {
      r.op = SendOp::FetchAdd;
      s.compare_add = prng.next();
      word += s.compare_add;
    }
  }
  r.message.resize(8);
  std::memcpy(r.message.data(), &original, 8);
  return true;
}

// Increments the counter in the peer's durable memory, or flushes it.
bool Endpoint::choose_durable(Request& r, core::SendRequest& s) {
  Prng& prng = world_.prng();
  const DurableRegion& region = peer_->durable_;
  s.rkey = region.key;
  s.remote_address = region.iova;
  if (prng.below(2) == 0) {
    r.op = SendOp::Write;
    const uint64_t count = ++peer_->durable_model_;
    fill_message(r, s, sizeof count);
    std::memcpy(r.message.data(), &count, sizeof count);
    scatter(local_, r.sges, r.message);
    return true;
  }
  r.op = SendOp::Flush;
  s.flush.placement = static_cast<uint8_t>(1 + prng.below(3));
  s.flush.selectivity = static_cast<uint8_t>(prng.below(2));
  s.flush.length = s.flush.selectivity == wire::kSelectRange ? sizeof(uint64_t) : 0;
  if ((s.flush.placement & wire::kPlacePersistent) != 0) {
    r.durable = peer_->durable_model_;
    ++peer_->flushes_;
  }
  return true;
}

bool Endpoint::choose_window(Request& r, core::SendRequest& s) {
  if (window_.state == Window::Unbound) {
    bind_window(r, s);
    return true;
  }
  // The owner invalidates the window only while the peer does not use it.
  if (window_.state != Window::Bound || window_.uses != 0) return false;
  if (window_.type == core::WindowType::Type2) {
    r.op = SendOp::LocalInvalidate;
    s.immediate_or_rkey = window_.key;
    window_.state = Window::Ending;
    return true;
  }
  bind_window(r, s);
  if (world_.prng().below(2) == 0) {  // length 0 unbinds it
    s.bind.length = 0;
    window_.state = Window::Ending;
  }
  return true;
}

void Endpoint::bind_window(Request& r, core::SendRequest& s) {
  Prng& prng = world_.prng();
  r.op = SendOp::BindWindow;
  s.window_rkey = window_.key;
  window_.key = (window_.key & ~0xFFu) | ((window_.key + 1) & 0xFF);
  window_.begin = 8 * prng.below(64);
  const bool zero_based = prng.below(2) == 0;
  const uint64_t at = window_area_.iova + window_.begin;
  window_.base = zero_based ? 0 : at;
  s.bind = {.region_lkey = window_area_.key,
            .address = at,
            .length = window_area_.bytes.size() - window_.begin,
            .access = core::kRemoteWrite | core::kRemoteRead | (zero_based ? core::kZeroBased : 0),
            .new_rkey = window_.key};
  window_.state = Window::Binding;
}

// Uses the peer's window, `offset` bytes into the bound range. False: it is not bound.
bool Endpoint::use_window(Request& r, core::SendRequest& s, uint64_t offset) {
  Window& w = peer_->window_;
  if (w.state != Window::Bound) return false;
  ++w.uses;
  r.through_window = true;
  s.rkey = w.key;
  s.remote_address = w.base + offset;
  return true;
}

}  // namespace verbena::sim

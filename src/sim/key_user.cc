// Requests with keys that may be withdrawn at any time, and their completions.
#include "sim/key_user.h"

#include <algorithm>

namespace verbena::sim {

using core::SendOp;
using core::WcStatus;

void KeyUser::open(const End& peer, const End& owner, const ConnectionShape& shape,
                   bool may_lose_nak) {
  peer_ = peer;
  owner_ = owner;
  may_lose_nak_ = may_lose_nak;
  is_stopping_ = false;
  local_ = peer.host->add_region(uint64_t{kPlaces} * KeyedArea::kPlaceBytes, core::kLocalWrite);
  free_.clear();
  for (uint32_t i = 0; i < kPlaces; ++i) free_.push_back(i);
  QpShape qp{.depth = 16, .sges = 3};
  peer_.qp = &peer.host->create_qp(*peer.cq, *peer.cq, qp);
  qp.srq = receives_.srq();
  owner_.qp = &owner.host->create_qp(*owner.cq, *owner.cq, qp);
  connect(*peer.host, *peer_.qp, *owner.host, *owner_.qp, shape);
}

// --- posting -------------------------------------------------------------------------------------

void KeyUser::post_request() {
  if (free_.empty() || has_failed()) return;
  KeyedArea& area = *areas_[prng().below(areas_.size())];
  Request r;
  r.op = prng().below(3) == 0 ? SendOp::Read : SendOp::Write;
  auto use = area.use(qpn());
  if (prng().below(32) == 0) use = area.use_refused(qpn());
  const bool invalidates = area.kind() == KeyedArea::Kind::Window2 && prng().below(6) == 0;
  if (use && use->grant != KeyedArea::Use::kNone && invalidates && !area.is_busy()) {
    return post_invalidate(area);
  }
  if (use && prng().below(8) != 0) {
    r.area = &area;
    r.use = *use;
  } else {
    r.op = SendOp::Send;
  }
  post(std::move(r));
}

// Sometimes followed by a request with the same key, which must fail.
void KeyUser::post_invalidate(KeyedArea& area) {
  Request r;
  r.op = SendOp::SendInvalidate;
  r.area = &area;
  r.use = area.invalidate_by(qpn());
  const uint32_t key = r.use.key;
  post(std::move(r));
  if (free_.empty() || prng().below(4) != 0) return;
  Request late;
  late.op = SendOp::Write;
  late.area = &area;
  late.use = area.use_from_now_on(key, qpn());
  post(std::move(late));
}

void KeyUser::post(Request r) {
  r.wr_id = next_wr_id_++;
  r.place = free_.back();
  free_.pop_back();
  const auto length = static_cast<uint32_t>(1 + prng().below(KeyedArea::kPlaceBytes));
  const uint64_t local = uint64_t{r.place} * KeyedArea::kPlaceBytes;
  std::ranges::copy(random_bytes(length, prng()), local_.at(local, length).begin());
  r.offset = uint64_t{number_ * kPlaces + r.place} * KeyedArea::kPlaceBytes;
  if (r.op == SendOp::Read) {
    r.offset = KeyedArea::kReadAt + prng().below(KeyedArea::kReadBytes - length + 1);
  }
  const auto sges = split(local_, local, length, 3, prng());
  // A SEND needs a receive, so the program must learn that it has not completed yet.
  const bool is_send = r.op == SendOp::Send || r.op == SendOp::SendInvalidate;
  const bool signaled = is_send || free_.size() <= 1 || prng().below(3) != 0;
  core::SendRequest s;
  s.wr_id = r.wr_id;
  s.op = r.op;
  s.flags = signaled ? core::kSignaled : 0;
  s.sges = sges;
  s.rkey = s.immediate_or_rkey = r.use.key;
  if (r.area != nullptr) s.remote_address = r.area->address() + r.offset;
  r.sges = sges;
  r.message = gather(local_, sges, length);  // in the order of the elements
  sent_.posted(r.wr_id, signaled);
  if (is_send) inbound_.push_back(r);
  requests_.push_back(std::move(r));
  if (!peer_.host->post_send(*peer_.qp, s).ok()) problem("post_send refused");
}

void KeyUser::post_change(KeyedArea& area, core::SendRequest s) {
  s.wr_id = next_wr_id_++;
  s.flags = core::kSignaled;
  changed_.posted(s.wr_id, true);
  changes_.push_back({s.wr_id, &area});
  if (!owner_.host->post_send(*owner_.qp, s).ok()) problem("post_send refused");
}

// --- completions ---------------------------------------------------------------------------------

void KeyUser::on_completion(const core::Completion& c) {
  if (c.qpn == peer_.qp->qpn()) return on_sent(c);
  return c.opcode >= core::WcOpcode::Receive ? on_received(c) : on_changed(c);
}

void KeyUser::on_sent(const core::Completion& c) {
  const bool had_failed = has_failed();
  const std::string what = sent_.completed(c);
  if (!what.empty()) return problem(what);
  // Earlier unsignalled requests have succeeded.
  while (requests_.front().wr_id != c.wr_id) {
    check_success(requests_.front());
    requests_.pop_front();
  }
  if (c.status == WcStatus::Success) {
    check_success(requests_.front());
  } else if (!had_failed) {
    check_failure(c.status);
  }
  requests_.pop_front();
}

void KeyUser::check_success(const Request& r) {
  free_.push_back(r.place);
  if (r.area == nullptr) return;
  if (!r.area->may_succeed(r.use))
    return problem("a request succeeded although its key was not valid");
  if (r.op == SendOp::SendInvalidate) return;
  const auto length = static_cast<uint32_t>(r.message.size());
  const Bytes bytes = r.op == SendOp::Read ? gather(local_, r.sges, length) : r.message;
  if (r.area->has_held(r.use, r.offset, bytes)) return;
  problem(r.op == SendOp::Read ? "a READ returned bytes that the memory did not have"
                               : "a WRITE succeeded but memory did not get its bytes");
}

// The status of the first request that failed.
void KeyUser::check_failure(WcStatus status) {
  const auto may_fail = [](const Request& r) {
    return r.area != nullptr && r.area->may_fail(r.use);
  };
  switch (status) {
    case WcStatus::Flushed:
      if (!is_stopping_) problem("a request was flushed without a failure");
      return;
    case WcStatus::RemoteAccess:
      ++refused_;
      if (!may_fail(requests_.front())) problem("a request with a valid key failed");
      return;
    case WcStatus::RetryExceeded:
      // The NAK was lost or overtook an earlier response. The peer sends no other response.
      if (may_lose_nak_ && std::ranges::any_of(requests_, may_fail)) return;
      [[fallthrough]];
    default:
      problem("wrong status " + std::to_string(static_cast<int>(status)));
  }
}

void KeyUser::on_received(const core::Completion& c) {
  Receive receive;
  const std::string what = receives_.complete(c, &receive);
  if (!what.empty()) return problem(what);
  if (c.status != WcStatus::Success) {
    if (owner_.qp->state() != core::QpState::Error) problem("a receive failed");
    return;
  }
  if (inbound_.empty()) return problem("a message was received that was not sent, or twice");
  const Request sent = std::move(inbound_.front());
  inbound_.pop_front();
  const bool invalidates = sent.op == SendOp::SendInvalidate;
  if (c.byte_count != sent.message.size() ||
      receives_.read(receive, c.byte_count) != sent.message) {
    problem("a message was received with other bytes than were sent");
  }
  if (c.flags != (invalidates ? core::kWcWithInvalidate : 0)) problem("wrong flags of a receive");
  if (!invalidates) return;
  if (c.immediate_or_rkey != sent.use.key) problem("another key was invalidated");
  sent.area->invalidated_by_user(sent.use);
}

void KeyUser::on_changed(const core::Completion& c) {
  const std::string what = changed_.completed(c);
  if (!what.empty()) return problem(what);
  const Change change = changes_.front();
  changes_.pop_front();
  change.area->changed(c.status);
}

// --- the end -------------------------------------------------------------------------------------

void KeyUser::stop() {
  is_stopping_ = true;
  peer_.host->to_error(*peer_.qp);
  owner_.host->to_error(*owner_.qp);
}

void KeyUser::end() {
  if (is_waiting()) problem("requests are left without a completion");
  const uint32_t user = qpn();
  peer_.host->destroy(*peer_.qp);
  owner_.host->destroy(*owner_.qp);
  for (const auto& area : areas_) area->user_ended(user);
  if (!peer_.host->process().remove_region(local_.key).ok()) problem("deregistration refused");
  peer_.qp = owner_.qp = nullptr;
  sent_ = changed_ = Ledger();
  requests_.clear();
  inbound_.clear();
  changes_.clear();
}

}  // namespace verbena::sim

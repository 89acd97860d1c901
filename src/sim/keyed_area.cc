// Grants of an area: how they begin and end, and what they permit.
#include "sim/keyed_area.h"

#include <algorithm>

#include "sim/scatter_gather.h"

namespace verbena::sim {
namespace {

constexpr std::byte kCanary{0xB9};
constexpr uint32_t kPeerAccess = core::kRemoteWrite | core::kRemoteRead;

// The functions of a MemoryBacking have no argument for their owner.
thread_local const std::function<void(const std::byte*)>* observer = nullptr;

void copy_into_watched(std::byte* to, std::span<const std::byte> from) {
  if (observer != nullptr) (*observer)(to);
  std::ranges::copy(from, to);
}
void copy_from_watched(std::span<std::byte> to, const std::byte* from) {
  if (observer != nullptr) (*observer)(from);
  std::copy_n(from, to.size(), to.data());
}
constexpr core::MemoryBacking kWatched{.copy_in = copy_into_watched, .copy_out = copy_from_watched};

uint32_t with_next_tag(uint32_t key) { return (key & ~0xFFu) | ((key + 1) & 0xFF); }

}  // namespace

AccessObserver::AccessObserver(std::function<void(const std::byte*)> on_access)
    : on_access_(std::move(on_access)) {
  VERBENA_CHECK(observer == nullptr);
  observer = &on_access_;
}
AccessObserver::~AccessObserver() { observer = nullptr; }

KeyedArea::KeyedArea(World& world, Report& report, Host& owner, Kind kind, bool is_watched)
    : world_(world),
      report_(report),
      process_(owner.process()),
      kind_(kind),
      backing_(is_watched ? &kWatched : nullptr),
      iova_(world.prng().next() & 0x00FFFFFFFFFFF000u) {
  for (size_t b = 0; b < 2; ++b) {
    blocks_[b] = process_.arena().allocate(kBytes);
    std::ranges::fill(blocks_[b], kCanary);
    if (is_window()) block_keys_[b] = process_.memory().add_region(region_over(b)).value();
  }
  if (is_window()) {
    const auto type = kind == Kind::Window1 ? core::WindowType::Type1 : core::WindowType::Type2;
    window_key_ = process_.memory().add_window(1, type).value();
  }
}

core::RegionInfo KeyedArea::region_over(size_t block) const {
  const uint32_t access = core::kLocalWrite | (is_window() ? core::kWindowBind : kPeerAccess);
  return {1, blocks_[block].data(), kBytes, iova_, access, backing_};
}

// --- grants --------------------------------------------------------------------------------------

std::optional<size_t> KeyedArea::free_block() const {
  for (size_t b = 0; b < 2; ++b) {
    const auto uses = [b](const Grant& g) { return g.block == b && !g.is_over; };
    if (std::ranges::none_of(grants_, uses)) return b;
  }
  return std::nullopt;
}

// Fills the block with new content.
size_t KeyedArea::grant_block(uint32_t key, size_t block, uint32_t user) {
  check_untouched();
  std::ranges::copy(random_bytes(kBytes, world_.lane_prng()), blocks_[block].begin());
  Grant g;
  g.key = key;
  g.block = block;
  g.user = user;
  grants_.push_back(std::move(g));
  return grants_.size() - 1;
}

// The withdrawal has returned, or its completion was polled.
void KeyedArea::end(size_t grant) {
  Grant& g = grants_[grant];
  if (g.is_over) return;
  const auto bytes = blocks_[g.block];
  g.content.assign(bytes.begin(), bytes.end());
  g.is_ending = g.is_over = true;
  std::ranges::fill(bytes, kCanary);
  if (grant_ == grant) grant_ = Use::kNone;
}

KeyUse KeyedArea::key_use(const Grant& g) const { return {g.key, iova_, wire::Qpn(g.user)}; }

// --- peers ---------------------------------------------------------------------------------------

std::optional<KeyedArea::Use> KeyedArea::use(uint32_t user) const {
  if (!is_valid()) return std::nullopt;
  const Grant& g = grants_[grant_];
  if (g.user != 0 && g.user != user) return std::nullopt;
  return Use{g.key, user, grant_, grant_};
}

std::optional<KeyedArea::Use> KeyedArea::use_refused(uint32_t user) const {
  if (is_valid() && !use(user)) return use_from_now_on(grants_[grant_].key, user);
  const auto is_valid_key = [&](uint32_t key) {
    return std::ranges::any_of(grants_, [&](const Grant& g) { return g.key == key && !g.is_over; });
  };
  for (size_t i = grants_.size(); i-- > 0;) {
    if (!is_valid_key(grants_[i].key)) return use_from_now_on(grants_[i].key, user);
  }
  return std::nullopt;
}

KeyedArea::Use KeyedArea::invalidate_by(uint32_t user) {
  const Use u = *use(user);
  ++withdrawals_;
  grant_ = Use::kNone;
  return u;
}

void KeyedArea::invalidated_by_user(const Use& u) { end(u.grant); }

bool KeyedArea::serves(const Grant& g, const Use& u) const {
  return g.key == u.key && (g.user == 0 || g.user == u.user);
}

bool KeyedArea::may_succeed(const Use& u) const {
  return std::any_of(grants_.begin() + static_cast<ptrdiff_t>(u.since), grants_.end(),
                     [&](const Grant& g) { return serves(g, u); });
}

bool KeyedArea::may_fail(const Use& u) const {
  return u.grant == Use::kNone || grants_[u.grant].is_ending;
}

bool KeyedArea::has_held(const Use& u, uint64_t offset, std::span<const std::byte> bytes) const {
  for (size_t i = 0; i < bytes.size(); ++i) {
    const bool found = std::any_of(
        grants_.begin() + static_cast<ptrdiff_t>(u.since), grants_.end(), [&](const Grant& g) {
          const std::byte* const held = g.is_over ? g.content.data() : blocks_[g.block].data();
          return serves(g, u) && held[offset + i] == bytes[i];
        });
    if (!found) return false;
  }
  return true;
}

// --- the owner -----------------------------------------------------------------------------------

void KeyedArea::register_region() {
  const auto block = free_block();
  if (!block || is_valid()) return;
  const uint32_t key = process_.memory().add_region(region_over(*block)).value();
  grant_ = grant_block(key, *block, 0);
}

bool KeyedArea::withdraw_by_call() {
  const bool has_key = std::ranges::any_of(grants_, [](const Grant& g) { return !g.is_ending; });
  if (is_busy_ || !has_key) return false;
  if (is_window()) return remove_window();
  return world_.lane_prng().below(2) == 0 ? change_region() : remove_region();
}

bool KeyedArea::remove_region() {
  const size_t grant = begin_call();
  grant_ = Use::kNone;
  if (!process_.remove_region(grants_[grant].key).ok()) problem("deregistration refused");
  end_call();
  return true;
}

// The key stays and gets the other block.
bool KeyedArea::change_region() {
  const auto block = free_block();
  if (!block) return false;
  const KeyUse use = key_use(grants_[begin_call()]);
  grant_ = grant_block(use.key, *block, 0);
  const auto call = [&] { return process_.memory().change_region(use.key, region_over(*block)); };
  if (!process_.withdraw(use, call, true).ok()) problem("a region could not be changed");
  end_call();
  return true;
}

bool KeyedArea::remove_window() {
  const KeyUse use = key_use(grants_[begin_call()]);
  grant_ = Use::kNone;
  const auto call = [&] { return process_.memory().remove_window(window_key_); };
  if (!process_.withdraw(use, call).ok()) problem("a window could not be deallocated");
  end_call();
  const auto type = kind_ == Kind::Window1 ? core::WindowType::Type1 : core::WindowType::Type2;
  process_.after_lookups(
      [this, type] { window_key_ = process_.memory().add_window(1, type).value(); });
  return true;
}

// A call withdraws all grants. Returns the latest.
size_t KeyedArea::begin_call() {
  is_busy_ = true;
  ++withdrawals_;
  const uint64_t moment = process_.next_moment();
  size_t latest = Use::kNone;
  for (size_t i = 0; i < grants_.size(); ++i) {
    if (grants_[i].is_over) continue;
    grants_[i].is_ending = true;
    grants_[i].withdrawn = moment;
    latest = i;
  }
  return latest;
}

void KeyedArea::end_call() {
  process_.after_lookups([this] {
    is_busy_ = false;
    for (size_t i = 0; i < grants_.size(); ++i) {
      if (grants_[i].is_ending) end(i);
    }
  });
}

// A type 2 window must not be bound, also not until a peer's invalidation.
bool KeyedArea::can_bind() const {
  const bool is_bound = std::ranges::any_of(grants_, [](const Grant& g) { return !g.is_over; });
  return !is_busy_ && free_block() && (kind_ == Kind::Window1 || !is_bound);
}

core::SendRequest KeyedArea::bind(uint32_t user) {
  const size_t block = *free_block();
  const uint32_t present = window_key_;
  begin_change(with_next_tag(window_key_));
  next_ = grant_block(window_key_, block, kind_ == Kind::Window2 ? user : 0);
  core::SendRequest s;
  s.op = core::SendOp::BindWindow;
  s.window_rkey = present;
  s.bind = {.region_lkey = block_keys_[block],
            .address = iova_,
            .length = kBytes,
            .access = kPeerAccess,
            .new_rkey = window_key_};
  return s;
}

core::SendRequest KeyedArea::unbind_or_invalidate() {
  core::SendRequest s;
  s.immediate_or_rkey = window_key_;
  s.op = core::SendOp::LocalInvalidate;
  begin_change(kind_ == Kind::Window1 ? with_next_tag(window_key_) : window_key_);
  if (kind_ == Kind::Window2) return s;
  s.op = core::SendOp::BindWindow;  // of length 0
  s.window_rkey = s.immediate_or_rkey;
  s.bind.new_rkey = window_key_;
  return s;
}

// A work request will end the present grant.
void KeyedArea::begin_change(uint32_t key) {
  is_busy_ = true;
  window_key_ = key;
  next_ = Use::kNone;
  before_ = grant_;
  if (before_ == Use::kNone) return;
  ++withdrawals_;
  grants_[before_].is_ending = true;
  if (kind_ == Kind::Window2) return;  // only its own engine looks it up
  rebind_ = key_use(grants_[before_]);
  process_.rebind_posted(*rebind_);
}

void KeyedArea::changed(core::WcStatus status) {
  const bool executed = status == core::WcStatus::Success;
  is_busy_ = false;
  if (rebind_) process_.rebind_completed(*rebind_, executed);
  rebind_.reset();
  if (executed) {
    if (before_ != Use::kNone) end(before_);
    grant_ = next_;
    return;
  }
  if (status != core::WcStatus::Flushed) problem("a window cannot be bound or invalidated");
  // It may have been executed. The end of its queue pair unbinds a type 2 window.
  if (kind_ == Kind::Window1) remove_window();
}

void KeyedArea::user_ended(uint32_t user) {
  if (kind_ != Kind::Window2) return;
  for (size_t i = 0; i < grants_.size(); ++i) {
    if (grants_[i].user == user) end(i);
  }
}

// --- checks --------------------------------------------------------------------------------------

bool KeyedArea::contains(const std::byte* at) const {
  return std::ranges::any_of(
      blocks_, [at](const auto& b) { return at >= b.data() && at < b.data() + b.size(); });
}

void KeyedArea::check_access(const std::byte* at) {
  const size_t block = at >= blocks_[1].data() && at < blocks_[1].data() + kBytes ? 1 : 0;
  const auto g = std::ranges::find_if(
      grants_, [block](const Grant& x) { return x.block == block && !x.is_over; });
  if (g == grants_.end()) {
    problem("a lane accessed memory after its key was withdrawn");
  } else if (g->withdrawn != 0 && process_.call_began() > g->withdrawn) {
    problem("a lane began to access memory after its key was withdrawn");
  }
}

void KeyedArea::check_untouched() {
  for (size_t b = 0; b < 2; ++b) {
    const auto uses = [b](const Grant& g) { return g.block == b && !g.is_over; };
    if (std::ranges::any_of(grants_, uses)) continue;
    if (std::ranges::any_of(blocks_[b], [](std::byte x) { return x != kCanary; })) {
      problem("memory changed after its key was withdrawn");
      std::ranges::fill(blocks_[b], kCanary);
    }
  }
}

}  // namespace verbena::sim

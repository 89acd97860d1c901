// Runs in which a process with several lanes withdraws keys while peers use them through all of its
// lanes: it deregisters and changes regions, binds windows again and invalidates them, between
// turns, during turns and while other calls wait. After a withdrawal has returned, no lane accesses
// the memory. A request fails only if its key was withdrawn, and always if that was before.
#include <algorithm>
#include <optional>

#include "sim/key_user.h"
#include "sim/seed_run.h"
#include "sim/workload.h"

namespace verbena::sim {
namespace {

class WithdrawnRun {
 public:
  WithdrawnRun(uint64_t seed, TamperRule tamper) : world_(seed), in_memory_(shares_memory(seed)) {
    world_.network().set_tamper_rule(std::move(tamper));
  }

  RunResult run() {
    set_up();
    tick();
    const Instant limit = world_.now() + seconds(20);
    while (!is_finished_ && world_.now() < limit && world_.step()) {
    }
    if (!is_finished_) problem("the run does not end");
    world_.network().heal();
    if (!world_.run_until_quiet(seconds(20))) problem("the run does not become idle");
    for (auto& user : users_) reopen(*user, false);
    check_outcome();
    return result();
  }

 private:
  Prng& prng() { return world_.prng(); }
  void problem(const std::string& what) { report_.problem(world_.now(), what); }

  // --- hosts, areas, connections -----------------------------------------------------------------
  void set_up() {
    is_lossy_ = prng().below(3) == 0;
    LinkFaults& faults = world_.network().defaults();
    if (is_lossy_) faults.packet.loss = 0.02;
    faults.delay = nanoseconds(static_cast<int64_t>(500 + prng().below(10000)));
    reorders_ = prng().below(2) == 0;
    if (reorders_) faults.jitter = microseconds(10);
    add_lanes();
    add_peers();
    if (in_memory_) share_memory();
    receives_.emplace(world_, *owners_.front().host, PoolShape{16, KeyedArea::kPlaceBytes, 3}, 1);
    receives_->serve(*owners_.front().host->engine().create_srq(
        {.pd = 1, .max_wr = receives_->shape().depth, .max_sges = receives_->shape().sges}));
    add_areas();
    shape_.mtu = pick(prng(), {wire::Mtu::k256, wire::Mtu::k1024});
    shape_.timeout = 6;  // 262 us
    shape_.min_rnr_timer = 1;
    const uint64_t users = 2 + prng().below(KeyedArea::kPlaces / KeyUser::kPlaces - 1);
    for (uint32_t i = 0; i < users; ++i) {
      users_.push_back(std::make_unique<KeyUser>(world_, report_, i, areas_, *receives_));
      open(*users_.back());
    }
    observer_.emplace([this](const std::byte* at) { on_access(at); });
    ticks_left_ = 40 + prng().below(120);
  }

  void add_lanes() {
    Host& first = world_.add_host(prng().below(4) != 0);
    const uint64_t lanes = 2 + prng().below(3);
    const bool share_cq = prng().below(2) == 0;
    for (uint64_t i = 0; i < lanes; ++i) {
      Host& lane = i == 0 ? first : world_.add_lane(first, first.engine().state().extensions);
      lane.set_packets_per_turn(pick<size_t>(prng(), {3, 16, 64}));
      lane.set_ack_delay(prng().below(2) == 0 ? 8 : 0);
      auto& cq = i != 0 && share_cq ? *owners_.front().cq : first.create_cq(4096);
      if (share_cq) cq.share();
      owners_.push_back({&lane, &cq});
    }
    text_ = std::to_string(lanes) + " lanes" + (share_cq ? " with one completion queue" : "");
  }

  // One of them may be a lane of the process itself.
  void add_peers() {
    const uint64_t peers = 1 + prng().below(3);
    for (uint64_t i = 0; i < peers; ++i) {
      const bool extensions = prng().below(4) != 0;
      Host& peer = world_.add_host(extensions);
      peers_.push_back({&peer, &peer.create_cq(4096)});
    }
    if (prng().below(3) == 0) {
      Host& lane = *owners_.back().host;
      peers_.push_back({&lane, &lane.create_cq(4096)});
    }
    text_ += ", " + std::to_string(peers_.size()) + " peers" + (is_lossy_ ? ", lossy" : "") +
             (reorders_ ? ", reordered" : "") + (in_memory_ ? ", through memory" : "");
  }

  void share_memory() {
    const MemoryLinkShape link = MemoryLinkShape::drawn(world_.memory().prng());
    for (HostId b = 1; b < world_.host_count(); ++b) {
      for (HostId a = 0; a < b; ++a) world_.memory().open(a, b, link);
    }
  }

  void add_areas() {
    using enum KeyedArea::Kind;
    for (const auto kind : {Region, Window1, Window2}) {
      for (uint64_t i = 0, n = 1 + prng().below(3); i < n; ++i) {
        const bool is_watched = prng().below(2) == 0;
        areas_.push_back(
            std::make_unique<KeyedArea>(world_, report_, *owners_.front().host, kind, is_watched));
      }
    }
  }

  void open(KeyUser& user) {
    const KeyUser::End& peer = peers_[prng().below(peers_.size())];
    const KeyUser::End& owner = owners_[prng().below(owners_.size())];
    shape_.psn_a = static_cast<uint32_t>(prng().below(1 << 24));
    shape_.psn_b = static_cast<uint32_t>(prng().below(1 << 24));
    user.open(peer, owner, shape_, is_lossy_ || reorders_);
  }

  // --- what the programs do ----------------------------------------------------------------------
  void tick() {
    world_.after(nanoseconds(static_cast<int64_t>(500 + prng().below(15000))), [this] {
      poll();
      if (prng().below(4) != 0) fill_receives();
      if (ticks_left_ == 0) return finish();
      --ticks_left_;
      for (auto& user : users_) {
        if (user->has_failed() && prng().below(3) == 0) reopen(*user, true);
        for (uint64_t i = prng().below(4); i > 0; --i) user->post_request();
      }
      for (uint64_t i = prng().below(3); i > 0; --i) change(*areas_[prng().below(areas_.size())]);
      if (prng().below(40) == 0) reopen(*users_[prng().below(users_.size())], true);
      tick();
    });
  }

  // No new requests; the present ones complete.
  void finish() {
    const auto is_waiting = [](const auto& u) { return !u->has_failed() && u->is_waiting(); };
    is_finished_ = std::ranges::none_of(users_, is_waiting);
    if (!is_finished_) tick();
  }

  void fill_receives() {
    const std::string what = receives_->fill();
    if (!what.empty()) problem(what);
  }

  // Ends a connection, and begins it again with other lanes.
  void reopen(KeyUser& user, bool again) {
    user.stop();
    poll();
    user.end();
    if (again) open(user);
  }

  void change(KeyedArea& area) {
    if (area.kind() == KeyedArea::Kind::Region && !area.is_valid()) return area.register_region();
    const bool is_call = area.kind() == KeyedArea::Kind::Region || prng().below(4) == 0;
    if (is_call) {
      area.withdraw_by_call();
    } else {
      change_window(area);
    }
  }

  void change_window(KeyedArea& area) {
    if (area.is_busy()) return;
    const bool is_type2 = area.kind() == KeyedArea::Kind::Window2;
    const auto able = [&](const auto& u) {
      return !u->has_failed() && (!is_type2 || !area.is_valid() || area.use(u->qpn()));
    };
    std::vector<KeyUser*> candidates;
    for (const auto& u : users_) {
      if (able(u)) candidates.push_back(u.get());
    }
    if (candidates.empty()) return;
    KeyUser& user = *candidates[prng().below(candidates.size())];
    if (area.is_valid() && (is_type2 || prng().below(3) == 0)) {
      user.post_change(area, area.unbind_or_invalidate());
    } else if (area.can_bind()) {
      user.post_change(area, area.bind(user.qpn()));
    }
  }

  // A lane is in the middle of an access. Another thread may withdraw a key at this moment.
  void on_access(const std::byte* at) {
    for (const auto& area : areas_) {
      if (area->contains(at)) area->check_access(at);
    }
    if (accesses_ == 2 || world_.lane_prng().below(6) != 0) return;
    ++accesses_;
    KeyedArea& area = *areas_[world_.lane_prng().below(areas_.size())];
    if (area.withdraw_by_call()) ++in_turns_;
    --accesses_;
  }

  void poll() {
    core::Completion c;
    const auto take = [&](core::CompletionQueue& cq) {
      while (cq.poll(&c, 1) == 1) {
        world_.trace().add(c.wr_id << 8 | static_cast<uint64_t>(c.status));
        const auto user =
            std::ranges::find_if(users_, [&](const auto& u) { return u->owns(c.qpn); });
        if (user == users_.end()) {
          problem("a completion of an unknown queue pair");
        } else {
          (*user)->on_completion(c);
        }
      }
    };
    for (const auto& owner : owners_) take(*owner.cq);
    for (const auto& peer : peers_) take(*peer.cq);
  }

  // --- the end -----------------------------------------------------------------------------------
  void check_outcome() {
    for (const auto& area : areas_) area->check_untouched();
    const std::string what = receives_->check_stopped();
    if (!what.empty()) problem(what);
    for (HostId h = 0; h < world_.host_count(); ++h) {
      Host& host = world_.host(h);
      if (!host.arena().intact()) problem("memory around regions changed");
      if (host.engine().next_deadline() != kNever) problem("a deadline is left");
    }
    for (const std::string& found : world_.process_problems()) problem(found);
  }

  RunResult result() {
    RunResult r = result_of(RunKind::Withdrawn, world_, report_);
    for (const auto& area : areas_) r.lanes.withdrawals += area->withdrawals();
    for (const auto& user : users_) r.lanes.refused += user->refused();
    r.lanes.in_turns = in_turns_;
    r.shape = text_;
    return r;
  }

  World world_;
  Report report_;
  const bool in_memory_;
  bool is_lossy_ = false;
  bool reorders_ = false;
  std::string text_;
  std::vector<KeyUser::End> owners_;  // the lanes of the process; they have no queue pairs
  std::vector<KeyUser::End> peers_;
  std::optional<ReceivePool> receives_;  // shared by all lanes
  KeyUser::Areas areas_;
  std::vector<std::unique_ptr<KeyUser>> users_;
  std::optional<AccessObserver> observer_;
  ConnectionShape shape_;
  uint64_t ticks_left_ = 0;
  bool is_finished_ = false;
  int accesses_ = 0;  // during which a key is withdrawn
  uint64_t in_turns_ = 0;
};

}  // namespace

RunResult run_withdrawn(uint64_t seed, TamperRule tamper) {
  return WithdrawnRun(seed, std::move(tamper)).run();
}

}  // namespace verbena::sim

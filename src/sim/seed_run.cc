// Runs in which the applications follow the rules.
#include "sim/seed_run.h"

#include <algorithm>
#include <optional>

#include "sim/workload.h"

namespace verbena::sim {
namespace {

class WorkloadRun {
 public:
  WorkloadRun(uint64_t seed, bool hostile, TamperRule tamper)
      : world_(seed),
        hostile_(hostile),
        shares_memory_(shares_memory(seed)),
        has_lanes_(has_lanes(seed)),
        mark_probability_(mark_probability(seed)) {
    world_.network().set_tamper_rule(std::move(tamper));
  }

  RunResult run() {
    set_up();
    const Instant faults_end =
        world_.now() + milliseconds(2 + static_cast<int64_t>(prng().below(30)));
    schedule_outages(faults_end);
    schedule_link_faults(faults_end);
    world_.run_until(faults_end);
    world_.network().heal();
    for (HostId h = 0; h < world_.host_count(); ++h) world_.host(h).set_paused(false);
    healed_ = true;
    const Instant limit = world_.now() + seconds(4);
    while (world_.now() < limit && !workload_->done() &&
           (!hostile_ || world_.now() < faults_end + milliseconds(50))) {
      if (!world_.step()) break;
    }
    stop_ = true;
    check_outcome();
    return result();
  }

 private:
  Prng& prng() { return world_.prng(); }

  void set_up() {
    Prng& r = prng();
    LinkFaults faults;
    faults.delay = nanoseconds(static_cast<int64_t>(500 + r.below(20000)));
    if (r.below(5) != 0) {
      faults.packet.loss = pick(r, {0.002, 0.03, 0.08});
      faults.packet.duplicate = pick(r, {0.0, 0.01, 0.1});
      faults.packet.corrupt = pick(r, {0.0, 0.005});
      faults.jitter =
          pick(r, {nanoseconds(0), nanoseconds(500), microseconds(10), microseconds(60)});
      faults.packet.reorder = pick(r, {0.0, 0.0, 0.01, 0.1});
      faults.packet.delay = pick(r, {0.0, 0.0, 0.01, 0.1});
    }
    faults.bits_per_second = pick<uint64_t>(r, {0, 1000000000, 10000000000, 100000000000});
    faults.queue_bytes = pick<uint64_t>(r, {100000, 1000000});
    if (hostile_) faults.hostile = pick(r, {0.01, 0.2});
    faults.packet.mark = mark_probability_;
    world_.network().defaults() = faults;

    WorkloadShape shape;
    shape.max_message = pick<uint32_t>(r, {64, 1024, 8192, 65536});
    shape.qp.depth = pick<uint32_t>(r, {2, 4, 16, 32});
    if (shape.max_message == 65536) shape.qp.depth = std::min(shape.qp.depth, 16u);
    shape.qp.sges = pick<uint32_t>(r, {1, 3, 32});
    shape.qp.max_inline = pick<uint32_t>(r, {0, 64, 1024});
    shape.qp.signal_all = r.below(4) == 0;
    shape.requests = static_cast<uint32_t>(10 + r.below(shape.max_message > 8192 ? 60 : 400));
    shape.late_receives = pick(r, {0.0, 0.5, 0.95});
    shape.reorders =
        faults.jitter != nanoseconds(0) || faults.packet.reorder > 0 || faults.packet.delay > 0;
    shape.duplicates = faults.packet.duplicate > 0;
    shape.strict = !hostile_;
    if (shares_memory_) choose_links(shape);
    shape.lanes = has_lanes_;
    workload_.emplace(world_, shape, report_);
    for (const auto& a : workload_->actors()) tick(*a);

    text_ = workload_->describe() + describe(shape) + describe(faults);
  }

  static std::string describe(const WorkloadShape& shape) {
    char text[100];
    std::snprintf(text, sizeof text, ", message <= %u, depth %u, sges %u, requests %u",
                  shape.max_message, shape.qp.depth, shape.qp.sges, shape.requests);
    return text;
  }

  static std::string describe(const LinkFaults& faults) {
    std::string all;
    char text[100];
    for (const wire::PacketFaultInfo& f : wire::kPacketFaults) {
      const double probability = faults.packet.*f.probability;
      if (probability == 0) continue;
      std::snprintf(text, sizeof text, ", %s %.3f", f.name.data(), probability);
      all += text;
    }
    std::snprintf(text, sizeof text, ", jitter %lld ns, %llu Mb/s",
                  static_cast<long long>(faults.jitter.ns),
                  static_cast<unsigned long long>(faults.bits_per_second / 1000000));
    return all + text;
  }

  // The end of a link fails requests with packets larger than the path MTU. So in runs where all
  // work must complete, only links without such packets end.
  void choose_links(WorkloadShape& shape) {
    Prng& r = world_.memory().prng();
    MemoryLinkShape link;
    link.large_packets = r.below(2) == 0;
    link.reachable = r.below(4) != 0;
    link.refusal = pick(r, {0.0, 0.1, 0.5});
    if (hostile_) link.hostile = pick(r, {0.01, 0.2});
    links_may_end_ = hostile_ || !link.large_packets || shape.max_message <= 256;
    shape.memory = link;
    shape.reorders |= links_may_end_;  // packets on the two media overtake each other
  }

  // Rings that are full for a while, readers that stop, and links that end. Memory is fast, so all
  // of this happens early. The two hosts detect the end of a link at different times.
  void schedule_link_faults(Instant end) {
    Prng& r = world_.memory().prng();
    const Duration span = std::min(end - world_.now(), milliseconds(4));
    const auto some_time = [&] {
      return world_.now() + nanoseconds(static_cast<int64_t>(r.below(uint64_t(span.ns))));
    };
    for (const auto& [lower, higher] : workload_->links()) {
      const bool upwards = r.below(2) == 0;
      const HostId a = upwards ? lower : higher;
      const HostId b = upwards ? higher : lower;
      if (r.below(2) == 0) {
        const Instant start = some_time();
        const auto length = microseconds(static_cast<int64_t>(10 + r.below(4000)));
        world_.at(start, [this, a, b] { world_.memory().block(a, b, true); });
        world_.at(start + length, [this, a, b] { world_.memory().block(a, b, false); });
      }
      if (r.below(2) == 0) {
        const Instant start = some_time();
        const auto length = microseconds(static_cast<int64_t>(500 + r.below(10'000)));
        world_.at(start, [this, b] { outage(b, b, true, true); });
        world_.at(start + length, [this, b] { outage(b, b, true, false); });
      }
      if (links_may_end_ && r.below(2) == 0) {
        const Instant start = some_time();
        const auto later = nanoseconds(static_cast<int64_t>(r.below(200'000)));
        world_.at(start, [this, a, b] { world_.host(a).on_link_end(b); });
        world_.at(start + later, [this, a, b] { world_.host(b).on_link_end(a); });
      }
    }
  }

  // Each application polls its queues at its own interval.
  void tick(Actor& a) {
    world_.after(nanoseconds(static_cast<int64_t>(1000 + prng().below(30000))), [this, &a] {
      workload_->poll(a.host().process());
      if (stop_) return;
      a.work();
      if (healed_) a.fill_receives();
      tick(a);
    });
  }

  // Partitions and pauses, shorter than the time that retry_cnt covers.
  void schedule_outages(Instant end) {
    const uint64_t outages = prng().below(4);
    for (uint64_t i = 0; i < outages; ++i) {
      const auto length = microseconds(static_cast<int64_t>(50 + prng().below(6000)));
      const Instant start = world_.now() + nanoseconds(static_cast<int64_t>(prng().below(
                                               static_cast<uint64_t>((end - world_.now()).ns))));
      const auto a = static_cast<HostId>(prng().below(world_.host_count()));
      const auto b = static_cast<HostId>(prng().below(world_.host_count()));
      const bool pause = prng().below(2) == 0;
      world_.at(start, [this, a, b, pause] { outage(a, b, pause, true); });
      world_.at(start + length, [this, a, b, pause] { outage(a, b, pause, false); });
    }
  }

  void outage(HostId a, HostId b, bool pause, bool on) {
    if (healed_) return;
    if (pause) {
      world_.host(a).set_paused(on);
    } else {
      world_.network().link(a, b).partitioned = on;
    }
  }

  void check_outcome() {
    if (!hostile_) check_work();
    // An attacked queue pair may have no receives left and cause endless RNR retries, so stop
    // first.
    workload_->stop();
    for (HostId h = 0; h < world_.host_count(); ++h) {
      if (!world_.host(h).arena().intact()) {
        report_.problem(world_.now(), "memory around registered regions changed");
      }
    }
    for (const std::string& what : world_.process_problems()) report_.problem(world_.now(), what);
  }

  void check_work() {
    if (!world_.run_until_quiet(seconds(40))) {
      report_.problem(world_.now(), "the run does not become idle");
    }
    workload_->poll_all();
    if (workload_->done()) {
      workload_->send_last_messages();
      workload_->check();
      return;
    }
    for (const auto& a : workload_->actors()) {
      if (!a->done()) report_.problem(world_.now(), "not finished: " + a->describe());
    }
  }

  RunResult result() {
    RunResult r = result_of(hostile_ ? RunKind::Hostile : RunKind::Correct, world_, report_);
    r.shape = text_;
    return r;
  }

  World world_;
  bool hostile_;
  bool shares_memory_;
  bool has_lanes_;
  double mark_probability_;
  bool links_may_end_ = false;
  Report report_;
  std::optional<Workload> workload_;
  std::string text_;
  bool healed_ = false;
  bool stop_ = false;
};

}  // namespace

namespace {

LaneCounts count_lanes(World& world) {
  LaneCounts counts;
  for (HostId h = 0; h < world.host_count(); ++h) {
    const Process& process = world.host(h).process();
    counts.most = std::max(counts.most, process.lanes().size());
    if (process.address() == h) counts.turns_in_waits += process.turns_in_waits();
  }
  return counts;
}

}  // namespace

RunResult result_of(RunKind kind, World& world, const Report& report) {
  RunResult r;
  r.kind = kind;
  r.trace_hash = world.trace().hash();
  r.events = world.events_done();
  r.packets = world.network().counts().sent;
  r.lost = world.lost();
  r.memory = world.memory().counts();
  r.lanes = count_lanes(world);
  r.virtual_ms = static_cast<double>(world.now().ns) / 1e6;
  r.problems = report.problems();
  return r;
}

RunKind kind_of(uint64_t seed) {
  if (seed % 20 == 5 || seed % 20 == 6) return RunKind::Withdrawn;
  switch (seed % 10) {
    case 7:
    case 8:
      return RunKind::Broken;
    case 9:
      return RunKind::Hostile;
    default:
      return RunKind::Correct;
  }
}

bool shares_memory(uint64_t seed) {
  return seed % 10 == 1 || seed % 10 == 2 || seed % 20 == 19 || seed % 20 == 8 || seed % 20 == 6;
}

bool has_lanes(uint64_t seed) {
  switch (kind_of(seed)) {
    case RunKind::Withdrawn:
      return true;
    case RunKind::Hostile:
      return seed % 40 < 20;
    case RunKind::Correct:
      return seed % 20 == 2 || seed % 10 == 3 || seed % 10 == 4;
    case RunKind::Broken:
      break;
  }
  return false;
}

double mark_probability(uint64_t seed) {
  switch (seed / 10 % 7) {
    case 3:
      return 0.01;
    case 4:
      return 0.3;
    default:
      return 0;
  }
}

RunResult run_workload(uint64_t seed, bool hostile, TamperRule tamper) {
  return WorkloadRun(seed, hostile, std::move(tamper)).run();
}

RunResult run_seed(uint64_t seed) {
  switch (kind_of(seed)) {
    case RunKind::Broken:
      return run_broken(seed);
    case RunKind::Hostile:
      return run_workload(seed, true);
    case RunKind::Withdrawn:
      return run_withdrawn(seed);
    case RunKind::Correct:
      break;
  }
  return run_workload(seed, false);
}

std::string explain(uint64_t seed, const RunResult& r) {
  const std::string n = std::to_string(seed);
  std::string text = "seed " + n + " failed (" + r.shape + ")\n";
  for (const std::string& p : r.problems) text += "  " + p + "\n";
  return text + "  rerun: verbena_sim --seed " + n + " --verbose\n";
}

}  // namespace verbena::sim

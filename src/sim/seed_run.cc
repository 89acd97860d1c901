// Runs in which the applications behave.
#include "sim/seed_run.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "sim/endpoint.h"

namespace verbena::sim {
namespace {

template <typename T, size_t N>
T pick(Prng& prng, const T (&choices)[N]) {
  return choices[prng.below(N)];
}

class WorkloadRun {
 public:
  WorkloadRun(uint64_t seed, bool hostile) : world_(seed), hostile_(hostile) {}

  RunResult run() {
    set_up();
    const Instant faults_end =
        world_.now() + milliseconds(2 + static_cast<int64_t>(prng().below(30)));
    schedule_outages(faults_end);
    world_.run_until(faults_end);
    world_.network().heal();
    for (HostId h = 0; h < world_.host_count(); ++h) world_.host(h).set_paused(false);
    healed_ = true;
    const Instant limit = world_.now() + seconds(4);
    const auto all_done = [&] {
      return std::ranges::all_of(endpoints_, [](const auto& e) { return e->done(); });
    };
    while (world_.now() < limit && !all_done() &&
           (!hostile_ || world_.now() < faults_end + milliseconds(50))) {
      if (!world_.step()) break;
    }
    stop_ = true;
    const bool quiet = world_.run_until_quiet(seconds(40));
    judge(all_done(), quiet);
    return result();
  }

 private:
  Prng& prng() { return world_.prng(); }

  void set_up() {
    Prng& r = prng();
    faults_ = LinkFaults{};
    faults_.delay = nanoseconds(static_cast<int64_t>(500 + r.below(20000)));
    if (r.below(5) != 0) {
      faults_.loss = r.below(2) == 0 ? 0.002 : 0.03;
      faults_.duplication = pick(r, {0.0, 0.01, 0.1});
      faults_.corruption = pick(r, {0.0, 0.005});
      faults_.jitter =
          pick(r, {nanoseconds(0), nanoseconds(500), microseconds(10), microseconds(60)});
    }
    faults_.bits_per_second = pick<uint64_t>(r, {0, 1000000000, 10000000000, 100000000000});
    faults_.queue_bytes = pick<uint64_t>(r, {100000, 1000000});
    if (hostile_) faults_.hostile = pick(r, {0.01, 0.2});
    world_.network().defaults() = faults_;

    shape_.max_message = pick<uint32_t>(r, {64, 1024, 8192, 65536});
    shape_.qp.depth = pick<uint32_t>(r, {2, 4, 16, 32});
    if (shape_.max_message == 65536) shape_.qp.depth = std::min(shape_.qp.depth, 16u);
    shape_.qp.sges = pick<uint32_t>(r, {1, 3, 32});
    shape_.qp.max_inline = pick<uint32_t>(r, {0, 64, 1024});
    shape_.qp.signal_all = r.below(4) == 0;
    shape_.requests = static_cast<uint32_t>(10 + r.below(shape_.max_message > 8192 ? 60 : 400));
    shape_.late_receives = pick(r, {0.0, 0.5, 0.95});
    shape_.strict = !hostile_;

    const auto hosts = static_cast<HostId>(2 + r.below(3));
    for (HostId h = 0; h < hosts; ++h) {
      Host& host = world_.add_host();
      host.set_turn_room(pick<size_t>(r, {3, 16, 64}));
      cqs_.push_back(&host.create_cq(8192));
      counters_.push_back({host.add_region(8, core::kLocalWrite | core::kRemoteAtomic), h, {}, 0});
    }
    const uint64_t connections = 1 + r.below(5);
    for (uint64_t i = 0; i < connections; ++i) connect_one(hosts);
    for (auto& e : endpoints_) tick(*e);
    char text[220];
    std::snprintf(
        text, sizeof text,
        "%u hosts, %llu connections, message <= %u, depth %u, sges %u, requests %u, loss %.3f, "
        "dup %.2f, jitter %lld ns, %llu Mb/s",
        hosts, static_cast<unsigned long long>(connections), shape_.max_message, shape_.qp.depth,
        shape_.qp.sges, shape_.requests, faults_.loss, faults_.duplication,
        static_cast<long long>(faults_.jitter.ns),
        static_cast<unsigned long long>(faults_.bits_per_second / 1000000));
    text_ = text;
  }

  void connect_one(HostId hosts) {
    Prng& r = prng();
    const auto a = static_cast<HostId>(r.below(hosts));
    const auto b = static_cast<HostId>((a + 1 + r.below(hosts - 1)) % hosts);
    const auto make = [&](HostId h) -> Endpoint& {
      endpoints_.push_back(
          std::make_unique<Endpoint>(world_, world_.host(h), *cqs_[h], shape_, report_));
      return *endpoints_.back();
    };
    Endpoint& ea = make(a);
    Endpoint& eb = make(b);
    ea.set_peer(eb, &counters_[b]);
    eb.set_peer(ea, &counters_[a]);
    ConnectionShape c;
    c.mtu = pick(r, {wire::Mtu::k256, wire::Mtu::k512, wire::Mtu::k1024, wire::Mtu::k2048,
                     wire::Mtu::k4096});
    const auto psn = [&] {
      return static_cast<uint32_t>(r.below(2) == 0 ? 0xFFFFFF - r.below(64) : r.below(1 << 24));
    };
    c.psn_a = psn();
    c.psn_b = psn();
    c.read_depth_a = pick<uint32_t>(r, {1, 2, 16});
    c.read_depth_b = pick<uint32_t>(r, {1, 2, 16});
    c.timeout = static_cast<uint8_t>(9 + r.below(3));  // 2 to 8 ms
    c.min_rnr_timer = static_cast<uint8_t>(1 + r.below(12));
    connect(ea.host(), ea.qp(), eb.host(), eb.qp(), c);
  }

  // Each application looks at its queues now and then, at its own pace.
  void tick(Endpoint& e) {
    world_.after(nanoseconds(static_cast<int64_t>(1000 + prng().below(30000))), [this, &e] {
      poll(e.host().id());
      if (stop_) return;
      e.work();
      if (healed_) e.fill_receive_queue();
      tick(e);
    });
  }

  void poll(HostId h) {
    core::Completion c;
    while (cqs_[h]->poll(&c, 1) == 1) {
      world_.trace().add(c.wr_id);
      world_.trace().add(static_cast<uint64_t>(c.status) << 32 | c.byte_count);
      const auto owner = std::ranges::find_if(
          endpoints_, [&](const auto& e) { return e->host().id() == h && e->qp().qpn() == c.qpn; });
      if (owner == endpoints_.end()) {
        report_.problem(world_.now(), "a completion of nobody's queue pair");
      } else {
        (*owner)->on_completion(c);
      }
    }
  }

  // Partitions and pauses, shorter than what retry_cnt covers.
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

  void judge(bool done, bool quiet) {
    for (HostId h = 0; h < world_.host_count(); ++h) {
      if (!world_.host(h).arena().intact()) {
        report_.problem(world_.now(), "memory around registered regions changed");
      }
    }
    if (!quiet) report_.problem(world_.now(), "the world does not come to rest");
    if (hostile_) return;
    for (const auto& e : endpoints_) {
      if (!done && !e->done()) report_.problem(world_.now(), "not finished: " + e->describe());
    }
    if (!done) return;
    for (HostId h = 0; h < world_.host_count(); ++h) {
      Host& host = world_.host(h);
      poll(h);
      if (host.engine().next_deadline() != kNever) {
        report_.problem(world_.now(), "a deadline is left although all is done");
      }
      if (!host.failures.empty()) report_.problem(world_.now(), "a queue pair failed");
      uint64_t value = 0;
      std::memcpy(&value, counters_[h].region.bytes.data(), 8);
      if (value != counters_[h].added || counters_[h].seen.size() != value) {
        report_.problem(world_.now(), "a shared counter has the wrong sum");
      }
    }
    for (const auto& e : endpoints_) {
      e->check_memory();
      if (!e->qp().window()->idle())
        report_.problem(world_.now(), "window in use although all is done");
      if (e->qp().state() != core::QpState::Rts)
        report_.problem(world_.now(), "queue pair not in RTS");
    }
  }

  RunResult result() {
    RunResult r;
    r.kind = hostile_ ? RunKind::Hostile : RunKind::Correct;
    r.trace_hash = world_.trace().hash();
    r.events = world_.events_done();
    r.packets = world_.network().counts().sent;
    r.lost = world_.network().counts().lost;
    r.virtual_ms = static_cast<double>(world_.now().ns) / 1e6;
    r.shape = text_;
    r.problems = report_.problems();
    return r;
  }

  World world_;
  bool hostile_;
  Report report_;
  LinkFaults faults_;
  WorkloadShape shape_;
  std::vector<core::CompletionQueue*> cqs_;
  std::vector<SharedCounter> counters_;
  std::vector<std::unique_ptr<Endpoint>> endpoints_;
  std::string text_;
  bool healed_ = false;
  bool stop_ = false;
};

}  // namespace

RunKind kind_of(uint64_t seed) {
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

RunResult run_workload(uint64_t seed, bool hostile) { return WorkloadRun(seed, hostile).run(); }

RunResult run_seed(uint64_t seed) {
  switch (kind_of(seed)) {
    case RunKind::Broken:
      return run_broken(seed);
    case RunKind::Hostile:
      return run_workload(seed, true);
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

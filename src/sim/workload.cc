// Sets up the actors, distributes completions and makes the final checks.
#include "sim/workload.h"

#include <algorithm>
#include <cstring>

namespace verbena::sim {

Workload::Workload(World& world, const WorkloadShape& shape, Report& report)
    : world_(world), shape_(shape), report_(report) {
  membership_.qkey = static_cast<uint32_t>(prng().below(1u << 31));
  membership_.mtu = pick(prng(), {wire::Mtu::k256, wire::Mtu::k1024, wire::Mtu::k4096});
  const auto hosts = static_cast<HostId>(2 + prng().below(3));
  for (HostId h = 0; h < hosts; ++h) add_place(h);
  if (shape.lanes) {
    for (Place& place : places_) add_lanes(place);
  }
  if (shape.memory) share_memory(*shape.memory);
  const uint64_t connections = 1 + prng().below(5);
  for (uint64_t i = 0; i < connections; ++i) connect_two();
  if (prng().below(3) == 0) add_ud_endpoints();
}

void Workload::add_place(HostId id) {
  const bool extensions = prng().below(4) != 0;
  if (!extensions) ++plain_hosts_;
  Host& host = world_.add_host(extensions);
  host.add_device_memory();
  host.set_packets_per_turn(pick<size_t>(prng(), {3, 16, 64}));
  host.set_ack_delay(id % 2 == 0 ? 8 : 0);
  Place place;
  place.lanes = {&host};
  place.cqs = {&host.create_cq(8192)};
  place.counter = {host.add_region(8, core::kLocalWrite | core::kRemoteAtomic), id, {}, 0};
  const uint32_t sges = shape_.qp.sges;
  place.rc_receives =
      &add_pool(host, {pick<uint32_t>(prng(), {2, 8, 24}), shape_.max_message, sges}, 0);
  place.ud_receives = &add_pool(host, UdEndpoint::pool_shape(16, sges, membership_.mtu), 0);
  places_.push_back(place);
}

// In some processes all lanes complete to one queue.
void Workload::add_lanes(Place& place) {
  Prng& r = world_.lane_prng();
  Host& first = *place.lanes.front();
  const bool share_cq = r.below(2) == 0;
  for (uint64_t i = r.below(4); i > 0; --i) {
    Host& lane = world_.add_lane(first, first.engine().state().extensions);
    lane.add_device_memory();
    lane.set_packets_per_turn(pick<size_t>(r, {3, 16, 64}));
    lane.set_ack_delay(r.below(2) == 0 ? 8 : 0);
    place.lanes.push_back(&lane);
    place.cqs.push_back(share_cq ? place.cqs.front() : &first.create_cq(8192));
    if (share_cq) place.cqs.front()->share();
  }
}

size_t Workload::choose_lane(HostId h) {
  const size_t lanes = places_[h].lanes.size();
  return lanes == 1 ? 0 : world_.lane_prng().below(lanes);
}

// Most pairs of hosts share memory; the others use the network.
void Workload::share_memory(const MemoryLinkShape& shape) {
  SharedMemory& memory = world_.memory();
  for (HostId b = 1; b < world_.host_count(); ++b) {
    for (HostId a = 0; a < b; ++a) {
      if (&world_.host(a).process() == &world_.host(b).process()) continue;
      if (b != 1 && memory.prng().below(4) == 0) continue;
      memory.open(a, b, shape);
      links_.emplace_back(a, b);
    }
  }
}

ReceivePool& Workload::add_pool(Host& host, const PoolShape& shape, uint32_t xrc_domain) {
  const auto number = static_cast<uint32_t>(pools_.size() + 1);
  pools_.push_back(std::make_unique<ReceivePool>(world_, host, shape, number));
  core::SrqConfig config{.pd = 1, .max_wr = shape.depth, .max_sges = shape.sges};
  if (xrc_domain != 0) {
    config.xrc_domain = xrc_domain;
    config.cq = places_[host.id()].cqs.front();
  }
  pools_.back()->serve(*host.engine().create_srq(config));
  return *pools_.back();
}

ConnectionShape Workload::random_connection() {
  Prng& r = prng();
  ConnectionShape c;
  c.mtu = pick(
      r, {wire::Mtu::k256, wire::Mtu::k512, wire::Mtu::k1024, wire::Mtu::k2048, wire::Mtu::k4096});
  const auto psn = [&] {
    return static_cast<uint32_t>(r.below(2) == 0 ? 0xFFFFFF - r.below(64) : r.below(1 << 24));
  };
  c.psn_a = psn();
  c.psn_b = psn();
  c.read_depth_a = pick<uint32_t>(r, {1, 2, 16});
  c.read_depth_b = pick<uint32_t>(r, {1, 2, 16});
  c.timeout = static_cast<uint8_t>(9 + r.below(3));  // 2 to 8 ms
  c.min_rnr_timer = static_cast<uint8_t>(1 + r.below(12));
  return c;
}

void Workload::connect_two() {
  const auto hosts = static_cast<HostId>(places_.size());
  const auto a = static_cast<HostId>(prng().below(hosts));
  const auto b = static_cast<HostId>((a + 1 + prng().below(hosts - 1)) % hosts);
  const ConnectionShape shape = random_connection();
  switch (prng().below(8)) {
    case 0:
    case 1:
      return connect_reliably(a, b, true, shape);
    case 2:
      return connect_xrc(a, b, shape);
    case 3:
    case 4:
      return connect_unreliably(a, b, shape);
    default:
      return connect_reliably(a, b, false, shape);
  }
}

// As in src/runtime, XRC receive queue pairs are in the first lane, with the shared receive queues.
Endpoint& Workload::add_endpoint(HostId h, EndpointKind kind) {
  const Place& place = places_[h];
  const size_t lane = choose_lane(h);
  kind.receiver = place.lanes.front();
  auto endpoint = std::make_unique<Endpoint>(world_, *place.lanes[lane], *place.cqs[lane], shape_,
                                             report_, kind);
  Endpoint& added = *endpoint;
  actors_.push_back(std::move(endpoint));
  return added;
}

void Workload::connect_reliably(HostId a, HostId b, bool shared, const ConnectionShape& shape) {
  ++kinds_[shared ? "RC with SRQ" : "RC"];
  const auto kind = [&](HostId h) {
    return shared ? EndpointKind{.shared = {places_[h].rc_receives}} : EndpointKind{};
  };
  Endpoint& ea = add_endpoint(a, kind(a));
  Endpoint& eb = add_endpoint(b, kind(b));
  ea.set_peer(eb, &places_[b].counter);
  eb.set_peer(ea, &places_[a].counter);
  connect(ea.host(), ea.qp(), eb.host(), eb.qp(), shape);
}

// Two connections, one for each direction.
void Workload::connect_xrc(HostId a, HostId b, const ConnectionShape& shape) {
  ++kinds_["XRC"];
  const auto add = [&](HostId h) -> Endpoint& {
    auto& queues = places_[h].xrc_receives;
    const PoolShape pool{shape_.qp.depth, shape_.max_message, shape_.qp.sges};
    while (queues.size() < 2) {
      queues.push_back(&add_pool(world_.host(h), pool, Endpoint::kXrcDomain));
    }
    return add_endpoint(h, {.xrc = true, .shared = queues});
  };
  Endpoint& ea = add(a);
  Endpoint& eb = add(b);
  ea.set_peer(eb, &places_[b].counter);
  eb.set_peer(ea, &places_[a].counter);
  connect(ea.host(), ea.qp(), world_.host(b), eb.inbound_qp(), shape);
  connect(eb.host(), eb.qp(), world_.host(a), ea.inbound_qp(), shape);
}

void Workload::connect_unreliably(HostId a, HostId b, const ConnectionShape& shape) {
  ++kinds_["UC"];
  const auto add = [&](HostId h) -> UcEndpoint& {
    const size_t lane = choose_lane(h);
    auto endpoint = std::make_unique<UcEndpoint>(world_, *places_[h].lanes[lane],
                                                 *places_[h].cqs[lane], shape_, report_);
    UcEndpoint& added = *endpoint;
    actors_.push_back(std::move(endpoint));
    return added;
  };
  UcEndpoint& ea = add(a);
  UcEndpoint& eb = add(b);
  ea.set_peer(eb);
  eb.set_peer(ea);
  connect(ea.host(), ea.qp(), eb.host(), eb.qp(), shape);
}

void Workload::add_ud_endpoints() {
  const uint64_t members = 2 + prng().below(4);
  for (uint64_t i = 0; i < members; ++i) {
    const auto h = static_cast<HostId>(prng().below(places_.size()));
    ReceivePool* shared = prng().below(3) == 0 ? places_[h].ud_receives : nullptr;
    actors_.push_back(std::make_unique<UdEndpoint>(world_, world_.host(h), *places_[h].cqs.front(),
                                                   shape_, report_, membership_, shared));
    ++kinds_["UD"];
  }
}

std::string Workload::describe() const {
  std::string text = std::to_string(places_.size()) + " hosts";
  if (plain_hosts_ != 0) text += " (" + std::to_string(plain_hosts_) + " plain)";
  if (shape_.lanes) text += ", " + std::to_string(world_.host_count()) + " lanes";
  if (shape_.memory) text += ", " + std::to_string(links_.size()) + " memory links";
  for (const auto& [kind, count] : kinds_) text += ", " + std::to_string(count) + " " + kind;
  return text;
}

bool Workload::done() const {
  return std::ranges::all_of(actors_, [](const auto& a) { return a->done(); });
}

void Workload::poll(HostId h) {
  const auto take = [&](const core::Completion& c) {
    world_.trace().add(c.wr_id);
    world_.trace().add(static_cast<uint64_t>(c.status) << 32 | c.byte_count);
    const auto owner = std::ranges::find_if(actors_, [&](const auto& a) {
      return a->host().process().address() == h && a->owns(c.qpn);
    });
    if (owner == actors_.end()) {
      report_.problem(world_.now(), "a completion of an unknown queue pair");
    } else {
      (*owner)->on_completion(c);
    }
  };
  core::Completion c;
  for (core::CompletionQueue* const cq : places_[h].cqs) {
    while (cq->poll(&c, 1) == 1) take(c);
  }
}

void Workload::poll_all() {
  for (HostId h = 0; h < places_.size(); ++h) poll(h);
}

void Workload::send_last_messages() {
  for (const auto& a : actors_) {
    while (a->send_last_message()) {
      if (!world_.run_until_quiet(seconds(1))) report_.problem(world_.now(), "not idle at the end");
      poll_all();
    }
  }
}

void Workload::check() {
  for (const auto& a : actors_) a->check();
  for (const Place& place : places_) check_place(place);
}

void Workload::check_place(const Place& place) {
  const auto problem = [&](const char* what) { report_.problem(world_.now(), what); };
  using enum core::CounterId;
  uint64_t explained = 0;
  for (Host* const lane : place.lanes) {
    if (lane->engine().next_deadline() != kNever) {
      problem("a deadline is left although all is done");
    }
    if (!lane->failures.empty()) problem("a queue pair failed");
    const core::Counters& counters = lane->engine().state().counters;
    explained += counters[no_receive_posted] + counters[incomplete_messages];
  }
  const SharedCounter& counter = place.counter;
  uint64_t value = 0;
  std::memcpy(&value, counter.region.bytes.data(), 8);
  if (value != counter.added || counter.seen.size() != value) {
    problem("a shared counter has the wrong sum");
  }
  // Every packet that the network delivered must reach the application or be counted as dropped.
  uint64_t missing = 0;
  for (const auto& a : actors_) {
    if (&a->host().process() == &place.lanes.front()->process()) missing += a->missing();
  }
  if (world_.lost() == 0 && missing > explained) {
    problem("a message got lost in the engine");
  }
}

void Workload::stop() {
  for (const auto& a : actors_) a->stop();
  if (!world_.run_until_quiet(seconds(40))) {
    report_.problem(world_.now(), "the run does not become idle");
  }
  poll_all();
  const auto report = [&](const std::string& what) {
    if (!what.empty()) report_.problem(world_.now(), what);
  };
  for (const auto& pool : pools_) report(pool->check_stopped());
  for (const auto& a : actors_) report(a->check_stopped());
}

}  // namespace verbena::sim

// Applications that make random calls within the API's rules, and a ledger that checks the events
// they receive. A violation names the attempt and the error.
#include "sim/cm_run.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "base/prng.h"
#include "cm/agent.h"
#include "cm/route.h"
#include "sim/network.h"
#include "sim/trace.h"

namespace verbena::sim {
namespace {

using cm::Event;
using cm::EventKind;

constexpr uint16_t kUnusedPort = 9;  // without a listener
constexpr HostId kNoHost = 7;

// One end of an attempt, as its application sees it.
struct Side {
  bool active = false;
  bool sidr = false;
  uint64_t attempt = 0;
  bool accepted = false;      // passive: accept() was called
  bool established = false;   // active: establish() was called; passive: the event was received
  bool disconnected = false;  // the event was received
  bool over = false;          // the id is no longer this application's
  std::set<EventKind> seen;
};

struct CmProcess {
  HostId host = 0;
  uint8_t slot = 0;
  uint16_t port = 0;
  std::unique_ptr<cm::Agent> agent;
  std::map<uint32_t, Side> sides;
};

// The state of an attempt on both sides.
struct Attempt {
  bool reachable = true;
  bool active_established = false;
  bool ended = false;
  uint64_t passive_alive = 0;
  uint64_t passive_established = 0;
};

class CmWorld {
 public:
  explicit CmWorld(uint64_t seed) : prng_(seed * 7919 + 17), network_(prng_, trace_) {
    hostile_ = prng_.chance(0.2);
    LinkFaults& f = network_.defaults();
    f.packet.loss = prng_.chance(0.2) ? 0 : 0.01 * static_cast<double>(prng_.below(45));
    mild_ = !hostile_ && f.packet.loss <= 0.2;
    f.packet.duplicate = prng_.chance(0.5) ? 0 : 0.01 * static_cast<double>(prng_.below(40));
    f.hostile = hostile_ ? 0.05 : 0;
    f.delay = microseconds(static_cast<int64_t>(1 + prng_.below(2000)));
    // Below half of TIMEWAIT, so that REJ and DREP can still be replayed.
    f.jitter =
        prng_.chance(0.5) ? Duration{} : milliseconds(static_cast<int64_t>(prng_.below(200)));
    const uint64_t hosts = 1 + prng_.below(3);
    for (HostId host = 0; host < hosts; ++host) {
      for (uint64_t i = 0, n = 1 + prng_.below(2); i < n; ++i) add_process(host);
    }
  }

  CmRunResult run() {
    const uint64_t attempts = 4 + prng_.below(24);
    for (uint64_t i = 0; i < attempts; ++i) {
      at(milliseconds(static_cast<int64_t>(prng_.below(3000))), [this] { start_attempt(); });
    }
    at(seconds(static_cast<int64_t>(5 + prng_.below(60))), [this] { finish(); });
    turn_until_quiet();
    check_end();
    check_recovery();
    result_.attempts = attempts_.size();
    result_.datagrams = network_.counts().sent;
    result_.trace_hash = trace_.hash();
    return result_;
  }

 private:
  void add_process(HostId host) {
    CmProcess p;
    p.host = host;
    p.slot = static_cast<uint8_t>(1 + processes_.size());
    p.port = static_cast<uint16_t>(1000 + processes_.size());
    cm::AgentConfig config;
    config.slot = p.slot;
    config.secret = {prng_.next(), prng_.next()};
    config.ca_guid = 0xCA00 + host;
    config.first_retry = prng_.chance(0.3) ? Duration{} : milliseconds(250);
    p.agent = std::make_unique<cm::Agent>(config);
    const auto backlog = static_cast<uint32_t>(prng_.chance(0.2) ? 1 : 64);
    for (const cm::PortSpace space : {cm::PortSpace::Tcp, cm::PortSpace::Udp}) {
      auto listener =
          p.agent->listen({.service_id = cm::service_id(space, p.port), .backlog = backlog});
      VERBENA_CHECK(listener.ok());
    }
    processes_.push_back(std::move(p));
  }

  // ------------------------------------------------------------------------------------- time

  void at(Duration from_now, std::function<void()> what) {
    queue_.emplace(now_ + from_now, std::move(what));
  }
  Duration reaction_time() {
    if (prng_.chance(0.1)) return seconds(static_cast<int64_t>(prng_.below(20)));
    return microseconds(static_cast<int64_t>(prng_.below(300'000)));
  }

  void turn_until_quiet() {
    for (uint64_t steps = 0;; ++steps) {
      if (steps > 2'000'000) return violate("the run does not end");
      for (CmProcess& p : processes_) drain(p);
      Instant next = queue_.empty() ? kNever : queue_.begin()->first;
      for (const CmProcess& p : processes_) next = std::min(next, p.agent->next_deadline());
      if (next == kNever) return;
      if (next < now_) return violate("a deadline in the past");
      now_ = next;
      for (CmProcess& p : processes_) p.agent->on_deadline(now_);
      while (!queue_.empty() && queue_.begin()->first <= now_) {
        const auto what = std::move(queue_.extract(queue_.begin()).mapped());
        what();
      }
    }
  }

  void drain(CmProcess& p) {
    Event event;
    while (p.agent->next_event(event)) on_event(p, event);
    cm::OutgoingMad mad;
    while (p.agent->next_mad(mad)) send(p, mad);
  }

  // ---------------------------------------------------------------------------------- network

  static std::optional<HostId> host_of(const wire::Gid& gid) {
    for (HostId host = 0; host < kNoHost; ++host) {
      if (Network::gid_of(host) == gid) return host;
    }
    return std::nullopt;
  }

  void send(const CmProcess& from, const cm::OutgoingMad& mad) {
    const auto to = host_of(mad.destination);
    if (mad.source != Network::gid_of(from.host)) violate("a datagram with a wrong source");
    if (!to) return;
    const HostId source = from.host;
    Bytes bytes(mad.bytes.begin(), mad.bytes.end());
    for (auto& delivery : network_.send(source, *to, std::move(bytes), now_)) {
      queue_.emplace(delivery.at, [this, source, to = *to, bytes = std::move(delivery.bytes)] {
        deliver(source, to, bytes);
      });
    }
  }

  // Delivers as the processes of a host do, which share queue pair 1.
  void deliver(HostId from, HostId to, const Bytes& bytes) {
    const cm::Route route = cm::route_of(bytes);
    CmProcess* first = nullptr;
    bool delivered = false;
    for (CmProcess& p : processes_) {
      if (p.host != to) continue;
      if (first == nullptr) first = &p;
      const bool meant =
          route.kind == cm::Route::Kind::AllProcesses ||
          (route.kind == cm::Route::Kind::Slot && route.slot == p.slot) ||
          (route.kind == cm::Route::Kind::Service && cm::port_of(route.service_id) == p.port);
      if (!meant) continue;
      p.agent->on_mad({Network::gid_of(from), Network::gid_of(to), bytes}, now_);
      delivered = true;
    }
    if (!delivered && first != nullptr) {
      first->agent->on_mad({Network::gid_of(from), Network::gid_of(to), bytes}, now_);
    }
  }

  // ----------------------------------------------------------------------------- applications

  cm::Addresses addresses(const CmProcess& from, HostId to, cm::PortSpace space, uint16_t port) {
    const wire::Gid us = Network::gid_of(from.host);
    const wire::Gid them = Network::gid_of(to);
    return {us,
            them,
            us,
            them,
            static_cast<uint16_t>(40000 + attempts_.size()),
            0,
            cm::service_id(space, port)};
  }

  wire::Qpn fresh_qpn(const CmProcess& p) { return wire::Qpn::of_slot(p.slot, ++qpns_); }

  void start_attempt() {
    CmProcess& from = processes_[prng_.below(processes_.size())];
    const CmProcess& to = processes_[prng_.below(processes_.size())];
    const uint16_t port = prng_.chance(0.1) ? kUnusedPort : to.port;
    const HostId host = prng_.chance(0.05) ? kNoHost : to.host;
    if (prng_.chance(0.2)) {
      start_sidr(from, host, port);
    } else {
      start_connection(from, host, port);
    }
  }

  uint64_t new_attempt(HostId host = 0) {
    attempts_.emplace_back().reachable = host != kNoHost;
    return attempts_.size() - 1;
  }

  uint32_t start_connection(CmProcess& from, HostId host, uint16_t port) {
    const uint64_t attempt = new_attempt(host);
    cm::ConnectParameters p;
    p.addresses = addresses(from, host, cm::PortSpace::Tcp, port);
    p.qpn = fresh_qpn(from);
    std::byte tag[8];
    store_be64(tag, attempt);
    p.private_data = tag;
    const uint32_t id = from.agent->connect(p, now_).value();
    from.sides[id] = {.active = true, .attempt = attempt, .seen = {}};
    if (!finishing_ && prng_.chance(0.03))
      at(reaction_time(), [this, &from, id] { destroy(from, id); });
    return id;
  }

  void start_sidr(CmProcess& from, HostId host, uint16_t port) {
    cm::SidrParameters p;
    p.addresses = addresses(from, host, cm::PortSpace::Udp, port);
    const uint32_t id = from.agent->resolve_sidr(p, now_).value();
    from.sides[id] = {.active = true, .sidr = true, .attempt = new_attempt(host), .seen = {}};
  }

  void on_event(CmProcess& p, const Event& e) {
    trace_.add(uint64_t{e.id} << 8 | static_cast<uint8_t>(e.kind));
    if (e.kind == EventKind::ConnectRequest || e.kind == EventKind::SidrRequest) {
      return on_request(p, e);
    }
    const auto it = p.sides.find(e.id);
    if (it == p.sides.end()) return violate("an event of an unknown id: ", e);
    Side& side = it->second;
    if (side.over) return violate("an event after the end: ", e);
    if (!side.seen.insert(e.kind).second) return violate("an event twice: ", e);
    switch (e.kind) {
      case EventKind::ConnectResponse:
        if (!side.active) violate("a response to the passive side: ", e);
        check_response(side, e);
        at(reaction_time(), [this, &p, id = e.id] { reply_to_response(p, id); });
        break;
      case EventKind::Established:
        if (side.active || !side.accepted) violate("established without accept: ", e);
        on_passive_established(side);
        at(reaction_time(), [this, &p, id = e.id] { leave(p, id); });
        break;
      case EventKind::Disconnected:
        if (side.active ? !side.seen.contains(EventKind::ConnectResponse) : !side.accepted) {
          violate("disconnected before it was connected: ", e);
        }
        side.disconnected = true;
        if (prng_.chance(0.5)) disconnect(p, e.id);
        if (prng_.chance(0.3)) destroy(p, e.id);
        break;
      case EventKind::Rejected:
        if (side.established) violate("rejected after it was established: ", e);
        ++result_.rejected;
        end(p, e.id);
        break;
      case EventKind::Unreachable:
        if (e.error != ETIMEDOUT) violate("unreachable without a timeout: ", e);
        check_unreachable(side, e);
        ++result_.unreachable;
        end(p, e.id);
        break;
      case EventKind::TimewaitExit:
        if (!side.disconnected) violate("TIMEWAIT over before it began: ", e);
        end(p, e.id);
        break;
      case EventKind::SidrResponse:
        if (!side.sidr || !side.active) violate("a SIDR response to something else: ", e);
        if (e.sidr_status == cm::SidrStatus::Success) {
          ++result_.sidr_replies;
          if (!hostile_ && e.qkey != 0x1234) violate("a SIDR reply of another service: ", e);
        }
        end(p, e.id);
        break;
      default:
        violate("an unknown event: ", e);
    }
  }

  void on_request(CmProcess& p, const Event& e) {
    if (p.sides.contains(e.id) && !p.sides[e.id].over) violate("a used id: ", e);
    Side side{.sidr = e.kind == EventKind::SidrRequest, .seen = {}};
    if (!side.sidr) {
      side.attempt = load_be64(e.private_data.bytes.data());
      if (side.attempt >= attempts_.size()) {
        if (!hostile_) violate("private data was changed: ", e);
        side.attempt = new_attempt();  // a forged request
        attempts_.back().ended = true;
      }
      if (++attempts_[side.attempt].passive_alive > 1 && !hostile_) {
        violate("one attempt, two requests at once: ", e);
      }
    }
    p.sides[e.id] = side;
    if (prng_.chance(0.8)) p.agent->request_taken(e.id);
    at(reaction_time(), [this, &p, id = e.id] { reply_to_request(p, id); });
  }

  void reply_to_request(CmProcess& p, uint32_t id) {
    Side& side = p.sides[id];
    if (side.over || side.accepted) return;
    if (side.sidr) {
      cm::SidrReply reply;
      reply.status = prng_.chance(0.2) ? cm::SidrStatus::Reject : cm::SidrStatus::Success;
      reply.qpn = fresh_qpn(p);
      reply.qkey = 0x1234;
      if (!p.agent->reply_sidr(id, reply, now_).ok()) violate("a SIDR reply was refused");
      return end(p, id);
    }
    const uint64_t choice = prng_.below(20);
    if (choice == 0) return destroy(p, id);
    if (choice <= 2) {
      if (!p.agent->reject(id, cm::RejectReason::Consumer, {}, {}, now_).ok()) {
        violate("a reject was refused");
      }
      return end(p, id);
    }
    if (choice == 3 && !finishing_) return;  // leaves it undecided until the end
    cm::AcceptParameters accept;
    accept.qpn = fresh_qpn(p);
    std::byte tag[8];
    store_be64(tag, side.attempt);
    accept.private_data = tag;
    if (!p.agent->accept(id, accept, now_).ok()) return violate("an accept was refused");
    side.accepted = true;
    if (prng_.chance(0.05)) at(reaction_time(), [this, &p, id] { leave(p, id); });
    // The first data may overtake RTU, but only if the active side is ready.
    if (prng_.chance(0.2)) at(reaction_time(), [this, &p, id] { first_data(p, id); });
  }

  void first_data(CmProcess& p, uint32_t id) {
    const Side& side = p.sides[id];
    if (side.over || side.disconnected || !attempts_[side.attempt].active_established) return;
    (void)p.agent->notify_established(id);  // refused when it is disconnecting
  }

  void check_response(const Side& side, const Event& e) {
    if (!hostile_ && load_be64(e.private_data.bytes.data()) != side.attempt) {
      violate("the response to another request: ", e);
    }
  }

  // With that many retries, a low loss rate must not cause a timeout.
  void check_unreachable(const Side& side, const Event& e) {
    const Attempt& attempt = attempts_[side.attempt];
    if (!mild_) return;
    if (side.active && attempt.reachable) violate("a reachable peer: ", e);
    if (!side.active && attempt.active_established && !attempt.ended) {
      violate("the active side is connected: ", e);
    }
  }

  void reply_to_response(CmProcess& p, uint32_t id) {
    Side& side = p.sides[id];
    if (side.over || side.disconnected) return;
    const uint64_t choice = prng_.below(20);
    if (choice == 0) return destroy(p, id);
    if (choice == 1) {
      if (!p.agent->reject(id, cm::RejectReason::Consumer, {}, {}, now_).ok()) {
        violate("a reject of REP was refused");
      }
      return end(p, id);
    }
    if (!p.agent->establish(id).ok()) return violate("an establish was refused");
    side.established = true;
    attempts_[side.attempt].active_established = true;
    at(reaction_time(), [this, &p, id] { leave(p, id); });
  }

  void on_passive_established(Side& side) {
    side.established = true;
    Attempt& attempt = attempts_[side.attempt];
    if (!attempt.active_established && !hostile_) violate("only one side was established");
    if (++attempt.passive_established > 1 && !hostile_) violate("one attempt, two connections");
    ++result_.established;
  }

  void leave(CmProcess& p, uint32_t id) {
    if (p.sides[id].over) return;
    if (prng_.chance(0.2)) return destroy(p, id);
    if (prng_.chance(0.3) && !finishing_) return;  // leaves it to the peer
    disconnect(p, id);
  }

  void disconnect(CmProcess& p, uint32_t id) {
    const Side& side = p.sides[id];
    const bool connected = side.active ? side.established || side.disconnected : side.accepted;
    if (p.agent->disconnect(id, {}, now_).ok() != connected) violate("a wrong disconnect");
  }

  void destroy(CmProcess& p, uint32_t id) {
    if (p.sides[id].over) return;
    p.agent->destroy(id, now_);
    end(p, id);
  }

  void end(CmProcess& p, uint32_t id) {
    Side& side = p.sides[id];
    side.over = true;
    if (side.sidr && !side.active) return;
    Attempt& attempt = attempts_[side.attempt];
    if (side.active) {
      if (attempt.ended) violate("an attempt ended twice");
      attempt.ended = true;
    } else {
      --attempt.passive_alive;
    }
  }

  // ------------------------------------------------------------------------------------ the end

  // The network has no faults any more. The applications decide all open requests and disconnect.
  void finish() {
    network_.heal();
    finishing_ = true;
    constexpr Duration kMuchLater = seconds(1000);
    for (CmProcess& p : processes_) {
      for (auto& [id, side] : p.sides) {
        if (side.over || side.sidr) continue;
        if (side.active && side.established)
          at(reaction_time(), [this, &p, id = id] { leave(p, id); });
        if (!side.active && !side.accepted) reply_to_request(p, id);
        if (!side.active && side.accepted && prng_.chance(0.5)) leave(p, id);
        // All DREQs of its peer may have been lost.
        if (!side.active) at(kMuchLater, [this, &p, id = id] { leave(p, id); });
      }
    }
  }

  void check_end() {
    if (!result_.violations.empty()) return;
    for (const CmProcess& p : processes_) {
      for (const auto& [id, side] : p.sides) {
        if (!side.over) violate("never ended", side.active ? " (active)" : " (passive)");
      }
      if (p.agent->exchange_count() != 0) violate("exchanges are left");
      if (p.agent->index_count() != 0) violate("index entries are left");
    }
    for (const Attempt& a : attempts_) {
      if (!a.ended) violate("an attempt without an end");
    }
  }

  // After the faults end, a new connection must succeed.
  void check_recovery() {
    if (!result_.violations.empty()) return;
    CmProcess& from = processes_.front();
    CmProcess& to = processes_.back();
    const uint32_t id = start_connection(from, to.host, to.port);
    const uint64_t attempt = from.sides[id].attempt;
    for (int i = 0; i < 4; ++i) {
      for (CmProcess* p : {&from, &to}) {
        Event e;
        while (p->agent->next_event(e)) {
          if (e.kind == EventKind::ConnectRequest) {
            if (!p->agent->accept(e.id, {.qpn = fresh_qpn(*p), .ece = {}, .private_data = {}}, now_)
                     .ok()) {
              violate("the last accept was refused");
            }
          } else if (e.kind == EventKind::ConnectResponse) {
            if (!p->agent->establish(e.id).ok()) violate("the last establish was refused");
            attempts_[attempt].active_established = true;
          } else if (e.kind == EventKind::Established) {
            attempts_[attempt].passive_established = 1;
          }
        }
        cm::OutgoingMad mad;
        while (p->agent->next_mad(mad)) send(*p, mad);
      }
      now_ = now_ + milliseconds(10);
      while (!queue_.empty() && queue_.begin()->first <= now_) {
        const auto what = std::move(queue_.extract(queue_.begin()).mapped());
        what();
      }
      for (CmProcess* p : {&from, &to}) {
        cm::OutgoingMad mad;
        while (p->agent->next_mad(mad)) send(*p, mad);
      }
    }
    if (attempts_[attempt].passive_established != 1)
      violate("no connection after the faults ended");
  }

  void violate(const std::string& what, const std::string& more = "") {
    if (result_.violations.size() < 5) result_.violations.push_back(what + more);
  }
  void violate(const std::string& what, const Event& e) {
    violate(what, std::string(name_of(e.kind)) + " of id " + std::to_string(e.id));
  }

  Prng prng_;
  Trace trace_;
  Network network_;
  bool hostile_ = false;
  bool mild_ = false;
  bool finishing_ = false;
  Instant now_{};
  std::vector<CmProcess> processes_;
  std::vector<Attempt> attempts_;
  std::multimap<Instant, std::function<void()>> queue_;
  uint32_t qpns_ = 0;
  CmRunResult result_;
};

}  // namespace

CmRunResult run_cm_seed(uint64_t seed) { return CmWorld(seed).run(); }

}  // namespace verbena::sim

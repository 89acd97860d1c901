// A host's turns.
#include "sim/host.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <span>

#include "sim/world.h"
#include "wire/headers.h"
#include "wire/opcode.h"

namespace verbena::sim {

namespace {

constexpr size_t kShortPayload = 32;  // adjacent to its headers, also in shared memory
constexpr size_t kRecordsPerTurn = 64;
constexpr uint32_t kLargestOnWire = 4096;

}  // namespace

// Copies each packet, as a datapath does, and puts it into shared memory or on the wire.
class Host::Sink final : public wire::PacketSink, public wire::LocalPeer {
 public:
  Sink(World& world, HostId from, size_t room)
      : PacketSink(world.memory().any() ? this : nullptr),
        world_(world),
        from_(from),
        room_(room) {}
  size_t room() const override { return room_; }
  void push(const wire::TxPacket& packet) override {
    VERBENA_CHECK(room_ > 0);
    --room_;
    if (world_.memory().has_link(from_, static_cast<HostId>(packet.path))) {
      return world_.memory().push(from_, packet);
    }
    // The packet was sized for a link that has ended. UDP refuses it, too.
    if (packet.payload_bytes > kLargestOnWire) return world_.memory().count_lost();
    Bytes bytes(packet.header.begin(), packet.header.begin() + packet.header_bytes);
    for (const auto& segment : packet.payload)
      bytes.insert(bytes.end(), segment.begin(), segment.end());
    bytes.resize(bytes.size() + packet.pad);
    world_.send(from_, packet.path, std::move(bytes));
  }

  bool is_full(wire::PathId path) const override {
    return world_.memory().is_full(from_, static_cast<HostId>(path));
  }
  bool is_asleep(wire::PathId path) const override {
    return world_.memory().is_asleep(from_, static_cast<HostId>(path));
  }
  bool send_short_ack(wire::PathId path, const wire::Ack& ack) override {
    return world_.memory().send_short_ack(from_, path, ack);
  }
  bool access(const wire::OneSided& request) override {
    return world_.memory().access(from_, request);
  }
  bool retract(const wire::Unread& requests) override {
    return world_.memory().retract(from_, requests);
  }

 private:
  World& world_;
  HostId from_;
  size_t room_;
};

Host::Host(World& world, HostId id, Process& process, uint64_t secret, bool extensions)
    : world_(world),
      id_(id),
      process_(process),
      engine_({.slot = static_cast<uint8_t>(id + 1),
               .secret = secret,
               .memory = &process.memory(),
               .extensions = extensions}) {
  process.add_lane(*this);
  engine_.expose_through(&exposed_);
  world.memory().expose(id, gid(), exposed_);
}

core::CompletionQueue& Host::create_cq(uint32_t capacity) {
  cqs_.push_back(std::make_unique<core::CompletionQueue>(capacity));
  return *cqs_.back();
}

core::QueuePair& Host::create_qp(core::CompletionQueue& send_cq, core::CompletionQueue& receive_cq,
                                 const QpShape& shape) {
  core::QpConfig c;
  c.type = shape.type;
  c.srq = shape.srq;
  c.xrc_domain = shape.xrc_domain;
  c.pd = 1;
  c.send_cq = &send_cq;
  c.receive_cq = &receive_cq;
  c.max_send_wr = c.max_recv_wr = shape.depth;
  c.max_send_sge = c.max_recv_sge = shape.sges;
  c.max_inline = shape.max_inline;
  c.signal_all = shape.signal_all;
  return *engine_.create_qp(c).value();
}

namespace {

// One region in four on average. The engine gets an address at which every access fails. The choice
// follows from the iova, which is random.
bool is_device_memory(const Region& region) { return (region.iova >> 12) % 4 == 0; }

// From the address of a byte to the one that the engine gets, and back.
std::byte* other_address(const std::byte* at) {
  constexpr uintptr_t kNotCanonical = uintptr_t{1} << 55;  // on x86-64 and arm64
  return reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(at) ^ kNotCanonical);
}

void copy_in(std::byte* to, std::span<const std::byte> from) {
  std::ranges::copy(from, other_address(to));
}
void copy_out(std::span<std::byte> to, const std::byte* from) {
  std::copy_n(other_address(from), to.size(), to.data());
}

}  // namespace

Region Host::add_region(uint64_t length, uint32_t access) {
  Region r;
  r.bytes = arena().allocate(length);
  // Not the real address, because traces would differ, but with the same alignment; different in
  // each region.
  r.iova = world_.prng().next() & 0x00FFFFFFFFFFF000u;
  core::RegionInfo info{1, r.bytes.data(), length, r.iova, access, {}};
  if (has_device_memory_ && is_device_memory(r)) {
    info.base = other_address(info.base);
    static constexpr core::MemoryBacking kDevice{.copy_in = copy_in, .copy_out = copy_out};
    info.backing = &kDevice;
  }
  r.key = engine_.memory().add_region(info).value();
  return r;
}

DurableRegion Host::add_durable_region(uint32_t access) {
  constexpr uint64_t kBytes = DurableRegion::kBytes;
  DurableRegion r;
  const auto all = arena().allocate(2 * kBytes + sizeof(uint64_t));
  r.bytes = all.first(kBytes);
  r.kept = all.subspan(kBytes, kBytes);
  r.times = all.last(sizeof(uint64_t));
  r.iova = world_.prng().next() & 0x00FFFFFFFFFFF000u;
  static constexpr core::MemoryBacking kDurable{.persist = [](std::byte* at, uint64_t bytes) {
    std::memcpy(at + kBytes, at, bytes);
    ++*reinterpret_cast<uint64_t*>(at + 2 * kBytes);
    return true;
  }};
  r.key =
      engine_.memory().add_region({1, r.bytes.data(), kBytes, r.iova, access, &kDurable}).value();
  return r;
}

Status Host::post_send(core::QueuePair& qp, const core::SendRequest& request) {
  const Process::Call call(process_, *this);
  Status status = engine_.post_send(qp, request, world_.now());
  wake();
  return status;
}

Status Host::post_receive(core::QueuePair& qp, const core::ReceiveRequest& request) {
  const Process::Call call(process_, *this);
  Status status = engine_.post_receive(qp, request, world_.now());
  wake();
  return status;
}

void Host::modify(core::QueuePair& qp, const core::QpAttributes& attr, uint32_t mask) {
  const Status status = qp.check_modify(attr, mask);
  VERBENA_CHECK(status.ok());
  const Process::Call call(process_, *this);
  engine_.modify_qp(qp, attr, mask, world_.now());
  wake();
}

void Host::to_error(core::QueuePair& qp) {
  core::QpAttributes attr;
  attr.state = core::QpState::Error;
  modify(qp, attr, core::qp_attr::kState);
}

uint32_t Host::packet_bytes(const Host& peer) const {
  return world_.memory().packet_bytes(id_, peer.id());
}

void Host::destroy(core::QueuePair& qp) {
  const Process::Call call(process_, *this);
  engine_.destroy_qp(&qp, world_.now());
  wake();
}

wire::RxMeta Host::addressing(const Host& from, const wire::Gid& destination) {
  return {.source = from.gid(),
          .destination = destination,
          .traffic_class = static_cast<uint8_t>(4 * (from.id() + 1)),
          .hop_limit = static_cast<uint8_t>(60 + from.id())};
}

void Host::deliver(Bytes packet, HostId from, const wire::Gid& destination, bool marked) {
  arrived_.push_back({std::move(packet), addressing(world_.host(from), destination)});
  arrived_.back().meta.own = from == id_;
  if (marked) arrived_.back().meta.traffic_class |= wire::kCe;
  wake();
}

void Host::set_paused(bool paused) {
  paused_ = paused;
  world_.memory().set_stopped(id_, paused);
  if (!paused) wake();
}

void Host::on_link_end(HostId peer) {
  world_.memory().end(id_, peer);
  wake();
}

void Host::wake() {
  if (turn_scheduled_ || paused_) return;
  turn_scheduled_ = true;
  // Sometimes at once, sometimes late enough for several packets to share a turn.
  const auto delay =
      static_cast<int64_t>(world_.prng().below(4) == 0 ? world_.prng().below(3000) : 200);
  world_.after(nanoseconds(delay), [this] {
    turn_scheduled_ = false;
    turn();
  });
}

// Half the hosts get plain ACKs without headers, as from processes of the same host. The effect is
// the same.
wire::RxPacket Host::to_rx_packet(const Arrived& a) const {
  const bool could_be = id_ % 2 != 0 && a.bytes.size() == wire::kBthBytes + wire::kAethBytes;
  if (!could_be) return {a.bytes, &a.meta};
  const wire::Bth bth = wire::Bth::load(a.bytes.data());
  wire::Bth plain;
  plain.opcode = static_cast<uint8_t>(wire::Opcode::RcAck);
  plain.destination = bth.destination;
  plain.psn = bth.psn;
  std::array<std::byte, wire::kBthBytes> same;
  plain.store(same.data());
  const bool positive = wire::Aeth::load(a.bytes.data() + same.size()).kind == wire::AckKind::Ack;
  if (!positive || !std::ranges::equal(same, std::span(a.bytes).first(same.size()))) {
    return {a.bytes, &a.meta};
  }
  return {.bytes = {}, .meta = &a.meta, .ack = {bth.destination, bth.psn}};
}

// True: records were read.
bool Host::take_from_memory(size_t max_records) {
  std::vector<std::pair<HostId, SharedMemory::Record>> records;
  world_.memory().take(id_, max_records, records);
  std::vector<wire::RxMeta> meta;
  std::vector<wire::RxPacket> packets;
  meta.reserve(records.size());
  for (const auto& [from, r] : records) {
    meta.push_back(addressing(world_.host(from), gid()));
    const std::span<const std::byte> bytes(r.bytes);
    const bool is_separate = bytes.size() - r.header_bytes > kShortPayload;
    packets.push_back(
        {.bytes = is_separate ? bytes.first(r.header_bytes) : bytes,
         .meta = &meta.back(),
         .separate_payload = is_separate ? bytes.subspan(r.header_bytes) : bytes.first(0),
         .packet_payload_bytes =
             r.packet_payload_bytes > 1 ? std::bit_floor(r.packet_payload_bytes) : 0,
         .ack = r.ack});
  }
  engine_.on_packets(packets, world_.now());
  return !records.empty();
}

// A reader that sleeps takes longer.
void Host::wake_readers() {
  SharedMemory& memory = world_.memory();
  for (const HostId to : memory.take_written(id_)) {
    const auto delay = static_cast<int64_t>(50 + memory.prng().below(2000));
    world_.after(nanoseconds(delay), [this, to] { world_.host(to).wake(); });
  }
  if (memory.anything_for(id_)) return wake();
  if (!turn_scheduled_) memory.set_asleep(id_, memory.prng().below(2) == 0);
}

void Host::turn() {
  if (paused_) return;
  ++turns;
  const Process::Call call(process_, *this);
  const Instant now = world_.now();
  std::vector<wire::RxPacket> packets;
  for (const Arrived& a : arrived_) packets.push_back(to_rx_packet(a));
  engine_.on_packets(packets, now);
  arrived_.clear();
  if (world_.memory().any()) {
    world_.memory().set_asleep(id_, false);
    if (world_.memory().remove_ended(id_)) {
      const auto takes_large_packets = [this](wire::PathId path) {
        return world_.memory().packet_bytes(id_, static_cast<HostId>(path)) != 0;
      };
      engine_.revert_paths_to_mtu(takes_large_packets, now);
    }
    // As in the runtime: read all records before checking timeouts, because the response may be
    // among them.
    take_from_memory(1 + world_.memory().prng().below(kRecordsPerTurn));
    while (engine_.next_deadline() <= now && take_from_memory(kRecordsPerTurn)) {
    }
  }
  engine_.on_deadline(now);
  // As a Nic whose program may be about to reply.
  const bool waits = delayed_turns_ < max_delayed_turns_ && engine_.anything_to_send() &&
                     engine_.only_responses_to_send(now);
  delayed_turns_ = waits ? delayed_turns_ + 1 : 0;
  Sink sink(world_, id_, packets_per_turn_);
  if (waits || engine_.poll_transmit(sink, now)) wake();
  if (world_.memory().any()) wake_readers();

  auto& state = engine_.state();
  events.insert(events.end(), state.events.begin(), state.events.end());
  failures.insert(failures.end(), state.failures.begin(), state.failures.end());
  state.events.clear();
  state.failures.clear();
  state.notified.clear();

  const Instant next = engine_.next_deadline();
  if (next != kNever && (armed_ <= now || next < armed_ || armed_ == kNever)) {
    armed_ = next;
    world_.at(next, [this] { wake(); });
  }
}

void connect(Host& a, core::QueuePair& qa, Host& b, core::QueuePair& qb, const ConnectionShape& s) {
  const auto bring_up = [&](Host& self, core::QueuePair& qp, ConnectionEnd end, Host& peer,
                            core::QueuePair& peer_qp) {
    end.source = self.gid();
    end.destination = peer.gid();
    end.path = wire::PathId{peer.id()};
    end.path_packet_bytes = self.packet_bytes(peer);
    end.peer = peer_qp.qpn();
    for (const Transition& t : transitions_to_rts(qp.type(), end, s))
      self.modify(qp, t.attr, t.mask);
  };
  bring_up(a, qa,
           {.sq_psn = s.psn_a,
            .rq_psn = s.psn_b,
            .read_depth = s.read_depth_a,
            .peer_read_depth = s.read_depth_b},
           b, qb);
  bring_up(b, qb,
           {.sq_psn = s.psn_b,
            .rq_psn = s.psn_a,
            .read_depth = s.read_depth_b,
            .peer_read_depth = s.read_depth_a},
           a, qa);
}

void open_for_datagrams(Host& host, core::QueuePair& qp, uint32_t qkey, uint32_t psn) {
  using namespace core::qp_attr;
  core::QpAttributes attr;
  attr.state = core::QpState::Init;
  attr.port = 1;
  attr.qkey = qkey;
  host.modify(qp, attr, kState | kPkeyIndex | kPort | kQkey);
  attr.state = core::QpState::Rtr;
  host.modify(qp, attr, kState);
  attr.state = core::QpState::Rts;
  attr.sq_psn = psn;
  host.modify(qp, attr, kState | kSqPsn);
}

}  // namespace verbena::sim

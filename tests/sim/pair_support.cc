// Two connected hosts.
#include "tests/sim/pair_support.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

namespace verbena::sim {

using core::SendOp;

Pair::Pair(Capabilities selective_repeat, const ConnectionShape& connection, const QpShape& qp,
           uint64_t region_bytes)
    : a(world.add_host(selective_repeat.a)),
      b(world.add_host(selective_repeat.b)),
      cq_a(a.create_cq(1024)),
      cq_b(b.create_cq(1024)),
      qa(a.create_qp(cq_a, cq_a, qp)),
      qb(b.create_qp(cq_b, cq_b, qp)),
      ra(a.add_region(region_bytes, kAllAccess)),
      rb(b.add_region(region_bytes, kAllAccess)) {
  fill_and_connect(connection);
}

Pair::Pair(const ConnectionShape& connection, const QpShape& qp, uint64_t region_bytes,
           const MemoryLinkShape& link)
    : a(world.add_host()),
      b(world.add_host()),
      cq_a(a.create_cq(1024)),
      cq_b(b.create_cq(1024)),
      qa(a.create_qp(cq_a, cq_a, qp)),
      qb(b.create_qp(cq_b, cq_b, qp)),
      ra(a.add_region(region_bytes, kAllAccess)),
      rb(b.add_region(region_bytes, kAllAccess)) {
  world.memory().open(a.id(), b.id(), link);
  fill_and_connect(connection);
}

void Pair::fill_and_connect(const ConnectionShape& connection) {
  fill(ra.bytes, 0xA);
  fill(rb.bytes, 0xB);
  connect(a, qa, b, qb, connection);
}

void Pair::post(const core::SendRequest& request) { ASSERT_TRUE(a.post_send(qa, request).ok()); }

namespace {

core::SendRequest request_of(SendOp op, uint64_t wr_id, const core::Sge& sge) {
  core::SendRequest r;
  r.op = op;
  r.wr_id = wr_id;
  r.flags = core::kSignaled;
  r.sges = {&sge, 1};
  return r;
}

uint64_t word_of(const Region& r, uint64_t offset) {
  uint64_t v;
  std::memcpy(&v, r.bytes.data() + offset, 8);
  return v;
}

}  // namespace

void Pair::send(uint64_t wr_id, uint64_t offset, uint32_t length) {
  const core::Sge sge = sge_a(offset, length);
  post(request_of(SendOp::Send, wr_id, sge));
}

void Pair::write(uint64_t wr_id, uint64_t offset, uint32_t length) {
  const core::Sge sge = sge_a(offset, length);
  core::SendRequest r = request_of(SendOp::Write, wr_id, sge);
  r.remote_address = rb.iova + offset;
  r.rkey = rb.key;
  post(r);
}

void Pair::read(uint64_t wr_id, uint64_t offset, uint32_t length) {
  const core::Sge sge = sge_a(offset, length);
  core::SendRequest r = request_of(SendOp::Read, wr_id, sge);
  r.remote_address = rb.iova + offset;
  r.rkey = rb.key;
  post(r);
}

void Pair::fetch_add(uint64_t wr_id, uint64_t local_offset, uint64_t remote_offset, uint64_t add) {
  const core::Sge sge = sge_a(local_offset, 8);
  core::SendRequest r = request_of(SendOp::FetchAdd, wr_id, sge);
  r.remote_address = rb.iova + remote_offset;
  r.rkey = rb.key;
  r.compare_add = add;
  post(r);
}

void Pair::receive(uint64_t wr_id, uint64_t offset, uint32_t length) {
  const core::Sge sge = sge_b(offset, length);
  ASSERT_TRUE(b.post_receive(qb, {.wr_id = wr_id, .sges = {&sge, 1}}).ok());
}

std::vector<core::Completion> Pair::poll(core::CompletionQueue& cq) {
  std::vector<core::Completion> out(cq.size());
  out.resize(cq.poll(out.data(), static_cast<uint32_t>(out.size())));
  return out;
}

void Pair::drop_first(std::function<bool(HostId, const wire::Packet&)> match, int* count) {
  world.network().set_drop_rule([match = std::move(match), count, done = false](
                                    HostId from, HostId, std::span<const std::byte> bytes) mutable {
    wire::ParseError why{};
    const auto packet = wire::Packet::parse(bytes, &why);
    if (done || !packet || !match(from, *packet)) return false;
    done = true;
    if (count != nullptr) ++*count;
    return true;
  });
}

void Pair::drop_all(std::function<bool(HostId, const wire::Packet&)> match) {
  world.network().set_drop_rule(
      [match = std::move(match)](HostId from, HostId, std::span<const std::byte> bytes) {
        wire::ParseError why{};
        const auto packet = wire::Packet::parse(bytes, &why);
        return packet && match(from, *packet);
      });
}

uint64_t Pair::word_b(uint64_t offset) const { return word_of(rb, offset); }
uint64_t Pair::word_a(uint64_t offset) const { return word_of(ra, offset); }

void Pair::run_until_idle(Duration limit) {
  EXPECT_TRUE(world.run_until_quiet(limit)) << "events are left after the limit";
  for (Host* h : {&a, &b}) {
    EXPECT_EQ(h->engine().next_deadline(), kNever);
    EXPECT_TRUE(h->arena().intact());
  }
  for (core::QueuePair* qp : {&qa, &qb}) {
    EXPECT_TRUE(qp->peer() == nullptr || qp->peer()->is_idle());
  }
}

void fill(std::span<std::byte> bytes, uint64_t seed) {
  Prng prng(seed);
  for (std::byte& x : bytes) x = static_cast<std::byte>(prng.next());
}

bool equal(std::span<const std::byte> x, std::span<const std::byte> y) {
  return std::ranges::equal(x, y);
}

bool is_verb(const wire::Packet& p, wire::Verb verb) { return p.op.verb == verb; }

}  // namespace verbena::sim

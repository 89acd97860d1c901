// Two hosts with one connected queue pair each, for scenarios with explicit steps.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "sim/world.h"
#include "wire/packet.h"

namespace verbena::sim {

inline constexpr uint32_t kAllAccess = core::kLocalWrite | core::kRemoteWrite | core::kRemoteRead |
                                       core::kRemoteAtomic | core::kWindowBind;

// The hosts of a Pair.
inline constexpr HostId kA = 0;
inline constexpr HostId kB = 1;

struct Pair {
  // Whether each side supports selective repeat.
  struct Capabilities {
    bool a = true;
    bool b = true;
  };
  explicit Pair(const ConnectionShape& connection = {}, const QpShape& qp = {},
                uint64_t region_bytes = 1 << 20)
      : Pair(Capabilities{}, connection, qp, region_bytes) {}
  Pair(Capabilities selective_repeat, const ConnectionShape& connection, const QpShape& qp,
       uint64_t region_bytes);
  // Connected through shared memory.
  Pair(const ConnectionShape& connection, const QpShape& qp, uint64_t region_bytes,
       const MemoryLinkShape& link);

  World world{1};
  Host& a;
  Host& b;
  core::CompletionQueue& cq_a;
  core::CompletionQueue& cq_b;
  core::QueuePair& qa;
  core::QueuePair& qb;
  Region ra;
  Region rb;

  core::Sge sge_a(uint64_t offset, uint32_t length) const {
    return {ra.iova + offset, length, ra.key};
  }
  core::Sge sge_b(uint64_t offset, uint32_t length) const {
    return {rb.iova + offset, length, rb.key};
  }

  // a's requests: local range [offset, offset + length) of ra against the same range of rb. All are
  // signalled, with the given wr_id.
  void send(uint64_t wr_id, uint64_t offset, uint32_t length);
  void write(uint64_t wr_id, uint64_t offset, uint32_t length);
  void read(uint64_t wr_id, uint64_t offset, uint32_t length);
  void fetch_add(uint64_t wr_id, uint64_t local_offset, uint64_t remote_offset, uint64_t add);
  void post(const core::SendRequest& request);
  // b's receive into rb.
  void receive(uint64_t wr_id, uint64_t offset, uint32_t length);

  std::vector<core::Completion> poll_a() { return poll(cq_a); }
  std::vector<core::Completion> poll_b() { return poll(cq_b); }
  static std::vector<core::Completion> poll(core::CompletionQueue& cq);

  // Drops the first packet that `match` accepts; *count is the number of packets dropped so far.
  void drop_first(std::function<bool(HostId from, const wire::Packet&)> match,
                  int* count = nullptr);
  // Drops every packet that `match` accepts.
  void drop_all(std::function<bool(HostId from, const wire::Packet&)> match);

  uint64_t word_b(uint64_t offset) const;
  uint64_t word_a(uint64_t offset) const;
  uint64_t counter_a(core::CounterId id) { return a.engine().state().counters[id]; }
  uint64_t counter_b(core::CounterId id) { return b.engine().state().counters[id]; }

  void fill_and_connect(const ConnectionShape& connection);

  // Runs until no event is left; then no packet may be outstanding and no timer pending.
  void run_until_idle(Duration limit = seconds(10));
};

void fill(std::span<std::byte> bytes, uint64_t seed);
bool equal(std::span<const std::byte> a, std::span<const std::byte> b);
bool is_verb(const wire::Packet& p, wire::Verb verb);

}  // namespace verbena::sim

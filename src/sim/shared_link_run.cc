// Senders that always have work, and what arrived of it.
#include "sim/shared_link_run.h"

#include <memory>
#include <numeric>

#include "sim/tcp_flow.h"
#include "sim/world.h"

namespace verbena::sim {
namespace {

constexpr HostId kReceiver = 0;
constexpr uint32_t kDepth = 64;

// One host whose queue pair always has WRITEs to send.
class BulkSender {
 public:
  BulkSender(World& world, Host& receiver, const Region& target, const SharedLinkShape& shape)
      : world_(world),
        host_(world.add_host()),
        cq_(host_.create_cq(2 * kDepth)),
        qp_(host_.create_qp(cq_, cq_, {.depth = kDepth})),
        source_(host_.add_region(shape.message_bytes, core::kLocalWrite)),
        target_(target),
        message_bytes_(shape.message_bytes) {
    core::CompletionQueue& cq = receiver.create_cq(2);
    core::QueuePair& peer = receiver.create_qp(cq, cq, {.depth = 1});
    connect(host_, qp_, receiver, peer, {.mtu = shape.mtu, .timeout = shape.timeout});
    const auto apart = nanoseconds(static_cast<int64_t>(world_.prng().below(1'000'000)));
    world_.at(world_.now() + shape.senders_start + apart, [this] { refill(); });
  }
  HostId id() const { return host_.id(); }
  uint64_t messages() const { return completed_; }
  bool failed() const { return qp_.state() == core::QpState::Error; }

 private:
  void refill() {
    core::Completion c;
    while (cq_.poll(&c, 1) == 1) {
      --posted_;
      if (c.status == core::WcStatus::Success) ++completed_;
    }
    while (posted_ < kDepth && !failed()) {
      const core::Sge sge{source_.iova, message_bytes_, source_.key};
      core::SendRequest r;
      r.op = core::SendOp::Write;
      r.flags = core::kSignaled;
      r.sges = {&sge, 1};
      r.remote_address = target_.iova;
      r.rkey = target_.key;
      if (!host_.post_send(qp_, r).ok()) break;
      ++posted_;
    }
    if (!failed()) world_.after(microseconds(500), [this] { refill(); });
  }

  World& world_;
  Host& host_;
  core::CompletionQueue& cq_;
  core::QueuePair& qp_;
  Region source_;
  const Region& target_;
  uint32_t message_bytes_;
  uint32_t posted_ = 0;
  uint64_t completed_ = 0;
};

// A host whose CPU other programs use, too: it runs and waits in turn.
void keep_busy(World& world, HostId id, bool runs) {
  constexpr uint64_t kLongest = 2'000'000;
  world.host(id).set_paused(!runs);
  world.after(nanoseconds(static_cast<int64_t>(world.prng().below(kLongest))),
              [&world, id, runs] { keep_busy(world, id, !runs); });
}

double jain_index(const std::vector<double>& shares) {
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  double squares = 0;
  for (const double s : shares) squares += s * s;
  return squares == 0 ? 0 : sum * sum / (static_cast<double>(shares.size()) * squares);
}

}  // namespace

SharedLinkResult run_shared_link(uint64_t seed, const SharedLinkShape& shape) {
  World world(seed);
  Bottleneck bottleneck(shape.bottleneck);
  world.network().defaults().delay = shape.delay;
  world.network().defaults().packet.loss = shape.loss;
  Host& receiver = world.add_host();
  const Region target =
      receiver.add_region(shape.message_bytes, core::kLocalWrite | core::kRemoteWrite);
  world.network().set_bottleneck(kReceiver, &bottleneck);
  std::vector<std::unique_ptr<BulkSender>> senders;
  for (uint32_t i = 0; i < shape.senders; ++i) {
    senders.push_back(std::make_unique<BulkSender>(world, receiver, target, shape));
  }
  std::vector<std::unique_ptr<TcpFlow>> tcp;
  for (uint32_t i = 0; i < shape.tcp_flows; ++i) {
    tcp.push_back(std::make_unique<TcpFlow>(world, bottleneck, shape.delay * 2));
  }

  if (shape.busy_hosts) {
    keep_busy(world, kReceiver, true);
    for (const auto& s : senders) keep_busy(world, s->id(), true);
  }

  world.run_for(shape.warm_up);
  bottleneck.restart_counts();
  std::vector<uint64_t> before;
  for (const auto& s : senders) before.push_back(s->messages());
  std::vector<uint64_t> tcp_before;
  for (const auto& t : tcp) tcp_before.push_back(t->delivered());
  world.run_for(shape.measured);

  SharedLinkResult result;
  const double capacity = static_cast<double>(shape.bottleneck.bits_per_second) / 8 *
                          static_cast<double>(shape.measured.ns) / 1e9;
  const uint32_t mtu = wire::bytes_of(shape.mtu);
  const double message = shape.message_bytes + (shape.message_bytes + mtu - 1) / mtu * 82.0;
  for (size_t i = 0; i < senders.size(); ++i) {
    const auto messages = static_cast<double>(senders[i]->messages() - before[i]);
    result.shares.push_back(messages * message / capacity);
    if (senders[i]->failed()) ++result.failed;
  }
  for (size_t i = 0; i < tcp.size(); ++i) {
    result.tcp_shares.push_back(static_cast<double>(tcp[i]->delivered() - tcp_before[i]) /
                                capacity);
  }
  const Bottleneck::Counts& counts = bottleneck.counts();
  result.utilisation = static_cast<double>(counts.bytes) / capacity;
  result.jain = jain_index(result.shares);
  if (counts.packets != 0) {
    result.dropped = static_cast<double>(counts.dropped) / static_cast<double>(counts.packets);
  }
  result.median_queue = bottleneck.queue_length(0.5);
  return result;
}

}  // namespace verbena::sim

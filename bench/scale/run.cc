// Builds the network and the transport, starts the flows, and waits for the last one.
#include "bench/scale/run.h"

#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>

#include "base/check.h"
#include "bench/scale/tcp_transport.h"
#include "bench/scale/verbena_transport.h"
#include "ns3/simulator.h"

namespace verbena::scale {
namespace {

// IP, UDP, BTH and ICRC, and the framing of ns-3's links.
constexpr uint32_t kHeaderBytes = 20 + 8 + 12 + 4 + 2;

uint64_t heap_bytes() { return mallinfo2().uordblks; }

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

uint64_t peak_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) * 1024;
}

const core::CongestionAlgorithm* find_algorithm(const std::string& name) {
  const auto* found =
      std::ranges::find(core::kCongestionAlgorithms, name, &core::CongestionAlgorithm::name);
  return found == std::end(core::kCongestionAlgorithms) ? nullptr : found;
}

class Run {
 public:
  explicit Run(const RunShape& shape) : shape_(shape), network_(shape.queues) {}

  RunResult go() {
    build();
    result_.flows.resize(flows_.size());
    for (size_t i = 0; i < flows_.size(); ++i) result_.flows[i].bytes = flows_[i].bytes;
    schedule_next();
    ns3::Simulator::Stop(shape_.limit);
    const auto begin = std::chrono::steady_clock::now();
    const double cpu_before = cpu_seconds();
    ns3::Simulator::Run();
    result_.cpu_seconds = cpu_seconds() - cpu_before;
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    result_.seconds = took.count();
    result_.events = ns3::Simulator::GetEventCount();
    report();
    ns3::Simulator::Destroy();
    return std::move(result_);
  }

 private:
  void build() {
    const uint64_t before = heap_bytes();
    if (shape_.scenario == "incast") {
      build_star(network_, shape_.senders + 1, shape_.gbps, ns3::MicroSeconds(1));
      flows_ = incast(shape_.senders, shape_.bytes);
      // The last sender's first packet, and then the bytes of all.
      result_.optimum_ns =
          network_.fastest(1, 0, shape_.bytes, shape_.mtu, kHeaderBytes).GetNanoSeconds() +
          other_senders_ns();
    } else {
      VERBENA_CHECK(shape_.scenario == "fat-tree");
      build_fat_tree(network_, shape_.tree);
      flows_ = web_search({.hosts = shape_.tree.hosts(),
                           .host_gbps = shape_.tree.host_gbps,
                           .load = shape_.load,
                           .flows = shape_.flows,
                           .seed = shape_.seed});
    }
    const uint64_t built = heap_bytes();
    result_.node_bytes = (built - before) / network_.node_count();
    make_transport();
    result_.host_bytes = (heap_bytes() - built) / network_.host_count();
  }

  int64_t other_senders_ns() const {
    const uint64_t packets = (shape_.bytes + shape_.mtu - 1) / shape_.mtu;
    const uint64_t bits = (shape_.bytes + packets * kHeaderBytes) * 8;
    return static_cast<int64_t>((shape_.senders - 1) * bits / shape_.gbps);
  }

  void make_transport() {
    const auto on_end = [this](uint32_t number, bool succeeded) { end(number, succeeded); };
    if (const core::CongestionAlgorithm* algorithm = find_algorithm(shape_.transport)) {
      auto verbena = std::make_unique<VerbenaTransport>(
          network_, *algorithm, shape_.seed, wire::Mtu{static_cast<uint16_t>(shape_.mtu)}, on_end);
      verbena_ = verbena.get();
      transport_ = std::move(verbena);
      return;
    }
    const std::string name = shape_.transport == "dctcp" ? "TcpDctcp" : "TcpCubic";
    transport_ = std::make_unique<TcpTransport>(network_, name, shape_.mtu, on_end);
  }

  // Starts the flows one after the other, so that few events are pending.
  void schedule_next() {
    if (next_ == flows_.size()) return;
    const ns3::Time wait = flows_[next_].start - transport_->lead() - ns3::Simulator::Now();
    ns3::Simulator::Schedule(wait, [this] {
      const auto number = static_cast<uint32_t>(next_++);
      transport_->open(number, flows_[number]);
      schedule_next();
    });
  }

  void end(uint32_t number, bool succeeded) {
    if (!succeeded) {
      std::fprintf(stderr, "flow %u of %lu bytes failed at %.6f s\n", number, flows_[number].bytes,
                   ns3::Simulator::Now().GetSeconds());
    } else {
      result_.flows[number].ns =
          std::max<int64_t>((ns3::Simulator::Now() - flows_[number].start).GetNanoSeconds(), 1);
      last_end_ = ns3::Simulator::Now();
    }
    if (++ended_ == flows_.size()) ns3::Simulator::Stop(ns3::MilliSeconds(1));
  }

  void report() {
    for (size_t i = 0; i < flows_.size(); ++i) {
      const Flow& flow = flows_[i];
      result_.flows[i].fastest_ns =
          network_.fastest(flow.source, flow.destination, flow.bytes, shape_.mtu, kHeaderBytes)
              .GetNanoSeconds();
      if (result_.flows[i].ns == 0) ++result_.failed;
    }
    result_.last_ns = (last_end_ - flows_.front().start).GetNanoSeconds();
    result_.network = network_.counts();
    result_.median_queue = network_.queue_length(0.5);
    result_.p99_queue = network_.queue_length(0.99);
    result_.largest_queue = network_.queue_length(1);
    result_.peak_bytes = peak_bytes();
    if (verbena_ == nullptr) return;
    using core::CounterId;
    result_.engine_seconds = std::chrono::duration<double>(verbena_->engine_time()).count();
    result_.engine_packets =
        verbena_->counter(CounterId::packets_sent) + verbena_->counter(CounterId::packets_received);
    result_.ecn_marked = verbena_->counter(CounterId::np_ecn_marked_roce_packets);
    result_.retransmitted = verbena_->counter(CounterId::retransmitted_packets);
    result_.timeouts = verbena_->counter(CounterId::timeouts);
    result_.probes = verbena_->counter(CounterId::probes_sent);
  }

  RunShape shape_;
  Network network_;
  std::vector<Flow> flows_;
  std::unique_ptr<Transport> transport_;
  VerbenaTransport* verbena_ = nullptr;
  size_t next_ = 0;
  size_t ended_ = 0;
  ns3::Time last_end_;
  RunResult result_;
};

}  // namespace

RunResult run(const RunShape& shape) { return Run(shape).go(); }

std::string as_json(const RunShape& shape, const RunResult& r) {
  char text[2048];
  std::snprintf(
      text, sizeof text,
      "{\"scenario\": \"%s\", \"transport\": \"%s\", \"seed\": %lu, \"mtu\": %u, \"load\": %g, "
      "\"failed\": %lu,\n \"last_ns\": %ld, \"optimum_ns\": %ld, \"packets\": %lu, "
      "\"dropped\": %lu, \"marked\": %lu,\n \"median_queue\": %lu, \"p99_queue\": %lu, "
      "\"largest_queue\": %lu, \"ecn_marked\": %lu, \"retransmitted\": %lu, \"timeouts\": %lu, "
      "\"probes\": %lu,\n \"events\": %lu, \"seconds\": %.3f, \"cpu_seconds\": %.3f, "
      "\"engine_seconds\": %.3f, \"engine_packets\": %lu, "
      "\"host_bytes\": %lu, \"node_bytes\": %lu, \"peak_bytes\": %lu,\n \"flows\": [",
      shape.scenario.c_str(), shape.transport.c_str(), shape.seed, shape.mtu, shape.load, r.failed,
      r.last_ns, r.optimum_ns, r.network.packets, r.network.dropped, r.network.marked,
      r.median_queue, r.p99_queue, r.largest_queue, r.ecn_marked, r.retransmitted, r.timeouts,
      r.probes, r.events, r.seconds, r.cpu_seconds, r.engine_seconds, r.engine_packets,
      r.host_bytes, r.node_bytes, r.peak_bytes);
  std::string json = text;
  for (const FlowTime& flow : r.flows) {
    std::snprintf(text, sizeof text, "%s[%lu, %ld, %ld]", json.back() == '[' ? "" : ", ",
                  flow.bytes, flow.ns, flow.fastest_ns);
    json += text;
  }
  return json + "]}\n";
}

}  // namespace verbena::scale

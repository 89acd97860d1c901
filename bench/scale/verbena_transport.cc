// Opens and closes the queue pairs of flows.
#include "bench/scale/verbena_transport.h"

#include "ns3/simulator.h"

namespace verbena::scale {
namespace {

uint64_t key_of(uint32_t host, uint64_t qpn) { return uint64_t{host} << 24 | qpn; }

// The ACK timeout of perftest and most programs: 67 ms.
constexpr uint8_t kTimeout = 14;

}  // namespace

VerbenaTransport::VerbenaTransport(const Network& network,
                                   const core::CongestionAlgorithm& congestion, uint64_t seed,
                                   wire::Mtu mtu, OnEnd on_end)
    : mtu_(mtu), on_end_(std::move(on_end)) {
  for (uint32_t i = 0; i < network.host_count(); ++i) {
    const auto host = ns3::CreateObject<EngineHost>();
    network.node(i)->AddApplication(host);
    host->open({.address = network.address_of(i),
                .seed = seed << 32 | i,
                .congestion = &congestion,
                .queue = network.host_queue(i)},
               buffers_, [this, i](const core::Completion& c) { on_completion(i, c); });
    hosts_.push_back(host);
  }
}

void VerbenaTransport::open(uint32_t number, const Flow& flow) {
  EngineHost& source = *ns3::PeekPointer(hosts_[flow.source]);
  EngineHost& destination = *ns3::PeekPointer(hosts_[flow.destination]);
  core::QueuePair& sender = source.create_qp(EngineHost::writes_for(flow.bytes), 1);
  core::QueuePair& receiver = destination.create_qp(1, 1);
  const sim::ConnectionShape shape{.mtu = mtu_, .timeout = kTimeout};
  source.connect(sender, destination, receiver, shape);
  destination.connect(receiver, source, sender, shape);
  const Open open{number, &flow, &sender, &receiver};
  open_.emplace(key_of(flow.source, sender.qpn().value()), open);
  open_.emplace(key_of(flow.destination, receiver.qpn().value()), open);
  destination.post_receive(receiver);
  source.write(sender, destination, flow.bytes);
}

void VerbenaTransport::on_completion(uint32_t host, const core::Completion& completion) {
  const auto found = open_.find(key_of(host, completion.qpn.value()));
  if (found == open_.end()) return;
  const Open open = found->second;
  const bool succeeded = completion.status == core::WcStatus::Success;
  const bool is_receive = completion.opcode == core::WcOpcode::ReceiveWriteImm;
  // A sender may fail although the receiver has everything: its last ACKs were lost.
  if ((is_receive || !succeeded) && ended_.insert(open.number).second) {
    on_end_(open.number, succeeded);
  }
  // The receiver's queue pair must exist until the sender has its last ACK.
  if (!is_receive) {
    open_.erase(key_of(open.flow->source, open.sender->qpn().value()));
    open_.erase(key_of(open.flow->destination, open.receiver->qpn().value()));
    ns3::Simulator::ScheduleNow(&VerbenaTransport::close, this, open);
  }
}

void VerbenaTransport::close(Open open) {
  hosts_[open.flow->source]->destroy(*open.sender);
  hosts_[open.flow->destination]->destroy(*open.receiver);
}

std::chrono::nanoseconds VerbenaTransport::engine_time() const {
  std::chrono::nanoseconds all{};
  for (const auto& host : hosts_) all += host->engine_time();
  return all;
}

uint64_t VerbenaTransport::counter(core::CounterId id) const {
  uint64_t all = 0;
  for (const auto& host : hosts_) all += host->counters()[id];
  return all;
}

}  // namespace verbena::scale

// Asks the receiver for connections in a board's place, and sends the generator's pattern.
#include "tools/daq/send.h"

#include <fmt/core.h>
#include <infiniband/verbs.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <vector>

#include "daq/board.h"
#include "daq/host_manager.h"
#include "daq/pattern.h"
#include "tools/daq/udp.h"
#include "tools/daq/verbs_device.h"

namespace verbena::daqtool {
namespace {

constexpr uint32_t kFirstPsn = 0;

// One connection: as many messages under way as there are places in its memory.
class Source {
 public:
  Source(const VerbsDevice& device, const SendOptions& options, ibv_cq* cq, uint32_t index)
      : device_(device),
        options_(options),
        index_(index),
        memory_(device, size_t{options.inflight} * options.message_bytes),
        qp_(device, cq, options.inflight, 1) {}

  daq::QpInfo local() const { return {.qpn = qp_.number(), .psn = kFirstPsn, .ip = device_.ip}; }
  void connect(const daq::QpInfo& peer, ibv_mtu mtu) {
    peer_ = peer;
    qp_.connect(device_, peer, kFirstPsn, mtu);
  }
  void on_completion() {
    --under_way_;
    ++done_;
  }
  bool has_sent_all() const { return done_ == options_.messages; }
  uint64_t done() const { return done_; }

  void post() {
    while (under_way_ < options_.inflight && posted_ < options_.messages) {
      const uint64_t place = posted_ % options_.inflight * options_.message_bytes;
      const std::span<std::byte> data(memory_.data() + place, options_.message_bytes);
      daq::fill_pattern(data, static_cast<uint32_t>(posted_ * (options_.message_bytes / 4)));
      ibv_sge from{memory_.address() + place, options_.message_bytes, memory_.mr().lkey};
      const bool write = options_.op == daq::TransferKind::Write;
      ibv_send_wr request{};
      request.wr_id = index_;
      request.sg_list = &from;
      request.num_sge = 1;
      request.opcode = write ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_SEND;
      request.send_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED;
      request.imm_data = __builtin_bswap32(daq::kGeneratorImmediate);
      request.wr.rdma.remote_addr = peer_.address + offset_;
      request.wr.rdma.rkey = peer_.rkey;
      ibv_send_wr* bad = nullptr;
      errno = ibv_post_send(qp_.get(), &request, &bad);
      if (errno != 0) throw Trouble(with_errno("ibv_post_send"));
      offset_ = (offset_ + options_.message_bytes) % options_.wrap_bytes;
      ++posted_;
      ++under_way_;
    }
  }

 private:
  const VerbsDevice& device_;
  const SendOptions& options_;
  uint32_t index_;
  Memory memory_;
  QueuePair qp_;
  daq::QpInfo peer_;
  uint64_t posted_ = 0;
  uint64_t done_ = 0;
  uint32_t under_way_ = 0;
  uint64_t offset_ = 0;
};

// Turns the connection manager's crank until `wanted` events of one kind came.
class Talk {
 public:
  Talk(const SendOptions& options, uint32_t ip)
      : cm({.ip = ip, .port = options.cm_port}), socket_(ip, options.cm_port) {}

  template <typename OnEvent>
  void until(const OnEvent& on_event) {
    for (bool more = true; more && !interrupted();) {
      while (const auto out = cm.next_outgoing())
        socket_.send(out->ip, out->port, out->message.store());
      pollfd fd{socket_.fd(), POLLIN, 0};
      ::poll(&fd, 1, 20);
      while (const auto datagram = socket_.receive()) {
        cm.on_datagram(datagram->bytes, datagram->source_ip, now());
      }
      cm.on_deadline(now());
      while (const auto event = cm.next_event()) more = on_event(*event) && more;
    }
  }

  daq::HostManager cm;

 private:
  UdpSocket socket_;
};

}  // namespace

SendSummary send(const SendOptions& wanted, const std::function<void(const std::string&)>& line) {
  SendOptions options = wanted;
  if (options.ip == 0) options.ip = source_address_to(options.receiver);
  const VerbsDevice device(options.ip);
  const ibv_mtu mtu = options.mtu == 0 ? device.mtu : std::min(mtu_of(options.mtu), device.mtu);
  const auto cq = device.make_cq(options.streams * (options.inflight + 1));
  Talk talk(options, options.ip);
  std::vector<std::unique_ptr<Source>> sources;
  std::vector<uint32_t> ids;
  for (uint32_t i = 0; i < options.streams; ++i) {
    sources.push_back(std::make_unique<Source>(device, options, cq.get(), i));
    ids.push_back(
        talk.cm.open(options.receiver, options.receiver_port, sources[i]->local(), now()));
  }
  const std::string who = daq::print_ip(options.receiver);
  size_t opened = 0;
  talk.until([&](const daq::HostEvent& event) {
    if (event.outcome == daq::HostOutcome::OpenRefused ||
        event.outcome == daq::HostOutcome::OpenUnanswered) {
      throw Trouble(fmt::format("{} {}", who, text_of(event.outcome)));
    }
    const auto id = std::ranges::find(ids, event.id);
    if (event.outcome != daq::HostOutcome::Opened || id == ids.end()) return true;
    const auto i = static_cast<size_t>(id - ids.begin());
    sources[i]->connect(event.peer, mtu);
    line(fmt::format("stream {}: INIT, RTR, RTS: sends to {} QP {}", i, who, event.peer.qpn));
    return ++opened < options.streams;
  });

  const Instant start = now();
  while (!interrupted() &&
         !std::ranges::all_of(sources, [](const auto& s) { return s->has_sent_all(); })) {
    for (const auto& source : sources) source->post();
    ibv_wc done[64];
    const int n = ibv_poll_cq(cq.get(), 64, done);
    for (int i = 0; i < n; ++i) {
      if (done[i].status != IBV_WC_SUCCESS) {
        throw Trouble(
            fmt::format("{} does not take a message: {}", who, ibv_wc_status_str(done[i].status)));
      }
      sources[done[i].wr_id]->on_completion();
    }
  }
  SendSummary summary{.device = device.name};
  summary.seconds = static_cast<double>((now() - start).ns) / 1e9;
  for (const auto& source : sources) summary.messages += source->done();
  summary.bytes = summary.messages * options.message_bytes;

  for (const uint32_t id : ids) talk.cm.close(id, now());
  talk.until([&](const daq::HostEvent&) { return talk.cm.connections() > 0; });
  return summary;
}

}  // namespace verbena::daqtool

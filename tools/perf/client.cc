// verbena perf HOST: connects to a server and measures WRITE, READ and SEND of each size.
#include <algorithm>

#include <fmt/core.h>

#include "tools/perf/connection.h"
#include "tools/perf/sides.h"

namespace verbena::perf {
namespace {

using Seconds = std::chrono::duration<double>;

// --------------------------------------------------------------------------------- connecting

std::string why_rejected(const rdma_cm_event& event, const ClientOptions& options) {
  const auto handshake =
      Handshake::load(event.param.conn.private_data, event.param.conn.private_data_len);
  if (!handshake) {
    return fmt::format(
        "no server listens at {}, port {}; start `verbena perf --listen` there first", options.host,
        options.port);
  }
  if (handshake->result == HandshakeResult::Busy)
    return fmt::format("{} is measuring with another client; try again in a moment", options.host);
  return fmt::format(
      "{} uses version {} of verbena perf and this is version {}; use the same Verbena on both",
      options.host, handshake->version, kVersion);
}

std::string explain(const rdma_cm_event& event, const ClientOptions& options) {
  switch (event.event) {
    case RDMA_CM_EVENT_ADDR_ERROR:
    case RDMA_CM_EVENT_ROUTE_ERROR:
      return fmt::format("no RDMA device reaches {}; `verbena devices` lists the devices",
                         options.host);
    case RDMA_CM_EVENT_REJECTED:
      return why_rejected(event, options);
    case RDMA_CM_EVENT_UNREACHABLE:
      return fmt::format(
          "{} does not respond; is `verbena perf --listen` running there, and does a firewall let "
          "UDP port 4791 through?",
          options.host);
    default:
      return fmt::format("connecting to {}: {} ({})", options.host, rdma_event_str(event.event),
                         std::strerror(event.status < 0 ? -event.status : event.status));
  }
}

class Client {
 public:
  explicit Client(const ClientOptions& options) : options_(options), channel_(open_channel()) {
    rdma_cm_id* id = nullptr;
    if (rdma_create_id(channel_.get(), &id, nullptr, RDMA_PS_TCP) != 0)
      throw ToolError(with_errno("rdma_create_id"));
    id_.reset(id);
    resolve();
    connection_ = std::make_unique<Connection>(id, [this] { check_events(); });
    connect();
  }

  Link link() const {
    ibv_qp_attr attributes{};
    ibv_qp_init_attr initial{};
    if (ibv_query_qp(id_->qp, &attributes, IBV_QP_PATH_MTU, &initial) != 0)
      throw ToolError("ibv_query_qp failed");
    return {ibv_get_device_name(id_->verbs->device), 128u << attributes.path_mtu};
  }

  SizeResult measure(uint32_t size) {
    SizeResult result{size, {}, {}, {}};
    result.write = stream(IBV_WR_RDMA_WRITE, size);
    check_data(size);
    result.write.latency_us = latency(2, [&](uint64_t n) { return write_ping_pong(size, n); });
    result.read = stream(IBV_WR_RDMA_READ, size);
    result.read.latency_us = latency(1, [&](uint64_t n) { return single_reads(size, n); });
    result.send = stream(IBV_WR_SEND, size);
    result.send.latency_us = latency(2, [&](uint64_t n) { return send_ping_pong(size, n); });
    return result;
  }

 private:
  static constexpr int kResolveMs = 2000;
  // Messages of a trial run, which estimates the time per message.
  static constexpr uint64_t kTrial = 32;
  static constexpr double kRounds = 10;
  static constexpr uint64_t kMaxGrowth = 64;           // of a round against the one before
  static constexpr uint64_t kMaxMessages = 4'000'000;  // of one measurement

  // ------------------------------------------------------------------------------- connecting

  void resolve() {
    rdma_addrinfo hints{}, *found = nullptr;
    hints.ai_port_space = RDMA_PS_TCP;
    if (rdma_getaddrinfo(options_.host.c_str(), std::to_string(options_.port).c_str(), &hints,
                         &found) != 0) {
      throw ToolError(fmt::format("unknown host '{}'", options_.host));
    }
    const Owned<rdma_addrinfo, rdma_freeaddrinfo> address(found);
    if (rdma_resolve_addr(id_.get(), nullptr, address->ai_dst_addr, kResolveMs) != 0) {
      throw ToolError(with_errno(fmt::format(
          "no RDMA device reaches {} (`verbena devices` lists the devices)", options_.host)));
    }
    await(RDMA_CM_EVENT_ADDR_RESOLVED);
    if (rdma_resolve_route(id_.get(), kResolveMs) != 0)
      throw ToolError(with_errno("rdma_resolve_route"));
    await(RDMA_CM_EVENT_ROUTE_RESOLVED);
  }

  void connect() {
    const Handshake ours = connection_->local_handshake().swapped();
    rdma_conn_param param{};
    param.private_data = &ours;
    param.private_data_len = sizeof ours;
    param.initiator_depth = Connection::kReadDepth;
    param.retry_count = 7;
    param.rnr_retry_count = 7;
    if (rdma_connect(id_.get(), &param) != 0) throw ToolError(with_errno("rdma_connect"));
    const Event event = await(RDMA_CM_EVENT_ESTABLISHED);
    const auto theirs =
        Handshake::load(event->param.conn.private_data, event->param.conn.private_data_len);
    if (!theirs) {
      throw ToolError(fmt::format("the program that listens at {}, port {} is not verbena perf",
                                  options_.host, options_.port));
    }
    connection_->set_remote(*theirs);
  }

  Event await(rdma_cm_event_type wanted) {
    Event event = next_event(channel_, kPeerTimeout);
    if (!event) throw ToolError(fmt::format("{} has not responded for 10 seconds", options_.host));
    if (event->event != wanted) throw ToolError(explain(*event, options_));
    return event;
  }

  void check_events() {
    const Event event = next_event(channel_, std::chrono::milliseconds(0));
    if (event && event->event == RDMA_CM_EVENT_DISCONNECTED)
      throw ToolError(fmt::format("{} has ended the connection", options_.host));
  }

  // -------------------------------------------------------------------------------- measuring

  // Sends the server its command and waits until it is ready.
  void start_part(Part part, uint32_t size, uint64_t count) {
    connection_->send_command({part, size, count});
    connection_->await_message();
  }

  // Runs a trial and then rounds until the measuring time has passed. A round takes about a tenth
  // of it, by the speed of the round before: on a busy machine the speed changes a thousandfold.
  // `run` gets the number of messages; the last argument says whether the round counts.
  void run_rounds(const std::function<void(uint64_t, bool)>& run) const {
    uint64_t count = kTrial;
    auto start = Clock::now();
    const auto end = start + options_.time;
    for (uint64_t round = 0; round < 2 || start < end; ++round) {  // the trial is round 0
      run(count, round != 0);
      const auto now = Clock::now();
      const double each = std::max(Seconds(now - start).count() / static_cast<double>(count), 1e-9);
      count = std::clamp(static_cast<uint64_t>(options_.time.count() / kRounds / each), kTrial,
                         std::min(kMaxGrowth * count, kMaxMessages));
      start = now;
    }
  }

  Seconds run_stream(ibv_wr_opcode opcode, uint32_t size, uint64_t count) {
    if (opcode == IBV_WR_SEND) start_part(Part::ReceiveSends, size, count);
    const auto start = Clock::now();
    for (uint64_t i = 0; i < count; ++i)
      connection_->post(opcode, size, i % 16 == 15 || i + 1 == count);
    connection_->drain();
    return Clock::now() - start;
  }

  Figures stream(ibv_wr_opcode opcode, uint32_t size) {
    fill_outgoing(size);
    uint64_t messages = 0;
    double seconds = 0;
    run_rounds([&](uint64_t count, bool counts) {
      const double round = run_stream(opcode, size, count).count();
      if (!counts) return;
      messages += count;
      seconds += round;
    });
    const double rate = static_cast<double>(messages) / seconds;
    return {rate * size * 8 / 1e9, rate, 0};
  }

  void fill_outgoing(uint32_t size) {
    ++fill_count_;
    for (uint32_t i = 0; i < size; ++i)
      connection_->outgoing()[i] = static_cast<std::byte>(i * 7 + i / 256 + fill_count_);
  }

  // Reads the data back and compares it with the data written.
  void check_data(uint32_t size) {
    connection_->post(IBV_WR_RDMA_READ, size, true);
    connection_->drain();
    if (!std::equal(connection_->received(), connection_->received() + size,
                    connection_->outgoing())) {
      throw ToolError(fmt::format("the {} bytes written to {} differ from those read back", size,
                                  options_.host));
    }
  }

  // The median of the times that `run` measures, divided by `parts`: 2 for a round trip, 1 for a
  // READ.
  double latency(double parts, const std::function<std::vector<double>(uint64_t)>& run) {
    std::vector<double> times;
    run_rounds([&](uint64_t count, bool counts) {
      const std::vector<double> round = run(count);
      if (counts) times.insert(times.end(), round.begin(), round.end());
    });
    const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
    std::nth_element(times.begin(), middle, times.end());
    return *middle / parts;
  }

  // The time of each of `count` calls in microseconds.
  template <typename Round>
  static std::vector<double> timed(uint64_t count, const Round& round) {
    std::vector<double> times;
    times.reserve(count);
    for (uint64_t i = 0; i < count; ++i) {
      const auto start = Clock::now();
      round(i);
      times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
    }
    return times;
  }

  std::vector<double> write_ping_pong(uint32_t size, uint64_t count) {
    connection_->target()[size - 1] = std::byte{0};
    start_part(Part::EchoWrites, size, count);
    auto times = timed(count, [&](uint64_t i) {
      connection_->outgoing()[size - 1] = std::byte{sequence_byte(i)};
      connection_->post(IBV_WR_RDMA_WRITE, size, i % 16 == 15 || i + 1 == count);
      connection_->await_byte(size, sequence_byte(i));
    });
    connection_->drain();
    return times;
  }

  std::vector<double> send_ping_pong(uint32_t size, uint64_t count) {
    start_part(Part::EchoSends, size, count);
    auto times = timed(count, [&](uint64_t i) {
      connection_->post(IBV_WR_SEND, size, i % 16 == 15 || i + 1 == count);
      connection_->await_message();
    });
    connection_->drain();
    return times;
  }

  std::vector<double> single_reads(uint32_t size, uint64_t count) {
    return timed(count, [&](uint64_t) {
      connection_->post(IBV_WR_RDMA_READ, size, true);
      connection_->drain();
    });
  }

  const ClientOptions& options_;
  Channel channel_;
  Id id_;
  std::unique_ptr<Connection> connection_;
  uint32_t fill_count_ = 0;
};

}  // namespace

void measure(const ClientOptions& options, const std::function<void(const Link&)>& connected,
             const std::function<void(const SizeResult&)>& result) {
  Client client(options);
  connected(client.link());
  for (const uint32_t size : options.sizes) result(client.measure(size));
}

}  // namespace verbena::perf

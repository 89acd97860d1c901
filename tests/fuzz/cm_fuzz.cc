// Feeds any datagrams, calls and times to a connection manager: its memory stays bounded, one
// datagram causes at most two, and when all ids are destroyed no state is left.
//
// The input is a list of steps: one byte selects the action, the next few bytes its target and
// arguments.
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "cm/agent.h"
#include "cm/route.h"

namespace {

using namespace verbena;
using namespace verbena::cm;

constexpr uint32_t kMaxConnections = 12;
constexpr uint64_t kService = service_id(PortSpace::Tcp, 1);
constexpr uint64_t kUdpService = service_id(PortSpace::Udp, 1);

wire::Gid host(uint8_t last) {
  const uint8_t address[] = {10, 0, 0, last};
  return wire::Gid::from_ipv4(address);
}

class Fuzz {
 public:
  Fuzz(const uint8_t* data, size_t size) : data_(data), size_(size), agent_(config()) {
    VERBENA_CHECK(agent_.listen({.service_id = kService, .backlog = 4}).ok());
    VERBENA_CHECK(agent_.listen({.service_id = kUdpService, .backlog = 4}).ok());
  }

  void run() {
    while (at_ < size_) {
      step();
      drain();
      VERBENA_CHECK(agent_.exchange_count() <= kMaxConnections);
    }
    for (const uint32_t id : ids_) agent_.destroy(id, now_);
    while (agent_.next_deadline() != kNever) {
      VERBENA_CHECK(agent_.next_deadline() >= now_);
      now_ = agent_.next_deadline();
      agent_.on_deadline(now_);
      drain();
    }
    VERBENA_CHECK(agent_.exchange_count() == 0);
    VERBENA_CHECK(agent_.index_count() == 0);
  }

 private:
  static AgentConfig config() {
    AgentConfig c;
    c.secret = {1, 2};
    c.max_connections = kMaxConnections;
    return c;
  }
  uint8_t byte() { return at_ < size_ ? data_[at_++] : 0; }
  uint32_t some_id() { return ids_.empty() ? 0x01000000u | byte() : ids_[byte() % ids_.size()]; }

  void step() {
    switch (byte() % 12) {
      case 0:
        return raw();
      case 1:
      case 2:
        return request();
      case 3:
      case 4:
      case 5:
        return message();
      case 6: {
        ConnectParameters p;
        p.addresses = {host(1), host(2), host(1), host(2), 1, 0, kService};
        p.qpn = wire::Qpn(byte());
        p.max_cm_retries = byte();
        p.response_timeout = byte();
        p.ack_timeout = byte();
        auto id = agent_.connect(p, now_);
        if (id.ok()) ids_.push_back(id.value());
        return;
      }
      case 7: {
        AcceptParameters p;
        p.qpn = wire::Qpn(byte());
        (void)agent_.accept(some_id(), p, now_);
        return;
      }
      case 8:
        (void)agent_.establish(some_id());
        return;
      case 9:
        return finish(byte());
      case 10: {
        SidrParameters p;
        p.addresses = {host(1), host(2), host(1), host(2), 1, 0, kUdpService};
        auto id = agent_.resolve_sidr(p, now_);
        if (id.ok()) ids_.push_back(id.value());
        return;
      }
      default:
        now_ = now_ + microseconds(int64_t{1} << (byte() % 30));
        agent_.on_deadline(now_);
    }
  }

  void finish(uint8_t how) {
    const uint32_t id = some_id();
    switch (how % 5) {
      case 0:
        return agent_.destroy(id, now_);
      case 1:
        (void)agent_.disconnect(id, {}, now_);
        return;
      case 2:
        (void)agent_.reject(id, static_cast<RejectReason>(byte()), {}, {}, now_);
        return;
      case 3:
        (void)agent_.notify_established(id);
        return;
      default:
        (void)agent_.reply_sidr(id, {.qpn = wire::Qpn(1), .ece = {}, .private_data = {}}, now_);
    }
  }

  // Raw bytes.
  void raw() {
    std::vector<std::byte> bytes(byte());
    for (std::byte& b : bytes) b = std::byte{byte()};
    receive(bytes);
  }

  // A valid request with at most three bytes changed.
  void request() {
    Req req;
    req.local_comm_id = byte();
    req.tid = byte() & 1;
    req.local_qpn = wire::Qpn(byte() & 15);
    req.service_id = kService;
    req.path_mtu = 3;
    req.max_cm_retries = 2;
    req.local_response_timeout = byte();
    req.primary.local_gid = host(2);
    req.primary.ack_timeout = byte();
    IpHeader{1, host(2), host(1)}.store(req.private_data.data());
    Mad mad;
    req.store(mad);
    corrupt(mad);
    receive(mad);
  }

  // Any attribute, with ids in use.
  void message() {
    Mad mad{};
    MadHeader header;
    header.attribute = static_cast<Attribute>(0x10 + byte() % 12);
    header.store(mad.data());
    store_be32(mad.data() + 24, byte() & 1 ? some_id() : byte());
    store_be32(mad.data() + 28, some_id());
    store_be64(mad.data() + 32, byte() & 1 ? kUdpService : uint64_t{byte()} << 40);
    if (header.attribute == Attribute::SidrReq) {
      IpHeader{1, host(2), host(1)}.store(mad.data() + 40);
    }
    corrupt(mad);
    receive(mad);
  }

  void corrupt(Mad& mad) {
    for (int i = byte() & 3; i > 0; --i) {
      const uint8_t at = byte();
      mad[at] ^= std::byte{byte()};
    }
  }

  void receive(std::span<const std::byte> bytes) {
    drain();
    (void)route_of(bytes);
    agent_.on_mad({host(2), host(1), bytes}, now_);
    OutgoingMad mad;
    int responses = 0;
    while (agent_.next_mad(mad)) ++responses;
    VERBENA_CHECK(responses <= 2);
  }

  void drain() {
    OutgoingMad mad;
    while (agent_.next_mad(mad)) VERBENA_CHECK(is_cm_mad(mad.bytes));
    Event event;
    while (agent_.next_event(event)) {
      const bool request =
          event.kind == EventKind::ConnectRequest || event.kind == EventKind::SidrRequest;
      if (request) ids_.push_back(event.id);
      VERBENA_CHECK(event.private_data.size <= event.private_data.bytes.size());
    }
  }

  const uint8_t* data_;
  size_t size_;
  size_t at_ = 0;
  Instant now_{};
  Agent agent_;
  std::vector<uint32_t> ids_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Fuzz(data, size).run();
  return 0;
}

// One agent; the test is the peer. Time is explicit.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "cm/agent.h"

namespace verbena::cm {

inline wire::Gid ipv4(uint8_t last) {
  const uint8_t address[] = {10, 0, 0, last};
  return wire::Gid::from_ipv4(address);
}

inline wire::Gid ipv6(uint8_t last) {
  const uint8_t address[16] = {0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last};
  return wire::Gid::from_ipv6(address);
}

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

inline std::string_view text_of(std::span<const std::byte> data, size_t length) {
  return {reinterpret_cast<const char*>(data.data()), length};
}

class AgentTest : public testing::Test {
 public:
  static constexpr uint8_t kSlot = 3;
  static constexpr uint64_t kService = service_id(PortSpace::Tcp, 7174);
  static constexpr uint32_t kPeerId = 0xAABBCCDD;
  static constexpr uint32_t kPeerQpn = 0x1234;
  static constexpr uint32_t kOurQpn = 0x030042;
  static constexpr uint64_t kPeerTid = 0x1122334455667788;

  static AgentConfig config() {
    AgentConfig c;
    c.slot = kSlot;
    c.secret = {11, 22};
    c.ca_guid = 0xC0FFEE;
    c.max_connections = 64;
    return c;
  }

  // --- actions of the peer ----------------------------------------------------------------------
  template <typename Message>
  void receive(const Message& message, std::optional<wire::Gid> source = {}) {
    Mad mad;
    message.store(mad);
    agent_.on_mad({source.value_or(peer_), us_, mad, 0, false, watched_}, now_);
  }
  Req peer_req(uint32_t peer_id = kPeerId, uint32_t qpn = kPeerQpn) const;
  Rep peer_rep(uint32_t our_id) const;
  Rtu peer_rtu(uint32_t our_id) const;
  Dreq peer_dreq(uint32_t our_id) const;
  Drep peer_drep(uint32_t our_id) const;
  Rej peer_rej(uint32_t our_id, RejectReason reason, About about) const;
  Mra peer_mra(uint32_t our_id, About about, uint8_t service_timeout) const;

  // The network returns a datagram of this agent with an ICMP error.
  void return_undelivered(const wire::Gid& host, uint64_t tid, int error) {
    const UnreachableHost absent{host, tid, error};
    agent_.hosts_unreachable({&absent, 1}, now_);
  }

  // --- actions of this agent --------------------------------------------------------------------
  ConnectParameters connect_parameters() const;
  AcceptParameters accept_parameters() const;
  uint32_t connect();
  uint32_t listen(uint32_t backlog = 16);
  // Receives the peer's REQ. Returns the ID of the connection request.
  uint32_t receive_request();
  uint32_t established_active();
  uint32_t established_passive();

  // --- results ----------------------------------------------------------------------------------
  std::vector<OutgoingMad> sent();
  std::vector<Attribute> sent_attributes();
  // Exactly one datagram was sent, to the peer, of this kind.
  template <typename Message>
  Message sent_one() {
    const std::vector<OutgoingMad> all = sent();
    EXPECT_EQ(all.size(), 1u);
    if (all.size() != 1) return {};
    EXPECT_STREQ(name_of(MadHeader::load(all[0].bytes.data()).attribute),
                 name_of(Message::kAttribute));
    EXPECT_EQ(all[0].source, us_);
    EXPECT_EQ(all[0].destination, peer_);
    return Message::load(all[0].bytes);
  }
  std::vector<Event> events();
  std::vector<EventKind> event_kinds();
  // Exactly one event, of this kind.
  Event event_one(EventKind kind);
  uint64_t counter(CounterId id) const { return agent_.counters()[id]; }
  // Moves time to the next deadline and calls on_deadline. False if there is no deadline.
  bool next_deadline();
  // The agent has no exchange, deadline, message or event left.
  void expect_empty();

  Agent agent_{config()};
  Instant now_{1000};
  bool watched_ = false;  // messages come from a host whose processes are watched by lifelines
  wire::Gid us_ = ipv4(1);
  wire::Gid peer_ = ipv4(2);
};

}  // namespace verbena::cm

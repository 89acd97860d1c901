// Helpers for tests of the UDP datapath. A process is only a slot directory and a datapath here, so
// one test can have several.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <net/if.h>

#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "datapath/udp/udp_datapath.h"
#include "tests/support/needs_steering.h"
#include "wire/headers.h"

namespace verbena::datapath {

using wire::Gid;
using wire::Qpn;

inline Gid ipv4(const char* text) {
  in_addr a{};
  EXPECT_EQ(::inet_pton(AF_INET, text, &a), 1);
  return Gid::from_ipv4(&a);
}

inline Gid ipv6(const char* text) {
  in6_addr a{};
  EXPECT_EQ(::inet_pton(AF_INET6, text, &a), 1);
  return Gid::from_ipv6(&a);
}

// A slot directory, a datapath, and copies of the received packets.
struct Process {
  explicit Process(UdpOptions options = {}) {
    options.steering &= test::steering_is_possible();
    auto claimed = host::SlotDirectory::claim([] { return std::string("reply\n"); });
    EXPECT_TRUE(claimed.ok());
    directory = std::move(claimed.value());
    udp = std::make_unique<UdpDatapath>(::if_nametoindex("lo"), *directory, options);
  }

  uint8_t slot() const { return directory->slot(); }

  wire::PathId path_to(const Process& peer, const Gid& source, const Gid& destination) {
    wire::Route route;
    route.source = source;
    route.destination = destination;
    route.peer = Qpn::of_slot(peer.slot(), 1);
    auto path = udp->open_path(route);
    EXPECT_TRUE(path.ok()) << (path.ok() ? "" : path.error().why);
    return path.ok() ? path.value() : wire::PathId{};
  }

  void push(wire::PathId path, uint8_t slot, uint32_t psn, size_t payload_bytes,
            bool in_window = true, bool ends_batch = false, bool ecn_capable = true) {
    wire::TxPacket p;
    p.path = path;
    wire::Bth bth;
    bth.opcode = static_cast<uint8_t>(wire::Opcode::RcSendOnly);
    bth.destination = Qpn::of_slot(slot, 7);
    bth.psn = wire::Psn(psn);
    bth.pad = static_cast<uint8_t>(-payload_bytes & 3);
    bth.store(p.header.data());
    p.header_bytes = wire::kBthBytes;
    p.pad = bth.pad;
    p.in_window = in_window;
    p.ends_batch = ends_batch;
    p.ecn_capable = ecn_capable;
    std::vector<std::byte> payload(payload_bytes);
    for (size_t i = 0; i < payload_bytes; ++i) payload[i] = static_cast<std::byte>(psn + i * 7);
    // Two parts, as from a scatter list.
    const std::span<const std::byte> whole(payload);
    const std::span<const std::byte> parts[2] = {whole.first(payload_bytes / 3),
                                                 whole.subspan(payload_bytes / 3)};
    p.payload = parts;
    ASSERT_GT(udp->sink().room(), 0u);
    udp->sink().push(p);
  }

  void push_run(wire::PathId path, uint8_t slot, uint32_t first_psn, uint32_t count,
                uint32_t payload_bytes) {
    wire::TxPacket p;
    p.path = path;
    wire::Bth bth;
    bth.opcode = static_cast<uint8_t>(wire::Opcode::RcSendMiddle);
    bth.destination = Qpn::of_slot(slot, 7);
    bth.psn = wire::Psn(first_psn);
    bth.store(p.header.data());
    p.header_bytes = wire::kBthBytes;
    p.payload_bytes = payload_bytes;
    p.in_window = true;
    std::vector<std::byte> payload(size_t{count} * payload_bytes);
    for (size_t i = 0; i < payload.size(); ++i) {
      payload[i] = static_cast<std::byte>(first_psn + i / payload_bytes + i % payload_bytes * 7);
    }
    ASSERT_GE(udp->sink().room_on(path), count);
    udp->sink().push_run({.first = p, .payload = payload, .count = count});
  }

  size_t receive() {
    const auto got = udp->receive();
    for (const wire::RxPacket& p : got) {
      packets.emplace_back(p.bytes.begin(), p.bytes.end());
      metas.push_back(*p.meta);
    }
    return got.size();
  }

  bool intact(size_t i) const {
    const auto& bytes = packets[i];
    const wire::Bth bth = wire::Bth::load(bytes.data());
    for (size_t k = 0; k + wire::kBthBytes + bth.pad < bytes.size(); ++k) {
      if (bytes[wire::kBthBytes + k] != static_cast<std::byte>(bth.psn.value() + k * 7))
        return false;
    }
    return true;
  }
  uint32_t psn(size_t i) const { return wire::Bth::load(packets[i].data()).psn.value(); }

  uint64_t counter(const std::string& name) const {
    std::vector<Counter> all;
    udp->append_counters(all);
    for (const Counter& c : all) {
      if (c.name == name) return c.value;
    }
    ADD_FAILURE() << "no counter " << name;
    return 0;
  }

  std::unique_ptr<host::SlotDirectory> directory;
  std::unique_ptr<UdpDatapath> udp;
  std::vector<std::vector<std::byte>> packets;
  std::vector<wire::RxMeta> metas;
};

// Lets all processes make progress until `done`, for a limited number of turns.
template <typename Done>
bool run(std::initializer_list<Process*> processes, Done done) {
  for (int turn = 0; turn < 200'000; ++turn) {
    if (done()) return true;
    for (Process* p : processes) p->receive();
  }
  return done();
}

// Waits until steering is complete, which takes a few turns of each process.
inline void complete_steering(std::initializer_list<Process*> processes) {
  for (int turn = 0; turn < 500; ++turn) {
    for (Process* p : processes) p->receive();
  }
  for (Process* p : processes) {
    p->packets.clear();
    p->metas.clear();
  }
}

inline const Gid kLoopback4 = Gid::from_ipv4("\x7F\x00\x00\x01");

}  // namespace verbena::datapath

// A datapath in memory for tests of decorators: receive() returns the pushed packets.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "datapath/datapath.h"
#include "wire/headers.h"
#include "wire/local_peer.h"
#include "wire/one_sided.h"

namespace verbena::datapath {

class FakeDatapath final : public Datapath, private wire::PacketSink, private wire::LocalPeer {
 public:
  FakeDatapath() = default;
  // Shared memory: the payload is separate from its headers, and the local peer accepts every
  // one-sided access.
  struct InMemory {};
  explicit FakeDatapath(InMemory) : PacketSink(this), in_memory_(true) {}
  static constexpr size_t kRoom = 100;

  Result<wire::PathId> open_path(const wire::Route& route) override {
    meta_ = {route.source, route.destination, route.traffic_class, route.hop_limit};
    return wire::PathId{3};
  }
  void close_path(wire::PathId) override {}
  std::span<const wire::RxPacket> receive() override {
    arrived_ = std::move(sent_);
    sent_.clear();
    packets_.clear();
    for (const auto& p : arrived_) {
      const std::span<const std::byte> bytes(p);
      const size_t front = in_memory_ ? wire::kBthBytes : bytes.size();
      packets_.push_back(
          {.bytes = bytes.first(front), .meta = &meta_, .separate_payload = bytes.subspan(front)});
    }
    return packets_;
  }
  wire::PacketSink& sink() override { return *this; }
  void flush() override {
    sent_.insert(sent_.end(), pushed_.begin(), pushed_.end());
    pushed_.clear();
  }
  void release() override { ++releases; }
  int wait_fd() const override { return -1; }
  void append_counters(std::vector<Counter>& to) const override { to.push_back({"fake", 1}); }

  int releases = 0;

 private:
  bool is_full(wire::PathId path) const override { return path == wire::PathId{3}; }
  bool is_asleep(wire::PathId) const override { return true; }
  bool send_short_ack(wire::PathId, const wire::Ack&) override { return true; }
  bool access(const wire::OneSided&) override { return true; }
  bool retract(const wire::Unread&) override { return true; }
  size_t room() const override { return kRoom - pushed_.size(); }
  void push(const wire::TxPacket& p) override {
    std::vector<std::byte> bytes(p.header.begin(), p.header.begin() + p.header_bytes);
    for (const auto& part : p.payload) bytes.insert(bytes.end(), part.begin(), part.end());
    bytes.resize(bytes.size() + p.pad);
    pushed_.push_back(std::move(bytes));
  }

  bool in_memory_ = false;
  wire::RxMeta meta_;
  std::vector<std::vector<std::byte>> pushed_;
  std::vector<std::vector<std::byte>> sent_;
  std::vector<std::vector<std::byte>> arrived_;
  std::vector<wire::RxPacket> packets_;
};

// A decorator offers packets only, even if the medium below offers more.
inline void expect_packets_only(Datapath& decorator) {
  wire::LocalPeer* const peer = decorator.sink().local_peer();
  ASSERT_NE(peer, nullptr);
  EXPECT_TRUE(peer->is_full(wire::PathId{3}));
  EXPECT_FALSE(peer->is_full(wire::PathId{4}));
  EXPECT_FALSE(peer->is_asleep(wire::PathId{3}));
  EXPECT_FALSE(peer->send_short_ack(wire::PathId{3}, {}));
  EXPECT_FALSE(peer->access({}));
  EXPECT_FALSE(peer->retract({}));
  EXPECT_EQ(decorator.packet_bytes(wire::PathId{3}), 0u);
}

}  // namespace verbena::datapath

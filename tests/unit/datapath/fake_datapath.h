// A datapath in memory for tests of decorators: what is pushed arrives at the next receive().
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "datapath/datapath.h"

namespace verbena::datapath {

class FakeDatapath final : public Datapath, private wire::PacketSink {
 public:
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
    for (const auto& p : arrived_) packets_.push_back({p, &meta_});
    return packets_;
  }
  wire::PacketSink& sink() override { return *this; }
  void flush() override {
    sent_.insert(sent_.end(), pushed_.begin(), pushed_.end());
    pushed_.clear();
  }
  int wait_fd() const override { return -1; }
  void append_counters(std::vector<Counter>& to) const override { to.push_back({"fake", 1}); }

 private:
  size_t room() const override { return kRoom - pushed_.size(); }
  void push(const wire::TxPacket& p) override {
    std::vector<std::byte> bytes(p.header.begin(), p.header.begin() + p.header_bytes);
    for (const auto& part : p.payload) bytes.insert(bytes.end(), part.begin(), part.end());
    bytes.resize(bytes.size() + p.pad);
    pushed_.push_back(std::move(bytes));
  }

  wire::RxMeta meta_;
  std::vector<std::vector<std::byte>> pushed_;
  std::vector<std::vector<std::byte>> sent_;
  std::vector<std::vector<std::byte>> arrived_;
  std::vector<wire::RxPacket> packets_;
};

}  // namespace verbena::datapath

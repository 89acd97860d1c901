// UdEndpoint: a UD queue pair among others, some of them in multicast groups. A datagram reaches
// whom it was sent to, whole, with the right source in front of it and not without the right Q_Key,
// and not more often than the network carried it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/parcels.h"
#include "sim/receive_pool.h"

namespace verbena::sim {

class UdEndpoint;

// Everybody who may write to each other.
struct UdSociety {
  static constexpr uint32_t kGroups = 2;
  std::vector<UdEndpoint*> members;
  uint32_t qkey = 0;
  wire::Mtu mtu = wire::Mtu::k1024;
};

class UdEndpoint final : public Actor {
 public:
  // With a pool that is shared, receives come from there.
  UdEndpoint(World& world, Host& host, core::CompletionQueue& cq, const WorkloadShape& shape,
             Report& report, UdSociety& society, ReceivePool* shared);

  static PoolShape pool_shape(uint32_t depth, uint32_t sges, wire::Mtu mtu) {
    return {depth, kHeaderBytes + wire::bytes_of(mtu), sges};
  }

  bool owns(wire::Qpn qpn) const override { return qpn == qp_.qpn(); }
  void work() override;
  void fill_receives() override;
  void on_completion(const core::Completion& completion) override;
  bool done() const override { return posted_ >= shape_.requests && parcels_.closed(); }
  std::string describe() const override;
  bool send_last_message() override;
  uint64_t missing() const override;
  void check() override;
  void stop() override;
  std::string check_stopped() const override {
    return own_receives_ ? own_receives_->check_stopped() : "";
  }

 private:
  static constexpr uint32_t kHeaderBytes = 40;
  static constexpr uint32_t kFirstGroup = 100;  // as Parcel::to; below it are members

  void post_one(uint32_t to, bool forbidden);
  bool is_for_us(uint32_t sender, const Parcel& p) const;
  void on_receive(const core::Completion& c);
  Bytes expected_header(const UdEndpoint& sender, const Parcel& p) const;

  UdSociety& society_;
  uint32_t index_;
  core::QueuePair& qp_;
  Parcels parcels_;
  std::unique_ptr<ReceivePool> own_receives_;
  ReceivePool& receives_;
  std::array<bool, UdSociety::kGroups> joined_{};
  std::map<uint32_t, uint32_t> arrived_;  // by number
  uint32_t posted_ = 0;
  std::optional<size_t> first_farewell_;
  bool stopped_ = false;
};

}  // namespace verbena::sim

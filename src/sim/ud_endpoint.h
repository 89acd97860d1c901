// UdEndpoint: a UD queue pair among others, some of them in multicast groups. A datagram is
// received by its destinations only, completely, with the right source and Q_Key, and not more
// often than the network delivered it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/numbered_messages.h"
#include "sim/receive_pool.h"

namespace verbena::sim {

class UdEndpoint;

// The UD queue pairs that send to each other.
struct UdMembership {
  static constexpr uint32_t kGroups = 2;
  std::vector<UdEndpoint*> members;
  uint32_t qkey = 0;
  wire::Mtu mtu = wire::Mtu::k1024;
};

class UdEndpoint final : public Actor {
 public:
  // `shared`: the pool of receives; null: its own.
  UdEndpoint(World& world, Host& host, core::CompletionQueue& cq, const WorkloadShape& shape,
             Report& report, UdMembership& membership, ReceivePool* shared);

  static PoolShape pool_shape(uint32_t depth, uint32_t sges, wire::Mtu mtu) {
    return {depth, kHeaderBytes + wire::bytes_of(mtu), sges};
  }

  bool owns(wire::Qpn qpn) const override { return qpn == qp_.qpn(); }
  void work() override;
  void fill_receives() override;
  void on_completion(const core::Completion& completion) override;
  bool done() const override { return posted_ >= shape_.requests && messages_.closed(); }
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
  static constexpr uint32_t kFirstGroup = 100;  // as NumberedMessage::to; below it are members

  void post_one(uint32_t to, bool forbidden);
  bool is_for_us(uint32_t sender, const NumberedMessage& p) const;
  void on_receive(const core::Completion& c);
  Bytes expected_header(const UdEndpoint& sender, const NumberedMessage& p) const;

  UdMembership& membership_;
  uint32_t index_;
  core::QueuePair& qp_;
  NumberedMessages messages_;
  std::unique_ptr<ReceivePool> own_receives_;
  ReceivePool& receives_;
  std::array<bool, UdMembership::kGroups> joined_{};
  std::map<uint32_t, uint32_t> arrived_;  // by number
  uint32_t posted_ = 0;
  std::optional<size_t> last_messages_begin_;
  bool stopped_ = false;
};

}  // namespace verbena::sim

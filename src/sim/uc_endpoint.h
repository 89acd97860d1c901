// UcEndpoint: one end of an unreliable connection. Each message is received completely or not at
// all, not more often than the network delivered it, and in order if the network keeps order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/numbered_messages.h"
#include "sim/receive_pool.h"

namespace verbena::sim {

class UcEndpoint final : public Actor {
 public:
  UcEndpoint(World& world, Host& host, core::CompletionQueue& cq, const WorkloadShape& shape,
             Report& report);
  void set_peer(UcEndpoint& peer) { peer_ = &peer; }
  core::QueuePair& qp() { return qp_; }

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
  std::string check_stopped() const override { return receives_.check_stopped(); }

 private:
  static constexpr uint32_t kPlaces = 24;  // that the peer writes to, each once
  static constexpr uint32_t kMaxBytes = 8192;

  void post_one(core::SendOp op, uint32_t length);
  void on_receive(const core::Completion& c);
  bool check_place(const NumberedMessage& p, const Bytes& message, bool whole);

  core::QueuePair& qp_;
  NumberedMessages messages_;
  ReceivePool receives_;
  Region places_;
  UcEndpoint* peer_ = nullptr;
  uint32_t posted_ = 0;
  uint32_t next_place_ = 0;  // of the peer's
  uint32_t last_arrived_ = 0;
  std::optional<size_t> last_messages_begin_;
  bool stopped_ = false;
};

}  // namespace verbena::sim

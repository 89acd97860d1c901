// NumberedMessages: the messages of a sender without ACKs. Each contains its number, by which a
// receiver identifies it, and bytes derived from the number, by which the receiver checks its
// content.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "sim/actor.h"
#include "sim/ledger.h"
#include "sim/scatter_gather.h"

namespace verbena::sim {

struct NumberedMessage {
  core::SendOp op{};
  uint32_t length = 0;
  uint32_t to = 0;         // destination: member, group or place
  bool forbidden = false;  // must not be received
  uint32_t arrived = 0;
};

class NumberedMessages {
 public:
  static constexpr uint32_t kNumberBytes = 4;

  // `sender` goes into the upper byte of each number.
  NumberedMessages(World& world, Host& host, core::QueuePair& qp, const WorkloadShape& shape,
                   uint32_t max_bytes, uint32_t sender);

  bool has_room() const { return !free_.empty(); }
  // Posts a message of p.length bytes, which has space for the number unless it has an immediate.
  // `request` contains the address. False: refused.
  bool post(const NumberedMessage& p, core::SendRequest request, bool must_signal);
  // Empty, or the error in the completion.
  std::string completed(const core::Completion& completion);
  bool closed() const { return ledger_.closed() && waiting_.empty(); }

  static bool has_immediate(core::SendOp op) {
    return op == core::SendOp::SendImm || op == core::SendOp::WriteImm;
  }
  // The number in a message: its immediate, or its first bytes.
  static uint32_t number_in(const core::Completion& completion, std::span<const std::byte> message);
  static uint32_t sender_in(uint32_t number) { return number >> 24; }
  // Null: no such message was sent.
  NumberedMessage* find(uint32_t number);
  Bytes content(uint32_t number) const;
  const std::vector<NumberedMessage>& all() const { return all_; }

 private:
  struct Waiting {
    uint64_t wr_id;
    int slot;
  };

  World& world_;
  Host& host_;
  core::QueuePair& qp_;
  QpShape shape_;
  uint32_t max_bytes_;
  uint32_t sender_;
  uint64_t salt_;
  Region local_;
  Ledger ledger_;
  std::vector<NumberedMessage> all_;
  std::deque<Waiting> waiting_;
  std::vector<int> free_;
  uint32_t since_signaled_ = 0;
};

}  // namespace verbena::sim

// Parcels: the messages of a sender that nobody acknowledges. Each carries its number, so that a
// receiver knows which one it got, and bytes that follow from the number, so that it can tell
// whether it got all of it.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "sim/actor.h"
#include "sim/ledger.h"
#include "sim/pieces.h"

namespace verbena::sim {

struct Parcel {
  core::SendOp op{};
  uint32_t length = 0;
  uint32_t to = 0;         // a place, to whom it means something
  bool forbidden = false;  // must not arrive
  uint32_t arrived = 0;
};

class Parcels {
 public:
  static constexpr uint32_t kNumberBytes = 4;

  // `sender` goes into the upper byte of each number.
  Parcels(World& world, Host& host, core::QueuePair& qp, const WorkloadShape& shape,
          uint32_t max_bytes, uint32_t sender);

  bool room() const { return !free_.empty(); }
  // Posts one of p.length bytes, which is enough for the number if it has no immediate. `request`
  // has its address already. False: refused.
  bool post(const Parcel& p, core::SendRequest request, bool must_signal);
  // What is wrong with it, or nothing.
  std::string completed(const core::Completion& completion);
  bool closed() const { return ledger_.closed() && waiting_.empty(); }

  static bool has_immediate(core::SendOp op) {
    return op == core::SendOp::SendImm || op == core::SendOp::WriteImm;
  }
  // The number that a message came with: its immediate, or what it begins with.
  static uint32_t number_in(const core::Completion& completion, std::span<const std::byte> message);
  static uint32_t sender_in(uint32_t number) { return number >> 24; }
  // Null: that one was never sent.
  Parcel* find(uint32_t number);
  Bytes content(uint32_t number) const;
  const std::vector<Parcel>& all() const { return all_; }

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
  std::vector<Parcel> all_;
  std::deque<Waiting> waiting_;
  std::vector<int> free_;
  uint32_t since_signaled_ = 0;
};

}  // namespace verbena::sim

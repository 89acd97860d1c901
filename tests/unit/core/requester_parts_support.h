// The state around a part of the requester, without an engine: one queue pair in RTS, its path, its
// send queue. Time is explicit.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdint>

#include "core/posting.h"
#include "core/qp_common.h"
#include "core/send_cursor.h"

namespace verbena::core {

class RequesterPartTest : public testing::Test {
 public:
  static constexpr uint32_t kPd = 1;
  static constexpr uint32_t kFirstPsn = 0xFFFFFE;  // PSNs wrap early in each test
  static constexpr uint32_t kPayload = 256;
  static constexpr uint64_t kIova = 0x10000;
  static constexpr Instant kStart{1'000'000};

  RequesterPartTest() {
    qp_.attr.path_mtu = wire::Mtu::k256;
    qp_.attr.dest_qpn = wire::Qpn::of_slot(2, 7);
    qp_.attr.timeout = 14;
    qp_.attr.retry_count = 2;
    qp_.attr.rnr_retry = 1;
    qp_.state = QpState::Rts;
    qp_.peer = &path_;
    key_ = registry_.add_region(kPd, memory_.data(), memory_.size(), kIova, kLocalWrite).value();
    cursor_.start(wire::Psn(kFirstPsn));
  }

  // The n-th PSN after the first.
  static wire::Psn psn(uint32_t n) { return wire::Psn(kFirstPsn) + n; }
  static constexpr Instant at(Duration later) { return kStart + later; }

  void post(SendOp op, uint32_t length, uint32_t flags = kSignaled) {
    const Sge sge{kIova, length, key_};
    SendRequest request;
    request.op = op;
    request.flags = flags;
    request.sges = {&sge, 1};
    fill_slot(cursor_.queue(), request, length);
    cursor_.queue().push();
  }
  // Assigns PSNs to the request at the cursor and advances past its next chunk.
  SendCursor::Chunk advance() {
    if (!cursor_.request().numbered) cursor_.number(kPayload, path_);
    const SendCursor::Chunk chunk = cursor_.next_chunk();
    cursor_.advance(chunk.packets);
    return chunk;
  }
  uint64_t counter(CounterId id) { return state_.counters[id]; }

  MemoryRegistry registry_{1};
  EngineState state_{registry_, 1, true};
  CompletionQueue cq_{16};
  PeerPath path_;
  QpCommon qp_{.engine = state_,
               .self = nullptr,
               .qpn = wire::Qpn::of_slot(1, 5),
               .opcode_base = wire::kRcBase,
               .pd = kPd,
               .config = {.pd = kPd, .send_cq = &cq_, .receive_cq = &cq_},
               .attr = {},
               .failure = {}};
  SendCursor cursor_{16, 1, 64};
  std::array<std::byte, 256 * 1024> memory_{};
  uint32_t key_ = 0;
};

}  // namespace verbena::core

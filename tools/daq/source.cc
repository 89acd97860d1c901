// The generator's pattern, as work requests.
#include "tools/daq/source.h"

#include <arpa/inet.h>
#include <fmt/core.h>

#include <cerrno>

#include "daq/board_queue_pair.h"
#include "daq/pattern.h"
#include "tools/daq/plan.h"
#include "tools/daq/udp.h"

namespace verbena::daqtool {
namespace {

constexpr uint32_t kFirstPsn = 0;

ibv_wr_opcode opcode_of(const daq::Transmit& orders) {
  if (orders.kind == daq::TransferKind::Write)
    return orders.immediate ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
  return orders.immediate ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND;
}

}  // namespace

Source::Source(const VerbsDevice& device, const SendOptions& options, ibv_cq* cq, uint32_t index)
    : device_(device), options_(options), index_(index), qp_(device, cq, options.inflight, 1) {}

daq::QpInfo Source::local() const {
  return {.qpn = qp_.number(), .psn = kFirstPsn, .ip = device_.ip};
}

void Source::connect(const daq::QpInfo& peer, ibv_mtu mtu) {
  peer_ = peer;
  qp_.connect(device_, peer, kFirstPsn, mtu);
}

bool Source::begin(const daq::Transmit& orders, Instant now) {
  if (busy()) return false;
  orders_ = orders;
  orders_.length &= ~3u;  // as boards do
  const uint64_t memory = uint64_t{options_.inflight} * orders_.length;
  if (memory > free_memory()) {
    throw Trouble(fmt::format("no memory for {} messages of {} bytes under way", options_.inflight,
                              orders_.length));
  }
  memory_.reset();
  memory_.emplace(device_, std::max<uint64_t>(memory, 1));
  left_ = orders.count;
  gap_ = {static_cast<int64_t>(orders.gap_cycles * 1e9 / daq::BoardQpConfig{}.clock_hz)};
  due_ = now;
  offset_ = 0;
  next_place_ = 0;
  return true;
}

void Source::post(Instant now) {
  while (left_ != 0 && under_way_ < options_.inflight && due_ <= now) {
    post_one();
    due_ = due_ + gap_;
  }
}

void Source::post_one() {
  const uint64_t place = uint64_t{next_place_} * orders_.length;
  daq::fill_pattern({memory_->data() + place, orders_.length}, next_word_);
  ibv_sge from{memory_->address() + place, orders_.length, memory_->mr().lkey};
  ibv_send_wr request{};
  request.wr_id = index_;
  request.sg_list = &from;
  request.num_sge = orders_.length != 0 ? 1 : 0;
  request.opcode = opcode_of(orders_);
  request.send_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED;
  request.imm_data = htonl(daq::kGeneratorImmediate);
  request.wr.rdma.remote_addr = peer_.address + offset_;
  request.wr.rdma.rkey = peer_.rkey;
  ibv_send_wr* bad = nullptr;
  errno = ibv_post_send(qp_.get(), &request, &bad);
  if (errno != 0) throw Trouble(with_errno("ibv_post_send"));
  next_place_ = (next_place_ + 1) % options_.inflight;
  next_word_ += orders_.length / 4;
  offset_ = (offset_ + orders_.length) % options_.wrap_bytes;
  --left_;
  ++under_way_;
}

void Source::on_completion() {
  --under_way_;
  ++done_;
  done_bytes_ += orders_.length;
}

}  // namespace verbena::daqtool

// Sends the generator's pattern by work requests.
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

ibv_wr_opcode opcode_of(const daq::Transmit& command) {
  if (command.kind == daq::TransferKind::Write)
    return command.immediate ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
  return command.immediate ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND;
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

bool Source::begin(const daq::Transmit& command, Instant now) {
  if (busy()) return false;
  command_ = command;
  command_.length &= ~3u;  // as boards do
  const uint64_t memory = uint64_t{options_.inflight} * command_.length;
  if (memory > free_memory()) {
    throw ToolError(fmt::format("no memory for {} messages of {} bytes in flight",
                                options_.inflight, command_.length));
  }
  memory_.reset();
  memory_.emplace(device_, std::max<uint64_t>(memory, 1));
  to_post_ = command.count;
  gap_ = {static_cast<int64_t>(command.gap_cycles * 1e9 / daq::BoardQpConfig{}.clock_hz)};
  due_ = now;
  offset_ = 0;
  next_buffer_ = 0;
  return true;
}

void Source::post(Instant now) {
  while (to_post_ != 0 && in_flight_ < options_.inflight && due_ <= now) {
    post_one();
    due_ = due_ + gap_;
  }
}

void Source::post_one() {
  const uint64_t buffer_offset = uint64_t{next_buffer_} * command_.length;
  daq::fill_pattern({memory_->data() + buffer_offset, command_.length}, next_word_);
  ibv_sge from{memory_->address() + buffer_offset, command_.length, memory_->mr().lkey};
  ibv_send_wr request{};
  request.wr_id = index_;
  request.sg_list = &from;
  request.num_sge = command_.length != 0 ? 1 : 0;
  request.opcode = opcode_of(command_);
  request.send_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED;
  request.imm_data = htonl(daq::kGeneratorImmediate);
  request.wr.rdma.remote_addr = peer_.address + offset_;
  request.wr.rdma.rkey = peer_.rkey;
  ibv_send_wr* bad = nullptr;
  errno = ibv_post_send(qp_.get(), &request, &bad);
  if (errno != 0) throw ToolError(with_errno("ibv_post_send"));
  next_buffer_ = (next_buffer_ + 1) % options_.inflight;
  next_word_ += command_.length / 4;
  offset_ = (offset_ + command_.length) % options_.wrap_bytes;
  --to_post_;
  ++in_flight_;
}

void Source::on_completion() {
  --in_flight_;
  ++completed_;
  completed_bytes_ += command_.length;
}

}  // namespace verbena::daqtool

// A stream posts receives, checks each message, and only then posts the receive again. A slow
// consumer thus makes the board wait (RNR NAK), and no message is overwritten.
#include "tools/daq/stream.h"

#include <fcntl.h>
#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "daq/pattern.h"
#include "tools/daq/udp.h"

namespace verbena::daqtool {
namespace {

constexpr uint32_t kPostBatch = 64;
constexpr size_t kMaxGaps = 100;
constexpr size_t kMaxIovecs = 256;

std::string text_of(ibv_wc_status status, uint32_t message_bytes) {
  switch (status) {
    case IBV_WC_LOC_LEN_ERR:
      return fmt::format("a message is larger than --msg-size {}", message_bytes);
    case IBV_WC_WR_FLUSH_ERR:
      return "the queue pair failed: the board wrote outside its buffer, or sent an invalid "
             "request";
    default:
      return fmt::format("a receive failed: {}", ibv_wc_status_str(status));
  }
}

}  // namespace

Stream::Stream(const VerbsDevice& device, const ReceiveOptions& options, const Plan& plan,
               uint32_t index)
    : device_(device),
      options_(options),
      index_(index),
      requested_(options.boards.empty() ? 0 : options.messages),
      receives_(plan.receives),
      checks_(plan.checks),
      memory_(device, plan.memory),
      requests_(kPostBatch),
      buffers_(kPostBatch) {
  if (options.dump.empty()) return;
  open_dump(plan.streams == 1 ? options.dump : fmt::format("{}.{:03}", options.dump, index));
}

daq::QpInfo Stream::prepare(ibv_cq* cq) {
  disconnect();
  qp_.emplace(device_, cq, 1, receives_);
  write_offset_ = 0;
  next_word_ = 0;
  next_buffer_ = 0;
  outstanding_ = 0;
  post(receives_);
  summary_.queue_pair = qp_->number();
  return {.qpn = qp_->number(),
          .psn = kFirstPsn,
          .rkey = memory_.mr().rkey,
          .address = memory_.address(),
          .ip = device_.ip};
}

void Stream::connect(const daq::QpInfo& peer) {
  qp_->connect(device_, peer, kFirstPsn, mtu_of(options_.mtu));
  summary_.board = peer.ip;
  summary_.board_queue_pair = peer.qpn;
  ++summary_.connections;
  last_activity_ = now();
}

void Stream::disconnect() {
  qp_.reset();
  for (Message& m : pending_) m.ready = {0};
  consume({0});
  outstanding_ = 0;
}

void Stream::post(uint32_t count) {
  while (count > 0) {
    const uint32_t n = std::min(count, kPostBatch);
    for (uint32_t i = 0; i < n; ++i) {
      ibv_recv_wr& request = requests_[i];
      request = {};
      request.wr_id = uint64_t{index_} << 32 | next_buffer_;
      if (options_.op == daq::TransferKind::Send) {
        buffers_[i] = {memory_.address() + uint64_t{next_buffer_} * options_.message_bytes,
                       options_.message_bytes, memory_.mr().lkey};
        request.sg_list = &buffers_[i];
        request.num_sge = 1;
      }
      request.next = i + 1 < n ? &requests_[i + 1] : nullptr;
      next_buffer_ = (next_buffer_ + 1) % receives_;
    }
    ibv_recv_wr* bad = nullptr;
    errno = ibv_post_recv(qp_->get(), requests_.data(), &bad);
    if (errno != 0) throw ToolError(with_errno("ibv_post_recv"));
    outstanding_ += n;
    count -= n;
  }
}

bool Stream::on_completion(const ibv_wc& completion, Instant now) {
  if (completion.status != IBV_WC_SUCCESS) {
    if (summary_.trouble.empty())
      summary_.trouble = text_of(completion.status, options_.message_bytes);
    return false;
  }
  if (--outstanding_ == 0) ++summary_.starved;
  last_activity_ = now;
  Message m{.offset = 0, .bytes = completion.byte_len, .ready = now};
  if (options_.op == daq::TransferKind::Send) {
    m.offset = (completion.wr_id & 0xFFFFFFFF) * options_.message_bytes;
  } else {
    m.offset = write_offset_;
    write_offset_ = (write_offset_ + completion.byte_len) % options_.wrap_bytes;
  }
  if (options_.consumer_us != 0) {
    consumer_free_at_ = std::max(consumer_free_at_, now) + microseconds(options_.consumer_us);
    m.ready = consumer_free_at_;
  }
  pending_.push_back(m);
  return true;
}

bool Stream::consume(Instant now) {
  uint32_t consumed = 0;
  while (!pending_.empty() && pending_.front().ready <= now) {
    const Message m = pending_.front();
    pending_.pop_front();
    ++consumed;
    if (checks_) check(m);
    ++summary_.messages;
    summary_.bytes += m.bytes;
    const uint32_t mtu = options_.mtu;
    summary_.packets += std::max(1u, (m.bytes + mtu - 1) / mtu);
    if (dump_.valid()) to_dump_.push_back(m);
  }
  if (consumed == 0) return true;
  if (dump_.valid() && !write_dump()) return false;
  if (qp_) post(consumed);
  return true;
}

// If a message starts whole messages after the expected word, the board generated and dropped those
// in between.
void Stream::check(const Message& m) {
  if (m.offset + m.bytes > memory_.size()) {
    ++summary_.wrong_messages;
    return;
  }
  const std::span<const std::byte> data(memory_.data() + m.offset, m.bytes);
  uint32_t first = next_word_;
  if (m.bytes >= 4) std::memcpy(&first, data.data(), sizeof first);
  const uint32_t words = m.bytes / 4;
  const uint32_t ahead = first - next_word_;
  if (ahead != 0 && words != 0 && ahead % words == 0 && ahead < 1u << 31 &&
      !daq::find_mismatch(data, first)) {
    const uint64_t lost = ahead / words;
    if (summary_.gaps.size() < kMaxGaps) summary_.gaps.push_back({summary_.messages, lost});
    summary_.lost += lost;
    next_word_ = first;
  } else if (daq::find_mismatch(data, next_word_)) {
    ++summary_.wrong_messages;
  }
  next_word_ += words;
}

// ----------------------------------------------------------------------------------------- dump

// The dump is written from the receive buffers. O_DIRECT bypasses the page cache where the message
// size and the file system permit it.
void Stream::open_dump(const std::string& name) {
  const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
  if (options_.message_bytes % kPage == 0) {
    dump_ = os::UniqueFd(::open(name.c_str(), flags | O_DIRECT, 0644));
    dump_direct_ = dump_.valid();
  }
  if (!dump_.valid()) dump_ = os::UniqueFd(::open(name.c_str(), flags, 0644));
  if (!dump_.valid()) throw ToolError(with_errno("cannot create " + name));
}

bool Stream::write_dump() {
  std::vector<iovec> parts;
  for (const Message& m : std::exchange(to_dump_, {})) {
    if (m.bytes == 0 || m.offset + m.bytes > memory_.size()) continue;
    std::byte* const from = memory_.data() + m.offset;
    if (!parts.empty() &&
        static_cast<std::byte*>(parts.back().iov_base) + parts.back().iov_len == from) {
      parts.back().iov_len += m.bytes;
    } else {
      parts.push_back({from, m.bytes});
    }
  }
  if (write_all(std::move(parts))) return true;
  summary_.trouble =
      with_errno(fmt::format("the dump cannot be written, it ends after {} bytes", dumped_));
  dump_failed_ = true;
  dump_ = {};
  return false;
}

bool Stream::write_all(std::vector<iovec> parts) {
  for (size_t at = 0; at < parts.size();) {
    const auto n = static_cast<int>(std::min(parts.size() - at, kMaxIovecs));
    ssize_t written = ::writev(dump_.get(), parts.data() + at, n);
    if (written < 0 && errno == EINVAL && dump_direct_) {
      ::fcntl(dump_.get(), F_SETFL, 0);  // this file system does not support O_DIRECT
      dump_direct_ = false;
      continue;
    }
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    dumped_ += static_cast<uint64_t>(written);
    while (written > 0) {
      const auto part = std::min(static_cast<size_t>(written), parts[at].iov_len);
      written -= static_cast<ssize_t>(part);
      parts[at].iov_base = static_cast<std::byte*>(parts[at].iov_base) + part;
      parts[at].iov_len -= part;
      if (parts[at].iov_len == 0) ++at;
    }
  }
  return true;
}

}  // namespace verbena::daqtool

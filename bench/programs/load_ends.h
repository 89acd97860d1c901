// The ends of the connections that thread_load measures: a queue pair that keeps itself full, its
// peer, and a TCP stream.
#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "bench/programs/verbs_support.h"

namespace verbena::bench {

constexpr uint32_t kMaxList = 16;  // requests per posted list; the last one is signalled
constexpr int kPolled = 32;        // completions per call
constexpr uint8_t kReads = 16;     // outstanding READs
constexpr size_t kPage = 4096;
constexpr size_t kReceiveBytes = 256 << 10;  // of a TCP receiver's buffer, at least

struct LoadOptions {
  int threads = 1;
  int pairs = 1;
  size_t size = 64;
  std::string operation = "write";
  double seconds = 1;
  uint32_t depth = 128;
  bool tcp = false;
  bool peer_polls = false;
  bool create_in_threads = false;
  bool pin = false;

  uint32_t list() const { return std::clamp<uint32_t>(depth / 4, 1, kMaxList); }
  uint32_t receives() const { return operation == "send" ? 4 * depth : 1; }
};

enum class Role : uint8_t { kActive, kPassive };

// One end of a connection. One thread at a time uses it.
class End {
 public:
  End() = default;
  virtual ~End() = default;
  End(const End&) = delete;
  End& operator=(const End&) = delete;

  virtual void connect() {}
  // Takes a step. Returns the number of messages that it completed.
  virtual uint64_t transfer() = 0;
  // The active end: waits until nothing is outstanding.
  virtual void drain() = 0;
};

struct Free {
  void operator()(char* memory) const { std::free(memory); }
};

inline std::unique_ptr<char, Free> allocate(size_t size) {
  const size_t bytes = (size + kPage - 1) / kPage * kPage;
  std::unique_ptr<char, Free> memory(static_cast<char*>(std::aligned_alloc(kPage, bytes)));
  if (!memory) fail("aligned_alloc");
  std::memset(memory.get(), 1, bytes);
  return memory;
}

struct Address {
  uint64_t memory = 0;
  uint32_t rkey = 0;
  uint32_t queue_pair = 0;
};

// A queue pair with a completion queue of its own.
class VerbsEnd : public End {
 public:
  VerbsEnd(const LoadOptions& options, const Device& device, int control)
      : options_(options), device_(device), control_(control), memory_(allocate(options.size)) {
    const uint32_t completions = options.depth + options.receives();
    cq_ = ibv_create_cq(device.context, static_cast<int>(completions), nullptr, nullptr, 0);
    if (!cq_) fail("ibv_create_cq");
    mr_ = ibv_reg_mr(device.pd, memory_.get(), options.size, kAccess);
    if (!mr_) fail("ibv_reg_mr");
    qp_ = create_rc_queue_pair(device, cq_, options.depth, options.receives());
    sge_ = {reinterpret_cast<uintptr_t>(memory_.get()), static_cast<uint32_t>(options.size),
            mr_->lkey};
    const Address mine{sge_.addr, mr_->rkey, qp_->qp_num};
    write_all(control_, &mine, sizeof mine);
  }
  ~VerbsEnd() override {
    must(ibv_destroy_qp(qp_), "ibv_destroy_qp");
    must(ibv_dereg_mr(mr_), "ibv_dereg_mr");
    must(ibv_destroy_cq(cq_), "ibv_destroy_cq");
  }

  void connect() override {
    read_all(control_, &peer_, sizeof peer_);
    connect_queue_pair(device_, qp_, peer_.queue_pair, kAccess, kReads);
  }

 protected:
  static constexpr int kAccess =
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

  // Returns the number of completions.
  int poll() {
    ibv_wc done[kPolled];
    const int n = ibv_poll_cq(cq_, kPolled, done);
    if (n < 0) fail("ibv_poll_cq", 0);
    for (int i = 0; i < n; ++i) {
      if (done[i].status == IBV_WC_SUCCESS) continue;
      const std::string what = options_.operation + " on queue pair " +
                               std::to_string(qp_->qp_num) + ": " +
                               ibv_wc_status_str(done[i].status);
      fail(what.c_str(), 0);
    }
    return n;
  }

  const LoadOptions& options_;
  ibv_qp* qp_ = nullptr;
  ibv_sge sge_{};
  Address peer_;

 private:
  const Device& device_;
  const int control_;
  std::unique_ptr<char, Free> memory_;
  ibv_cq* cq_ = nullptr;
  ibv_mr* mr_ = nullptr;
};

// Keeps its queue pair full.
class Requester final : public VerbsEnd {
 public:
  using VerbsEnd::VerbsEnd;

  void connect() override {
    VerbsEnd::connect();
    requests_.resize(options_.list());
    for (size_t i = 0; i < requests_.size(); ++i) {
      ibv_send_wr& request = requests_[i];
      request.next = i + 1 < requests_.size() ? &requests_[i + 1] : nullptr;
      request.sg_list = &sge_;
      request.num_sge = 1;
      request.opcode = options_.operation == "write"  ? IBV_WR_RDMA_WRITE
                       : options_.operation == "read" ? IBV_WR_RDMA_READ
                                                      : IBV_WR_SEND;
      if (options_.operation != "send")
        request.wr.rdma = {.remote_addr = peer_.memory, .rkey = peer_.rkey};
    }
    requests_.back().send_flags = IBV_SEND_SIGNALED;
  }
  uint64_t transfer() override {
    for (; outstanding_ + requests_.size() <= options_.depth; outstanding_ += requests_.size()) {
      ibv_send_wr* bad = nullptr;
      must(ibv_post_send(qp_, requests_.data(), &bad), "ibv_post_send");
    }
    return complete();
  }
  void drain() override {
    while (outstanding_ > 0) complete();
  }

 private:
  uint64_t complete() {
    const uint64_t messages = static_cast<uint64_t>(poll()) * requests_.size();
    outstanding_ -= messages;
    return messages;
  }

  uint64_t outstanding_ = 0;
  std::vector<ibv_send_wr> requests_;
};

// Polls, and posts a receive for each one that a SEND has used.
class Responder final : public VerbsEnd {
 public:
  using VerbsEnd::VerbsEnd;

  void connect() override {
    VerbsEnd::connect();
    for (ibv_recv_wr& receive : receives_) {
      receive.sg_list = &sge_;
      receive.num_sge = 1;
    }
    for (uint32_t i = 0; i < options_.receives(); ++i) post(1);
  }
  uint64_t transfer() override {
    const int used = poll();
    if (used > 0) post(used);
    return static_cast<uint64_t>(used);
  }
  void drain() override {}

 private:
  void post(int count) {
    for (int i = 0; i < count; ++i) receives_[i].next = i + 1 < count ? &receives_[i + 1] : nullptr;
    ibv_recv_wr* bad = nullptr;
    must(ibv_post_recv(qp_, receives_, &bad), "ibv_post_recv");
  }

  ibv_recv_wr receives_[kPolled]{};
};

// A TCP stream. The active end sends whole messages; the passive end receives what has arrived.
class TcpEnd final : public End {
 public:
  TcpEnd(const LoadOptions& options, int socket, Role role)
      : socket_(socket),
        role_(role),
        size_(role == Role::kActive ? options.size : std::max(options.size, kReceiveBytes)),
        memory_(allocate(size_)) {}

  uint64_t transfer() override {
    if (role_ == Role::kActive) {
      write_all(socket_, memory_.get(), size_);
      return 1;
    }
    if (recv(socket_, memory_.get(), size_, 0) < 0) fail("recv");
    return 0;
  }
  void drain() override { shutdown(socket_, SHUT_WR); }  // the receiver does not wait any longer

 private:
  const int socket_;
  const Role role_;
  const size_t size_;
  std::unique_ptr<char, Free> memory_;
};

}  // namespace verbena::bench

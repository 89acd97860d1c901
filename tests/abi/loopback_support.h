// Two queue pairs of this process, connected over the loopback device, and owners for verbs objects
// that destroy them in the right order.
#pragma once

#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace verbena::test {

template <auto kDestroy>
struct Destroy {
  template <typename T>
  void operator()(T* object) const {
    EXPECT_EQ(kDestroy(object), 0);
  }
};

using ContextPtr = std::unique_ptr<ibv_context, Destroy<ibv_close_device>>;
using PdPtr = std::unique_ptr<ibv_pd, Destroy<ibv_dealloc_pd>>;
using MrPtr = std::unique_ptr<ibv_mr, Destroy<ibv_dereg_mr>>;
using CqPtr = std::unique_ptr<ibv_cq, Destroy<ibv_destroy_cq>>;
using QpPtr = std::unique_ptr<ibv_qp, Destroy<ibv_destroy_qp>>;
using ChannelPtr = std::unique_ptr<ibv_comp_channel, Destroy<ibv_destroy_comp_channel>>;
using MwPtr = std::unique_ptr<ibv_mw, Destroy<ibv_dealloc_mw>>;

inline constexpr int kAllAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                  IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
                                  IBV_ACCESS_MW_BIND;

// Pages that are unmapped at the end.
struct Mapping {
  explicit Mapping(size_t length, int rights = PROT_READ | PROT_WRITE)
      : bytes(length), at(mmap(nullptr, length, rights, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {}
  ~Mapping() { munmap(at, bytes); }
  uint8_t* data() const { return static_cast<uint8_t*>(at); }
  uint64_t address(size_t offset = 0) const { return reinterpret_cast<uint64_t>(at) + offset; }
  size_t bytes;
  void* at;
};

// The loopback device; null (and a failed expectation) if there is none.
ibv_device* loopback_device();
ContextPtr open_loopback();

ibv_qp_init_attr rc_attributes(ibv_cq* send_cq, ibv_cq* receive_cq);

// RESET to RTS, towards `peer` on the same device. Returns the first errno.
int to_init(ibv_qp* qp, int access = kAllAccess & ~IBV_ACCESS_MW_BIND);
int to_rtr(ibv_qp* qp, uint32_t peer_qpn);
int to_rts(ibv_qp* qp);
// The same for UC, from INIT on.
int uc_to_rts(ibv_qp* qp, uint32_t peer_qpn);

// Polls until there is a completion; fails the test after some seconds.
ibv_wc wait_for_completion(ibv_cq* cq);
// The number of completions within that time.
int completions_within_ms(ibv_cq* cq, int ms);

// Polls until `condition` holds; false if it does not in that time.
bool within_ms(int ms, const std::function<bool()>& condition);

// The next asynchronous event, not yet acknowledged; fails the test after some seconds.
ibv_async_event wait_for_async_event(ibv_context* context);
// `destroy` destroys the object of `event`. It must not return before the event is acknowledged.
void expect_destroy_waits_for_ack(ibv_async_event event, const std::function<void()>& destroy);

struct Side {
  PdPtr pd;
  ChannelPtr channel;
  CqPtr cq;  // sends
  CqPtr receive_cq;
  std::vector<uint8_t> memory;
  MrPtr mr;
  QpPtr qp;

  ibv_sge sge(size_t offset, uint32_t length) const {
    return {reinterpret_cast<uint64_t>(memory.data()) + offset, length, mr->lkey};
  }
  uint64_t address(size_t offset = 0) const {
    return reinterpret_cast<uint64_t>(memory.data()) + offset;
  }
  int receive(uint64_t wr_id, size_t offset, uint32_t length);
  // Posts a list of one.
  int send(ibv_send_wr& wr);
};

// An RDMA request from `from` into (or out of) `to`.
ibv_send_wr rdma(ibv_wr_opcode opcode, ibv_sge* sge, const Side& to, size_t offset);

class LoopbackTest : public ::testing::Test {
 protected:
  void SetUp() override;
  void make_side(Side& side, size_t bytes = size_t{1} << 20);
  void connect();
  // Replaces both queue pairs by new, connected ones.
  void reconnect();

  ContextPtr context_;
  Side a_, b_;
};

// A value that the enumeration does not have, as a C program could pass it.
template <typename Enum>
Enum no_such(int value) {
  Enum result;
  static_assert(sizeof result == sizeof value);
  std::memcpy(&result, &value, sizeof result);
  return result;
}

// The open descriptors with their targets.
std::set<std::string> open_descriptors();
size_t thread_count();

// Runs `body` in a forked child; its exit status.
int in_child(const std::function<int()>& body);

}  // namespace verbena::test

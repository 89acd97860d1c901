// The queue pair and the resources it needs, from the device to the memory.
#pragma once

#include <arpa/inet.h>
#include <endian.h>
#include <infiniband/verbs.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "errors.h"
#include "limits.h"
#include "options.h"
#include "peer.h"

namespace rc_check {

template <auto Destroy>
struct Destroyer {
  template <typename T>
  void operator()(T* object) const {
    Destroy(object);
  }
};
using Context = std::unique_ptr<ibv_context, Destroyer<ibv_close_device>>;
using Domain = std::unique_ptr<ibv_pd, Destroyer<ibv_dealloc_pd>>;
using Region = std::unique_ptr<ibv_mr, Destroyer<ibv_dereg_mr>>;
using Channel = std::unique_ptr<ibv_comp_channel, Destroyer<ibv_destroy_comp_channel>>;
using Completions = std::unique_ptr<ibv_cq, Destroyer<ibv_destroy_cq>>;
using Pair = std::unique_ptr<ibv_qp, Destroyer<ibv_destroy_qp>>;
using Window = std::unique_ptr<ibv_mw, Destroyer<ibv_dealloc_mw>>;

// The first message of each side to the other. All fields in network byte order.
struct Hello {
  uint32_t magic, qpn, psn, mtu, rkey, read_depth, features, iterations;
  uint64_t address, seed;
  uint8_t gid[16];
};
constexpr uint32_t kMagic = 0x72630002;  // changes whenever the checks change
constexpr uint32_t kAtomics = 1, kWindows = 2;

inline ibv_mtu mtu_code(unsigned bytes) {
  ibv_mtu code = IBV_MTU_256;
  while (code < IBV_MTU_4096 && (256U << code) <= bytes) code = static_cast<ibv_mtu>(code + 1);
  return code;
}
inline unsigned mtu_bytes(ibv_mtu code) { return 128U << code; }

inline bool is_zero(const ibv_gid& gid) {
  return std::all_of(std::begin(gid.raw), std::end(gid.raw), [](uint8_t b) { return b == 0; });
}
inline bool is_ipv4(const ibv_gid& gid) {
  static const uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return memcmp(gid.raw, kMapped, sizeof kMapped) == 0;
}
inline std::string name_of(const ibv_gid& gid) {
  char text[INET6_ADDRSTRLEN];
  if (is_ipv4(gid)) return inet_ntop(AF_INET, gid.raw + 12, text, sizeof text);
  return inet_ntop(AF_INET6, gid.raw, text, sizeof text);
}

class Devices {
 public:
  Devices() : list_(ibv_get_device_list(&count_)) {
    if (list_ == nullptr) throw broken_errno("cannot list RDMA devices");
  }
  Devices(const Devices&) = delete;
  Devices& operator=(const Devices&) = delete;
  ~Devices() { ibv_free_device_list(list_); }
  ibv_device** begin() const { return list_; }
  ibv_device** end() const { return list_ + count_; }

  Context open(const std::string& name) const {
    for (ibv_device* device : *this) {
      if (!name.empty() && name != ibv_get_device_name(device)) continue;
      Context context(ibv_open_device(device));
      if (!context) throw broken_errno(words("cannot open %s", ibv_get_device_name(device)));
      return context;
    }
    throw Broken(name.empty() ? "there is no RDMA device" : "there is no RDMA device " + name);
  }

 private:
  int count_ = 0;
  ibv_device** list_;
};

constexpr uint8_t kPort = 1;

inline void each_gid(ibv_context* context, const std::function<void(int, const ibv_gid&)>& handle) {
  ibv_port_attr port{};
  if (ibv_query_port(context, kPort, &port) != 0) return;
  for (int i = 0; i < port.gid_tbl_len; ++i) {
    ibv_gid gid{};
    if (ibv_query_gid(context, kPort, i, &gid) == 0 && !is_zero(gid)) handle(i, gid);
  }
}

inline void list_gids() {
  const Devices devices;
  for (ibv_device* device : devices) {
    const char* name = ibv_get_device_name(device);
    const Context context = devices.open(name);
    each_gid(context.get(), [&](int index, const ibv_gid& gid) {
      printf("%s %d %s\n", name, index, name_of(gid).c_str());
    });
  }
}

// Device, memory and one connected queue pair.
class Link {
 public:
  Link(const Options& options, size_t memory_size) : events_(options.events) {
    context_ = Devices().open(options.device);
    if (ibv_query_device(context_.get(), &device_) != 0)
      throw broken_errno("cannot query the device");
    if (ibv_query_port(context_.get(), kPort, &port_) != 0)
      throw broken_errno("cannot query the port");
    if (port_.state != IBV_PORT_ACTIVE) throw Broken("the device's port is not active");
    choose_gid(options.gid_index);
    mtu_ = options.mtu == 0 ? port_.active_mtu : mtu_code(options.mtu);
    if (mtu_ > port_.active_mtu) {
      throw Broken(words("the port's MTU is %u: cannot use %u", mtu_bytes(port_.active_mtu),
                         mtu_bytes(mtu_)));
    }
    domain_.reset(ibv_alloc_pd(context_.get()));
    if (!domain_) throw broken_errno("cannot allocate a protection domain");
    memory_.resize(memory_size);
    register_memory();
    create_queues();
  }

  std::vector<uint8_t>& memory() { return memory_; }
  uint32_t lkey() const { return region_->lkey; }
  ibv_qp* qp() const { return pair_.get(); }
  ibv_mr* region() const { return region_.get(); }
  ibv_pd* domain() const { return domain_.get(); }
  bool is_rxe() const { return strncmp(ibv_get_device_name(context_->device), "rxe", 3) == 0; }
  uint32_t max_inline() const { return max_inline_; }
  unsigned max_sges() const {
    return std::min<unsigned>(kMaxSges, static_cast<unsigned>(device_.max_sge));
  }

  std::string description() const {
    return words("%s, GID %d (%s)", ibv_get_device_name(context_->device), gid_index_,
                 name_of(gid_).c_str());
  }

  Hello hello(const Options& options) const {
    Hello h{};
    h.magic = htonl(kMagic);
    h.qpn = htonl(pair_->qp_num);
    h.psn = htonl(psn());
    h.mtu = htonl(mtu_);
    h.rkey = htonl(region_->rkey);
    h.read_depth = htonl(static_cast<uint32_t>(std::clamp(device_.max_qp_rd_atom, 1, 255)));
    h.features = htonl((device_.atomic_cap != IBV_ATOMIC_NONE ? kAtomics : 0) |
                       (has_windows() ? kWindows : 0));
    h.iterations = htonl(options.iterations);
    h.address = htobe64(reinterpret_cast<uintptr_t>(memory_.data()));
    h.seed = htobe64(options.seed);
    memcpy(h.gid, gid_.raw, sizeof h.gid);
    return h;
  }

  void connect(const Hello& peer) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = std::min(mtu_, static_cast<ibv_mtu>(ntohl(peer.mtu)));
    attr.dest_qp_num = ntohl(peer.qpn);
    attr.rq_psn = ntohl(peer.psn);
    attr.max_dest_rd_atomic = static_cast<uint8_t>(
        std::min<unsigned>(kReadsInFlight, static_cast<unsigned>(device_.max_qp_rd_atom)));
    attr.min_rnr_timer = 6;  // 0.16 ms
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = kPort;
    attr.ah_attr.grh.hop_limit = 64;
    attr.ah_attr.grh.sgid_index = static_cast<uint8_t>(gid_index_);
    memcpy(attr.ah_attr.grh.dgid.raw, peer.gid, sizeof peer.gid);
    modify(attr,
           IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
               IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
           "ready to receive");
    mtu_ = attr.path_mtu;

    attr = {};
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = kTimeout;
    attr.retry_cnt = 7;
    attr.rnr_retry = 7;  // unlimited
    attr.sq_psn = psn();
    attr.max_rd_atomic = static_cast<uint8_t>(
        std::min({kReadsInFlight, static_cast<unsigned>(device_.max_qp_init_rd_atom),
                  ntohl(peer.read_depth)}));
    modify(attr,
           IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
               IBV_QP_MAX_QP_RD_ATOMIC,
           "ready to send");
  }

  unsigned mtu() const { return mtu_bytes(mtu_); }

  // Awaits `count` completions of sends. Stops at one that failed, and at the timeout.
  std::vector<ibv_wc> await_sends(size_t count) { return await(send_cq_.get(), count, nullptr); }

  // Awaits `count` completions of receives. Also ends soon after the initiator has reported that
  // all of its requests completed.
  std::vector<ibv_wc> await_receives(size_t count, const Peer& initiator) {
    return await(receive_cq_.get(), count, &initiator);
  }

 private:
  std::vector<ibv_wc> await(ibv_cq* cq, size_t count, const Peer* initiator) {
    std::vector<ibv_wc> done;
    auto deadline = Clock::now() + kCompletionTimeout;
    while (done.size() < count && Clock::now() < deadline) {
      if (poll_into(cq, count - done.size(), done)) {
        if (done.back().status != IBV_WC_SUCCESS) break;
        continue;
      }
      if (initiator != nullptr && initiator->has_message()) {
        initiator = nullptr;
        deadline = std::min(deadline, Clock::now() + kReceiveTimeout);
      }
      if (events_) sleep_until_event(cq);
    }
    return done;
  }

  // Low bits of the QP number vary between runs; the start near the wrap makes every run cross it.
  uint32_t psn() const { return 0xffffc0 - (pair_->qp_num & 0x3f); }

  bool has_windows() const {
    constexpr unsigned kWanted = IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_MGT_EXTENSIONS;
    constexpr unsigned kType2 = IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
    return (device_.device_cap_flags & kWanted) == kWanted &&
           (device_.device_cap_flags & kType2) != 0;
  }

  void choose_gid(int wanted) {
    each_gid(context_.get(), [&](int index, const ibv_gid& gid) {
      const bool better =
          wanted >= 0 ? index == wanted : gid_index_ < 0 || (is_ipv4(gid) && !is_ipv4(gid_));
      if (better) {
        gid_index_ = index;
        gid_ = gid;
      }
    });
    if (gid_index_ < 0)
      throw Broken(wanted < 0 ? "the device has no GID"
                              : words("the device has no GID %d", wanted));
  }

  void register_memory() {
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    if (device_.atomic_cap != IBV_ATOMIC_NONE) access |= IBV_ACCESS_REMOTE_ATOMIC;
    if (has_windows()) access |= IBV_ACCESS_MW_BIND;
    region_.reset(ibv_reg_mr(domain_.get(), memory_.data(), memory_.size(), access));
    if (!region_) throw broken_errno(words("cannot register %zu bytes", memory_.size()));
  }

  void create_queues() {
    if (events_) {
      channel_.reset(ibv_create_comp_channel(context_.get()));
      if (!channel_) throw broken_errno("cannot create a completion channel");
    }
    for (Completions* cq : {&send_cq_, &receive_cq_}) {
      cq->reset(ibv_create_cq(context_.get(), 4 * kDepth, nullptr, channel_.get(), 0));
      if (!*cq) throw broken_errno("cannot create a completion queue");
      if (events_ && ibv_req_notify_cq(cq->get(), 0) != 0)
        throw broken_errno("cannot ask for completion events");
    }
    ibv_qp_init_attr init{};
    init.send_cq = send_cq_.get();
    init.recv_cq = receive_cq_.get();
    init.qp_type = IBV_QPT_RC;
    init.cap = {2 * kDepth, 2 * kDepth, max_sges(), max_sges(), kInline};
    pair_.reset(ibv_create_qp(domain_.get(), &init));
    if (!pair_) throw broken_errno("cannot create a queue pair");
    max_inline_ = init.cap.max_inline_data;

    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = kPort;
    attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    if (device_.atomic_cap != IBV_ATOMIC_NONE) attr.qp_access_flags |= IBV_ACCESS_REMOTE_ATOMIC;
    modify(attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
           "initialised");
  }

  void modify(ibv_qp_attr attr, int mask, const char* state) {
    const int error = ibv_modify_qp(pair_.get(), &attr, mask);
    if (error != 0) throw broken_errno(words("cannot make the queue pair %s", state), error);
  }

  static bool poll_into(ibv_cq* cq, size_t room, std::vector<ibv_wc>& done) {
    std::array<ibv_wc, 4> batch{};
    const int n = ibv_poll_cq(cq, static_cast<int>(std::min(room, batch.size())), batch.data());
    if (n < 0) throw Broken("cannot poll a completion queue");
    for (int i = 0; i < n; ++i) {
      done.push_back(batch[static_cast<size_t>(i)]);
      if (batch[static_cast<size_t>(i)].status != IBV_WC_SUCCESS) break;
    }
    return n > 0;
  }

  // Arms the CQ; the caller polls once more before it sleeps. Sleeps in short intervals, so that
  // the timeout is observed.
  void sleep_until_event(ibv_cq* cq) {
    if (!std::exchange(armed_[cq == send_cq_.get()], true)) {
      if (ibv_req_notify_cq(cq, 0) != 0) throw broken_errno("cannot ask for completion events");
      return;
    }
    pollfd p{channel_->fd, POLLIN, 0};
    if (poll(&p, 1, 500) <= 0) return;
    ibv_cq* which = nullptr;
    void* unused = nullptr;
    if (ibv_get_cq_event(channel_.get(), &which, &unused) != 0)
      throw broken_errno("cannot get a completion event");
    ibv_ack_cq_events(which, 1);
    armed_[which == send_cq_.get()] = false;
  }

  const bool events_;
  Context context_;
  ibv_device_attr device_{};
  ibv_port_attr port_{};
  int gid_index_ = -1;
  ibv_gid gid_{};
  ibv_mtu mtu_ = IBV_MTU_1024;
  std::vector<uint8_t> memory_;
  Domain domain_;
  Region region_;
  Channel channel_;
  Completions send_cq_, receive_cq_;
  Pair pair_;
  uint32_t max_inline_ = 0;
  bool armed_[2] = {true, true};  // CQ of receives, of sends
};

}  // namespace rc_check

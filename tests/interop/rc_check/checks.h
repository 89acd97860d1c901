// The checks, each run in both directions.
#pragma once

#include <endian.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "errors.h"
#include "limits.h"
#include "link.h"
#include "options.h"
#include "patterns.h"
#include "peer.h"

namespace rc_check {

// Send requests that are posted with one call. They are numbered from 0 and signaled.
class Requests {
 public:
  ibv_send_wr& add(ibv_wr_opcode opcode, std::vector<ibv_sge> sges) {
    const std::vector<ibv_sge>& list = sges_.emplace_back(std::move(sges));
    ibv_send_wr& wr = requests_.emplace_back();
    if (requests_.size() > 1) requests_[requests_.size() - 2].next = &wr;
    wr.wr_id = requests_.size() - 1;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.sg_list = const_cast<ibv_sge*>(list.data());
    wr.num_sge = static_cast<int>(list.size());
    return wr;
  }

  void post(ibv_qp* qp) {
    ibv_send_wr* bad = nullptr;
    const int error = ibv_post_send(qp, &requests_.front(), &bad);
    if (error != 0) throw broken_errno("cannot post a send", error);
  }

 private:
  std::deque<ibv_send_wr> requests_;  // a deque does not move its elements
  std::deque<std::vector<ibv_sge>> sges_;
};

struct Operation {
  const char* name;
  ibv_wr_opcode opcode;
  bool takes_receive;
  bool immediate;
  ibv_wc_opcode at_initiator, at_target;
};
constexpr Operation kSend{"SEND", IBV_WR_SEND, true, false, IBV_WC_SEND, IBV_WC_RECV};
constexpr Operation kSendImm{"SEND with immediate", IBV_WR_SEND_WITH_IMM, true, true,
                             IBV_WC_SEND,           IBV_WC_RECV};
constexpr Operation kWrite{"WRITE", IBV_WR_RDMA_WRITE, false,
                           false,   IBV_WC_RDMA_WRITE, IBV_WC_RECV};
constexpr Operation kWriteImm{
    .name = "WRITE with immediate",
    .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
    .takes_receive = true,
    .immediate = true,
    .at_initiator = IBV_WC_RDMA_WRITE,
    .at_target = IBV_WC_RECV_RDMA_WITH_IMM,
};
constexpr Operation kRead{"READ", IBV_WR_RDMA_READ, false, false, IBV_WC_RDMA_READ, IBV_WC_RECV};

struct Variation {
  bool inlined = false;
  bool late_receives = false;  // receives are posted only after the SENDs: receiver not ready
};

// Strings that fit one message of the TCP connection.
struct Verdict {
  char text[384];
};

class Checks {
 public:
  // The client's options select the checks.
  Checks(Link& link, Peer& peer, const Hello& mine, const Hello& other, const Options& options)
      : link_(link),
        peer_(peer),
        remote_address_(be64toh(other.address)),
        remote_rkey_(ntohl(other.rkey)),
        features_(ntohl(mine.features & other.features)),
        client_(!options.server.empty()),
        lossy_(options.lossy),
        iterations_(ntohl((client_ ? mine : other).iterations)),
        seed_(be64toh((client_ ? mine : other).seed)) {}

  // Returns whether all checks passed.
  bool run() {
    try {
      run_all();
    } catch (const Broken&) {  // its check has reported it
    }
    printf("rc_check: %u ok, %u failed, %u skipped\n", ok_, failed_, skipped_);
    return failed_ == 0;
  }

 private:
  void run_all() {
    for (const bool client_initiates : {true, false}) {
      initiating_ = client_ == client_initiates;
      for (const Operation& op : {kSend, kSendImm, kWrite, kWriteImm, kRead}) {
        check(op.name, [&] { all_sizes(op); });
        check(words("%s, several SGEs", op.name), [&] { several_sges(op); });
      }
      check("SEND inline", [&] { inlined(kSend); });
      check("WRITE inline", [&] { inlined(kWrite); });
      check("SEND, receiver not ready", [&] {
        transfer(kSend, {4097, kDepth, 1}, 1, {.late_receives = true});
      });
      check("fetch and add", [&] { fetch_and_add(); });
      check("compare and swap", [&] { compare_and_swap(); });
      check("SEND with invalidate", [&] { send_with_invalidate(); });
    }
    initiating_ = client_;
    check("WRITE, wrong key", [&] { write_with_wrong_key(); });  // last: it ends the connection
  }

  uint8_t* memory() { return link_.memory().data(); }
  uint64_t address() { return reinterpret_cast<uintptr_t>(memory()); }

  // Runs one check as often as requested and prints its line.
  void check(const std::string& name, const std::function<void()>& body) {
    at_step(name.c_str());
    messages_ = bytes_ = 0;
    problem_.clear();
    skip_.clear();
    const auto began = Clock::now();
    try {
      for (uint32_t i = 0; i < iterations_ && problem_.empty() && skip_.empty(); ++i) body();
    } catch (const Broken& e) {
      if (problem_.empty()) problem_ = e.what();
      report(name, Clock::now() - began);
      throw;
    }
    report(name, Clock::now() - began);
  }

  void report(const std::string& name, Clock::duration took) {
    const char* direction = initiating_ == client_ ? "client to server" : "server to client";
    const int64_t ms = std::chrono::duration_cast<std::chrono::milliseconds>(took).count();
    if (!problem_.empty()) {
      ++failed_;
      printf("FAILED  %s  %s: %s\n", direction, name.c_str(), problem_.c_str());
    } else if (!skip_.empty()) {
      ++skipped_;
      printf("skipped %s  %s: %s\n", direction, name.c_str(), skip_.c_str());
    } else {
      ++ok_;
      printf("ok      %s  %s (%" PRIu64 " messages, %" PRIu64 " bytes, %" PRId64 " ms)\n",
             direction, name.c_str(), messages_, bytes_, ms);
    }
    fflush(stdout);
  }

  // Exchanges the error that each side found; returns ours, else theirs.
  std::string agree(const std::string& mine) {
    Verdict verdict{};
    snprintf(verdict.text, sizeof verdict.text, "%s", mine.c_str());
    Verdict theirs = peer_.exchange(verdict);
    theirs.text[sizeof theirs.text - 1] = '\0';
    if (!mine.empty()) return mine;
    return theirs.text[0] == '\0' ? std::string()
                                  : std::string("the other side reports: ") + theirs.text;
  }
  void agree_or_end(const std::string& mine) {
    const std::string problem = agree(mine);
    if (!problem.empty()) throw Broken(problem);
  }
  void agree_data(const std::string& what, const std::string& mine) {
    const std::string problem = agree(mine.empty() ? mine : what + ": " + mine);
    if (problem_.empty()) problem_ = problem;
  }

  void all_sizes(const Operation& op) {
    for (const size_t size : kSizes)
      transfer(op, {size, size == kMaxSize ? kDepthOfLargest : kDepth, 1}, 1, {});
  }
  void several_sges(const Operation& op) {
    for (const size_t size : {size_t{63}, size_t{4097}, size_t{65536}}) {
      transfer(op, {size, kDepth, std::min(3U, link_.max_sges())}, std::min(4U, link_.max_sges()),
               {});
    }
  }
  void inlined(const Operation& op) {
    const uint32_t limit = std::min({link_.max_inline(), kInline});
    // both sides must do the same: the initiator's limit applies
    struct Limit {
      uint32_t value;
    } theirs = peer_.exchange(Limit{htonl(limit)});
    const uint32_t size = initiating_ ? limit : ntohl(theirs.value);
    if (size == 0) {
      skip_ = "the device takes no inline data";
      return;
    }
    transfer(op, {1, kDepth, 1}, 1, {.inlined = true});
    transfer(op, {size, kDepth, 1}, 1, {.inlined = true});
  }

  std::vector<ibv_sge> sges_of(const Layout& layout, unsigned slot) {
    std::vector<ibv_sge> list;
    for (const auto& segment : layout.of(slot)) {
      list.push_back({address() + segment.at, static_cast<uint32_t>(segment.size), link_.lkey()});
    }
    return list;
  }

  void post_receives(const Layout& layout) {
    for (unsigned slot = 0; slot < layout.count; ++slot) {
      std::vector<ibv_sge> sges = sges_of(layout, slot);
      ibv_recv_wr wr{};
      wr.wr_id = slot;
      wr.sg_list = sges.data();
      wr.num_sge = static_cast<int>(sges.size());
      ibv_recv_wr* bad = nullptr;
      const int error = ibv_post_recv(link_.qp(), &wr, &bad);
      if (error != 0) throw broken_errno("cannot post a receive", error);
    }
  }

  // One transfer of layout.count messages. `layout` is the initiator's; the target of a SEND
  // receives into `receive_segments` segments, the target of the others has each message in one
  // segment.
  void transfer(const Operation& op, Layout layout, unsigned receive_segments,
                const Variation& how) {
    if (!initiating_)
      layout.segments =
          op.opcode == IBV_WR_SEND || op.opcode == IBV_WR_SEND_WITH_IMM ? receive_segments : 1;
    const uint64_t key = mixed(seed_ + ++serial_);
    const bool has_data = initiating_ != (op.opcode == IBV_WR_RDMA_READ);
    const std::string what = words("%zu bytes", layout.size);
    paint(memory(), layout, key, has_data);

    if (!initiating_ && op.takes_receive && !how.late_receives) post_receives(layout);
    agree_or_end({});
    std::string problem;
    if (initiating_) {
      problem = initiate(op, layout, how);
    } else if (op.takes_receive) {
      if (how.late_receives) {
        std::this_thread::sleep_for(20ms);  // the first SENDs find no receive, on any device
        post_receives(layout);
      }
      problem = receive(op, layout);
    }
    agree_or_end(problem.empty() ? problem : what + ": " + problem);
    agree_data(what, compare(memory(), layout, key));
    messages_ += layout.count;
    bytes_ += layout.size * layout.count;
  }

  uint32_t immediate(unsigned slot) const {
    return htonl(static_cast<uint32_t>(serial_ << 8 | slot));
  }

  std::string initiate(const Operation& op, const Layout& layout, const Variation& how) {
    // With several segments only the last is signaled: completions of the others are implied.
    const bool all_signaled = layout.segments == 1;
    std::vector<uint8_t> scratch;
    if (how.inlined) scratch = link_.memory();  // inline data need not be registered
    Requests requests;
    for (unsigned slot = 0; slot < layout.count; ++slot) {
      std::vector<ibv_sge> sges = sges_of(layout, slot);
      if (how.inlined) {
        sges[0].addr = reinterpret_cast<uintptr_t>(scratch.data() + layout.of(slot)[0].at);
        sges[0].lkey = 0;
      }
      ibv_send_wr& wr = requests.add(op.opcode, std::move(sges));
      if (!all_signaled && slot + 1 < layout.count) wr.send_flags = 0;
      if (how.inlined) wr.send_flags |= IBV_SEND_INLINE;
      if (op.immediate) wr.imm_data = immediate(slot);
      wr.wr.rdma.remote_addr = remote_address_ + layout.start(slot);
      wr.wr.rdma.rkey = remote_rkey_;
    }
    requests.post(link_.qp());
    if (how.inlined)
      std::fill(scratch.begin(), scratch.end(), uint8_t{0});  // may be reused at once
    const unsigned first = all_signaled ? 0 : layout.count - 1;
    return await_sends(first, layout.count - first, op.at_initiator);
  }

  std::string receive(const Operation& op, const Layout& layout) {
    const auto done = link_.await_receives(layout.count, peer_);
    for (size_t i = 0; i < done.size(); ++i) {
      const ibv_wc& wc = done[i];
      std::string problem = judge(wc, i, op.at_target);
      if (!problem.empty()) return problem;
      if (wc.byte_len != layout.size) return words("receive %zu: byte_len is %u", i, wc.byte_len);
      if (((wc.wc_flags & IBV_WC_WITH_IMM) != 0) != op.immediate) {
        return words("receive %zu: wc_flags is 0x%x", i, static_cast<unsigned>(wc.wc_flags));
      }
      if (op.immediate && wc.imm_data != immediate(static_cast<unsigned>(i))) {
        return words("receive %zu: immediate is 0x%08x instead of 0x%08x", i, ntohl(wc.imm_data),
                     ntohl(immediate(static_cast<unsigned>(i))));
      }
    }
    return missing(done.size(), layout.count);
  }

  std::string judge(const ibv_wc& wc, uint64_t id, ibv_wc_opcode opcode) const {
    if (wc.status != IBV_WC_SUCCESS) {
      return words("request %" PRIu64 " ended with \"%s\" (vendor_err 0x%x)", wc.wr_id,
                   ibv_wc_status_str(wc.status), wc.vendor_err);
    }
    if (wc.wr_id != id) {
      return words("request %" PRIu64 " completed where %" PRIu64 " was due", wc.wr_id, id);
    }
    if (wc.opcode != opcode)
      return words("completion has opcode %d instead of %d", wc.opcode, opcode);
    if (wc.qp_num != link_.qp()->qp_num) return words("completion has qp_num 0x%x", wc.qp_num);
    return {};
  }

  // Awaits `count` completions of sends, from request `first` on.
  std::string await_sends(uint64_t first, size_t count, ibv_wc_opcode opcode) {
    const auto done = link_.await_sends(count);
    for (size_t i = 0; i < done.size(); ++i) {
      std::string problem = judge(done[i], first + i, opcode);
      if (!problem.empty()) return problem;
    }
    return missing(done.size(), count);
  }

  static std::string missing(size_t got, size_t expected) {
    if (got == expected) return {};
    return words("%zu of %zu completions within the time limit", got, expected);
  }

  // ---- atomics: all on one word, so each original value shows that they were executed once, in
  // order

  struct Atomic {
    uint64_t compare_add, swap;
  };

  void atomics(ibv_wr_opcode opcode, const std::vector<Atomic>& operations, uint64_t start) {
    const bool adds = opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
    if ((features_ & kAtomics) == 0) {
      skip_ = "a device has no atomic operations";
      return;
    }
    // the expected original values, and the expected final value
    std::vector<uint64_t> originals;
    uint64_t value = start;
    for (const Atomic& a : operations) {
      originals.push_back(value);
      if (adds) {
        value += a.compare_add;
      } else if (value == a.compare_add) {
        value = a.swap;
      }
    }
    const size_t at = 128;  // the word; its neighbours must not change
    auto words_here = reinterpret_cast<uint64_t*>(memory());
    std::fill_n(words_here, 64, 0x5a5a5a5a5a5a5a5aULL);
    if (!initiating_) memcpy(memory() + at, &start, 8);
    agree_or_end({});

    std::string problem;
    if (initiating_) {
      Requests requests;
      for (size_t i = 0; i < operations.size(); ++i) {
        ibv_send_wr& wr = requests.add(opcode, {{address() + at + 8 * i, 8, link_.lkey()}});
        wr.wr.atomic.remote_addr = remote_address_ + at;
        wr.wr.atomic.rkey = remote_rkey_;
        wr.wr.atomic.compare_add = operations[i].compare_add;
        wr.wr.atomic.swap = operations[i].swap;
      }
      requests.post(link_.qp());
      problem = await_sends(0, operations.size(), adds ? IBV_WC_FETCH_ADD : IBV_WC_COMP_SWAP);
    }
    agree_or_end(problem);

    std::vector<uint64_t> wanted(64, 0x5a5a5a5a5a5a5a5aULL);
    if (initiating_) {
      std::copy(originals.begin(), originals.end(), wanted.begin() + at / 8);
    } else {
      wanted[at / 8] = value;
    }
    for (size_t i = 0; i < wanted.size() && problem.empty(); ++i) {
      if (words_here[i] == wanted[i]) continue;
      problem =
          words("word %zd%s is 0x%" PRIx64 " instead of 0x%" PRIx64,
                static_cast<ssize_t>(i) - static_cast<ssize_t>(at / 8),
                initiating_ ? " of the originals" : " from the target", words_here[i], wanted[i]);
    }
    agree_data("after the atomics", problem);
    messages_ += operations.size();
    bytes_ += 8 * operations.size();
  }

  void fetch_and_add() {
    const uint64_t key = mixed(seed_ + ++serial_);
    std::vector<Atomic> list;
    for (unsigned i = 0; i < kDepth; ++i) list.push_back({mixed(key + i), 0});
    atomics(IBV_WR_ATOMIC_FETCH_AND_ADD, list, mixed(~key));
  }

  void compare_and_swap() {
    const uint64_t key = mixed(seed_ + ++serial_);
    std::vector<Atomic> list;
    uint64_t value = mixed(~key);
    for (unsigned i = 0; i < kDepth; ++i) {
      const uint64_t next = mixed(key + i);
      const bool match = i % 3 != 2;  // every third compares with another value and must not swap
      list.push_back({match ? value : value + 1, next});
      if (match) value = next;
    }
    atomics(IBV_WR_ATOMIC_CMP_AND_SWP, list, mixed(~key));
  }

  // ---- a memory window of the target: written through, then invalidated by the initiator's SEND

  void send_with_invalidate() {
    if ((features_ & kWindows) == 0) {
      skip_ = "a device has no memory windows of type 2";
      return;
    }
    struct Key {
      uint32_t value;
    };
    const Layout layout{4097, 1, 1};
    const uint64_t key = mixed(seed_ + ++serial_);
    paint(memory(), layout, key, initiating_);
    Window window;
    std::string problem;
    if (!initiating_) problem = open_window(layout, window);
    agree_or_end(problem);
    const Key theirs = peer_.exchange(Key{htonl(window ? window->rkey : 0)});

    if (initiating_) {
      Requests requests;
      ibv_send_wr& write = requests.add(IBV_WR_RDMA_WRITE, sges_of(layout, 0));
      write.send_flags = 0;
      write.wr.rdma.remote_addr = remote_address_ + layout.start(0);
      write.wr.rdma.rkey = ntohl(theirs.value);
      requests.add(IBV_WR_SEND_WITH_INV, {}).invalidate_rkey = ntohl(theirs.value);
      requests.post(link_.qp());
      problem = await_sends(1, 1, IBV_WC_SEND);
    } else {
      const auto done = link_.await_receives(1, peer_);
      problem = missing(done.size(), 1);
      if (problem.empty()) problem = judge(done[0], 0, IBV_WC_RECV);
      // rxe returns the flag of the kernel, which has another value in user space
      const unsigned flag = link_.is_rxe() ? IBV_WC_IP_CSUM_OK | IBV_WC_WITH_INV : IBV_WC_WITH_INV;
      if (problem.empty() &&
          ((done[0].wc_flags & flag) == 0 || done[0].invalidated_rkey != window->rkey)) {
        problem =
            words("the receive has wc_flags 0x%x, invalidated_rkey 0x%x; the window's is 0x%x",
                  static_cast<unsigned>(done[0].wc_flags), done[0].invalidated_rkey, window->rkey);
      }
    }
    agree_or_end(problem);
    agree_data("through a window", compare(memory(), layout, key));
    messages_ += 2;
    bytes_ += layout.size;
  }

  // At the target: binds a window over its memory and posts the receive whose SEND invalidates it.
  std::string open_window(const Layout& layout, Window& window) {
    window.reset(ibv_alloc_mw(link_.domain(), IBV_MW_TYPE_2));
    if (!window) return words("cannot allocate a memory window: %s", strerror(errno));
    Requests requests;
    ibv_send_wr& bind = requests.add(IBV_WR_BIND_MW, {});
    bind.bind_mw.mw = window.get();
    bind.bind_mw.rkey = ibv_inc_rkey(window->rkey);
    bind.bind_mw.bind_info = {link_.region(), address(), layout.total(), IBV_ACCESS_REMOTE_WRITE};
    requests.post(link_.qp());
    const std::string problem = await_sends(0, 1, IBV_WC_BIND_MW);
    if (!problem.empty()) return "binding a window: " + problem;
    window->rkey = bind.bind_mw.rkey;
    post_receives({0, 1, 1});
    return {};
  }

  // ---- rejected: the target's memory must not change, and the initiator must get the error

  void write_with_wrong_key() {
    const Layout layout{4097, 2, 1};
    const uint64_t key = mixed(seed_ + ++serial_);
    paint(memory(), layout, key, true);
    agree_or_end({});
    std::string problem;
    if (initiating_) {
      Requests requests;
      for (unsigned i = 0; i < 2; ++i) {
        // a different message, which would be visible if it were written
        ibv_send_wr& wr = requests.add(IBV_WR_RDMA_WRITE, sges_of(layout, 1 - i));
        wr.wr.rdma.remote_addr = remote_address_ + layout.start(i);
        wr.wr.rdma.rkey = remote_rkey_ ^ 0x5500;
      }
      requests.post(link_.qp());
      std::array<ibv_wc_status, 2> wanted{IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR};
      for (unsigned i = 0; i < 2 && problem.empty(); ++i) {
        const auto done = link_.await_sends(1);
        if (done.empty()) {
          problem = missing(i, 2);
          break;
        }
        // The rejection puts the target into the error state, where it does not respond: the NAK is
        // never sent again.
        if (lossy_ && i == 0 && done[0].status == IBV_WC_RETRY_EXC_ERR) wanted[0] = done[0].status;
        if (done[0].wr_id != i || done[0].status != wanted[i]) {
          problem = words("request %" PRIu64 " ended with \"%s\" instead of \"%s\"", done[0].wr_id,
                          ibv_wc_status_str(done[0].status), ibv_wc_status_str(wanted[i]));
        }
      }
    }
    agree_or_end(problem);
    agree_data("refused write", compare(memory(), layout, key));
    messages_ += 2;
  }

  Link& link_;
  Peer& peer_;
  const uint64_t remote_address_;
  const uint32_t remote_rkey_;
  const uint32_t features_;  // that both devices support
  const bool client_;
  const bool lossy_;
  const uint32_t iterations_;
  const uint64_t seed_;
  bool initiating_ = false;
  uint64_t serial_ = 0;  // of transfers; the same on both sides
  std::string problem_, skip_;
  uint64_t messages_ = 0, bytes_ = 0;
  unsigned ok_ = 0, failed_ = 0, skipped_ = 0;
};

}  // namespace rc_check

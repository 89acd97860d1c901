// WRITEs and READs to another process of this host, which sleeps, polls, is stopped, deregisters
// its memory or is killed meanwhile. Two processes, a parent that posts and a child that is its
// target.
//   g++ -std=c++20 -I REPOSITORY one_sided.cc -libverbs -o one_sided && one_sided DEVICE CASE
// CASE: sleeping, polling (then stopped); order, deregistered, killed, spinning, denied.
#include <infiniband/verbs.h>
#include <linux/capability.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tests/programs/two_ends.h"

namespace {

namespace programs = verbena::programs;

constexpr size_t kBytes = size_t{64} << 20;

using programs::End;
using programs::must;
using programs::seconds_now;

void fill(uint8_t* at, size_t bytes, uint32_t seed) {
  for (size_t i = 0; i < bytes; ++i) at[i] = static_cast<uint8_t>(seed + i * 31 + i / 251);
}

constexpr size_t kSizes[] = {1,
                             2,
                             3,
                             7,
                             8,
                             9,
                             64,
                             4095,
                             4096,
                             65535,
                             65536,
                             65537,
                             size_t{1} << 20,
                             (size_t{3} << 20) + 5,
                             kBytes / 2};

void stop(pid_t child) {
  must(kill(child, SIGSTOP) == 0 && waitpid(child, nullptr, WUNTRACED) == child, "stop");
}

// The upper half of our memory receives the data read back.
void one_at_a_time(End& e, uint32_t seed) {
  for (const size_t bytes : kSizes) {
    fill(e.memory.data(), bytes, ++seed);
    e.post(IBV_WR_RDMA_WRITE, 1, 0, 7, static_cast<uint32_t>(bytes));
    e.complete(1, "a WRITE to a stopped process");
    e.post(IBV_WR_RDMA_READ, 2, kBytes / 2, 7, static_cast<uint32_t>(bytes));
    e.complete(2, "a READ from a stopped process");
    must(std::memcmp(e.memory.data(), e.memory.data() + kBytes / 2, bytes) == 0,
         "the data read back");
  }
}

// WRITEs and READs alternate, each READ reads what the WRITE before it wrote; all are posted before
// the first completion is polled.
void deep_queue(End& e, uint32_t seed, size_t bytes, uint32_t pairs) {
  fill(e.memory.data(), bytes * pairs, seed);
  std::memset(e.memory.data() + kBytes / 2, 0, bytes * pairs);
  for (uint32_t i = 0; i < pairs; ++i) {
    e.post(IBV_WR_RDMA_WRITE, 2 * i, i * bytes, i * bytes, static_cast<uint32_t>(bytes));
    e.post(IBV_WR_RDMA_READ, 2 * i + 1, kBytes / 2 + i * bytes, i * bytes,
           static_cast<uint32_t>(bytes));
  }
  for (uint32_t i = 0; i < 2 * pairs; ++i) e.complete(i, "a completion, in order");
  must(std::memcmp(e.memory.data(), e.memory.data() + kBytes / 2, bytes * pairs) == 0,
       "the data read back");
}

// A ping-pong of 1000 SENDs in each direction.
void ping(End& e) {
  for (uint32_t i = 0; i < 1000; ++i) {
    if (i > 0) e.receive(0, 64);
    e.post(IBV_WR_SEND, 1, 0, 0, 64);
    for (int events = 0; events < 2; ++events) {
      ibv_wc wc{};
      must(e.poll(wc, 20) && wc.status == IBV_WC_SUCCESS, "SENDs afterwards");
    }
  }
}
void pong(End& e) {
  for (uint32_t i = 0; i < 1000; ++i) {
    for (int events = 0; events < 2;) {
      ibv_wc wc{};
      must(e.poll(wc, 20) && wc.status == IBV_WC_SUCCESS, "SENDs afterwards");
      if (wc.opcode == IBV_WC_RECV) {
        if (i < 999) e.receive(0, 64);
        e.post(IBV_WR_SEND, 1, 0, 0, 64);
      }
      ++events;
    }
  }
}

// Whether a peer's thread sleeps yet is not visible from outside. The assertions hold either way.
void let_peer_sleep() { usleep(50'000); }

void stopped_parent(End& e, pid_t child) {
  e.connect(14, 7);
  let_peer_sleep();
  stop(child);
  one_at_a_time(e, 10);
  deep_queue(e, 20, 64, 100);
  deep_queue(e, 30, 65536, 100);
  deep_queue(e, 40, size_t{4} << 20, 8);
  one_at_a_time(e, 50);
  must(kill(child, SIGCONT) == 0, "continue");
  e.synchronize();
  const size_t bytes = kSizes[std::size(kSizes) - 1];
  fill(e.memory.data(), bytes, 50 + std::size(kSizes));
  uint8_t correct = 0;
  must(::recv(e.socket, &correct, 1, MSG_WAITALL) == 1 && correct == 1, "the child's memory");
  ping(e);
}
void stopped_child(End& e, bool polls) {
  e.connect(14, 7);
  std::vector<uint8_t> expected(kSizes[std::size(kSizes) - 1]);
  fill(expected.data(), expected.size(), 50 + std::size(kSizes));
  char met = 0;
  while (polls && ::recv(e.socket, &met, 1, MSG_PEEK | MSG_DONTWAIT) != 1) {
    ibv_wc wc{};
    must(ibv_poll_cq(e.cq, 1, &wc) == 0, "no completion");
  }
  e.synchronize();
  uint8_t found = std::memcmp(e.memory.data() + 7, expected.data(), expected.size()) == 0 ? 1 : 0;
  must(::write(e.socket, &found, 1) == 1, "write");
  pong(e);
}

// Requests posted after a SEND wait with it until the peer continues.
void order_parent(End& e, pid_t child) {
  e.connect(17, 7);
  let_peer_sleep();
  stop(child);
  fill(e.memory.data(), 64, 3);
  e.post(IBV_WR_SEND, 1, 0, 0, 64);
  e.post(IBV_WR_RDMA_WRITE, 2, 0, 4096, 64);
  ibv_wc wc{};
  must(!e.poll(wc, 0.3), "a WRITE overtook the SEND before it");
  must(kill(child, SIGCONT) == 0, "continue");
  e.complete(1, "the SEND");
  e.complete(2, "the WRITE");
  e.synchronize();
}
void order_child(End& e) {
  e.connect(17, 7);
  e.synchronize();
}

// The child deregisters its memory again and again while the parent writes; after that no byte of
// it changes.
constexpr int kRounds = 40;
void deregistered_parent(End& e) {
  for (int round = 0; round < kRounds; ++round) {
    e.connect(14, 7);
    std::memset(e.memory.data(), round + 1, 65536);
    ibv_wc wc{};
    do {
      e.post(IBV_WR_RDMA_WRITE, 1, 0, 0, round % 2 == 0 ? 65536 : 8);
      do {
        must(e.poll(wc, 20), "a completion");
      } while (wc.wr_id == programs::kReceive);  // flushed, from the previous round
    } while (wc.status == IBV_WC_SUCCESS);
    must(wc.status == IBV_WC_REM_ACCESS_ERR, "the error is the responder's");
  }
}
void deregistered_child(End& e) {
  for (int round = 0; round < kRounds; ++round) {
    e.connect(14, 7);
    while (__atomic_load_n(&e.memory[0], __ATOMIC_ACQUIRE) != round + 1) {
    }
    usleep(static_cast<useconds_t>(
        200 + round * 13));  // during the write, at a different point each time
    must(ibv_dereg_mr(e.mr) == 0, "ibv_dereg_mr");
    std::memset(e.memory.data(), 0xEE, 65536);
    usleep(2000);  // a late copy would be visible
    for (size_t i = 0; i < 65536; ++i) must(e.memory[i] == 0xEE, "deregistered memory was written");
    e.register_memory();
  }
}

void killed_parent(End& e, pid_t child) {
  e.connect(12, 3);
  ibv_wc wc{};
  for (int i = 0; i < 1000 || wc.status == IBV_WC_SUCCESS; ++i) {
    if (i == 500) kill(child, SIGKILL);
    if (wc.status != IBV_WC_SUCCESS) break;
    e.post(i % 2 == 0 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ, 1, 0, 0, 65536);
    must(e.poll(wc, 20), "a completion");
  }
  must(wc.status == IBV_WC_RETRY_EXC_ERR, "the completion status after the peer was killed");
}

// Each process writes a number to the other as soon as its own memory has the number of the other.
// Both poll only that memory. Sometimes one of them sleeps for 3 ms.
constexpr uint32_t kExchanges = 20'000;
void spinning(End& e, bool begins) {
  uint32_t* const out = reinterpret_cast<uint32_t*>(e.memory.data());
  const uint32_t* const in = reinterpret_cast<uint32_t*>(e.memory.data() + 4096);
  const auto write_number = [&](uint32_t number) {
    *out = number;
    e.post(IBV_WR_RDMA_WRITE, number, 0, 4096, sizeof number);
    e.complete(number, "a WRITE to a process that spins on memory");
  };
  const auto await = [&](uint32_t number) {
    const double end = seconds_now() + 20;
    while (__atomic_load_n(in, __ATOMIC_ACQUIRE) != number)
      must(seconds_now() < end, "the other's number");
  };
  for (uint32_t i = 1; i <= kExchanges; ++i) {
    if (i % 1000 == (begins ? 0 : 500)) usleep(3000);
    if (begins) write_number(i);
    await(i);
    if (!begins) write_number(i);
  }
}
void spinning_parent(End& e) {
  e.connect(14, 7);
  spinning(e, true);
  ping(e);
}
void spinning_child(End& e) {
  e.connect(14, 7);
  spinning(e, false);
  pong(e);
}

// If the kernel forbids one-sided access, the peer executes the operation.
void denied_parent(End& e) {
  e.connect(14, 7);
  let_peer_sleep();
  for (uint32_t i = 0; i < 10; ++i) {
    fill(e.memory.data(), 5000, i);
    e.post(IBV_WR_RDMA_WRITE, 1, 0, 7, 5000);
    e.complete(1, "a WRITE");
    e.post(IBV_WR_RDMA_READ, 2, kBytes / 2, 7, 5000);
    e.complete(2, "a READ");
    must(std::memcmp(e.memory.data(), e.memory.data() + kBytes / 2, 5000) == 0,
         "the data read back");
  }
  e.synchronize();
}

void drop_capabilities() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2]{};
  must(syscall(SYS_capset, &header, none) == 0, "capset");
}

}  // namespace

int main(int argc, char** argv) {
  must(argc == 3, "usage: one_sided DEVICE CASE");
  const std::string what = argv[2];
  int ends[2];
  must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "socketpair");
  const pid_t child = fork();
  if (child == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
  End e(kBytes);
  e.socket = ends[child == 0 ? 1 : 0];
  if (what == "denied" && child != 0) drop_capabilities();
  if (what == "denied" && child == 0) prctl(PR_SET_DUMPABLE, 0);
  e.open(argv[1]);
  e.register_memory();
  if (child != 0) {
    if (what == "sleeping" || what == "polling") stopped_parent(e, child);
    if (what == "order") order_parent(e, child);
    if (what == "deregistered") deregistered_parent(e);
    if (what == "killed") killed_parent(e, child);
    if (what == "spinning") spinning_parent(e);
    if (what == "denied") denied_parent(e);
    int status = 0;
    must(waitpid(child, &status, 0) == child, "waitpid");
    must(what == "killed" ? WIFSIGNALED(status) : status == 0, "the child's exit status");
    std::puts("ok");
    return 0;
  }
  if (what == "sleeping" || what == "polling") stopped_child(e, what == "polling");
  if (what == "order") order_child(e);
  if (what == "deregistered") deregistered_child(e);
  if (what == "killed") {
    e.connect(12, 3);
    for (;;) pause();
  }
  if (what == "spinning") spinning_child(e);
  if (what == "denied") {
    e.connect(14, 7);
    e.synchronize();
  }
  return 0;
}

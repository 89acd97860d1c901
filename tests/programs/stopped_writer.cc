// A process that writes into another one's memory by itself is stopped (SIGSTOP) at any point of
// it. The owner of the memory must neither wait for it nor be written to after it took the memory
// back. Two processes: the parent owns the memory, its child writes.
//   g++ -std=c++20 -I REPOSITORY stopped_writer.cc -libverbs -o stopped_writer
//   stopped_writer DEVICE
#include <infiniband/verbs.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>

#include "tests/programs/two_ends.h"

namespace {

namespace programs = verbena::programs;
using programs::End;
using programs::must;

constexpr size_t kBytes = 65536;
constexpr int kTries = 30;
constexpr unsigned kLimitSeconds = 5;  // for a call; SIGALRM ends the program
constexpr uint8_t kTaken = 0xEE;       // what deregistered memory holds

// What the owner takes away while the writer is stopped.
enum class Taken { Region, QueuePair, Nothing };
Taken taken_in(int attempt) { return static_cast<Taken>(attempt % 3); }

template <typename Call>
void within_limit(const char* what, Call call) {
  alarm(kLimitSeconds);
  must(call() == 0, what);
  alarm(0);
}

// One that has nothing to do with the writer.
void modify_unrelated(End& e) {
  ibv_qp* const other = e.make_qp();
  within_limit("modify of an unrelated queue pair", [&] {
    return programs::make_ready_for_receives(other, {.access = programs::kAccess});
  });
  within_limit("ibv_destroy_qp of an unrelated queue pair", [&] { return ibv_destroy_qp(other); });
}

void take_back_while_stopped(End& e, pid_t writer, int attempt) {
  while (__atomic_load_n(&e.memory[0], __ATOMIC_ACQUIRE) != attempt + 1) usleep(10);
  usleep(static_cast<useconds_t>(attempt * 37 % 300));  // each time at another point
  must(kill(writer, SIGSTOP) == 0 && waitpid(writer, nullptr, WUNTRACED) == writer, "stop");
  modify_unrelated(e);
  if (taken_in(attempt) == Taken::QueuePair) {
    within_limit("ibv_destroy_qp", [&] { return ibv_destroy_qp(e.qp); });
    e.qp = e.make_qp();
  }
  if (taken_in(attempt) != Taken::Nothing) {
    within_limit("ibv_dereg_mr", [&] { return ibv_dereg_mr(e.mr); });
    std::memset(e.memory.data(), kTaken, kBytes);
  }
  must(kill(writer, SIGCONT) == 0, "continue");
}

void own_memory(End& e, pid_t writer) {
  for (int attempt = 0; attempt < kTries; ++attempt) {
    e.connect(12, 3);
    take_back_while_stopped(e, writer, attempt);
    e.meet();  // the writer has got its error, or went on
    if (taken_in(attempt) == Taken::Nothing) continue;
    for (const uint8_t byte : e.memory) {
      must(byte == kTaken, "deregistered memory was written");
    }
    e.offer();
  }
}

// Until it fails; or for a while, where nothing is taken away.
void write_memory(End& e) {
  for (int attempt = 0; attempt < kTries; ++attempt) {
    e.connect(12, 3);
    std::memset(e.memory.data(), attempt + 1, kBytes);
    const double end = programs::seconds_now() + 0.2;
    ibv_wc wc{};
    while (wc.status == IBV_WC_SUCCESS &&
           (taken_in(attempt) != Taken::Nothing || programs::seconds_now() < end)) {
      e.post(IBV_WR_RDMA_WRITE, 1, 0, 0, attempt % 2 == 0 ? kBytes : 8);
      do {
        must(e.poll(wc, 20), "a completion");
      } while (wc.wr_id == programs::kReceive);  // flushed, of the try before
    }
    constexpr ibv_wc_status kExpected[] = {IBV_WC_REM_ACCESS_ERR, IBV_WC_RETRY_EXC_ERR,
                                           IBV_WC_SUCCESS};
    must(wc.status == kExpected[static_cast<int>(taken_in(attempt))], "how the WRITEs ended");
    e.meet();
  }
}

}  // namespace

int main(int argc, char** argv) {
  must(argc == 2, "usage: stopped_writer DEVICE");
  int ends[2];
  must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "socketpair");
  const pid_t child = fork();
  if (child == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
  End e(kBytes);
  e.socket = ends[child == 0 ? 1 : 0];
  e.open(argv[1]);
  e.offer();
  if (child == 0) {
    write_memory(e);
    return 0;
  }
  own_memory(e, child);
  int status = 0;
  must(waitpid(child, &status, 0) == child && status == 0, "the writer's end");
  std::puts("ok");
  return 0;
}

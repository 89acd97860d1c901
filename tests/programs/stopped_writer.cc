// A process is stopped (SIGSTOP) at any point of a direct copy into the memory of another. The
// owner of the memory must not wait for it, and the memory must not change after it is
// deregistered. Two processes: the parent owns the memory, its child writes.
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
constexpr unsigned kLimitSeconds = 5;    // for a call; SIGALRM ends the program
constexpr uint8_t kDeregistered = 0xEE;  // the content of deregistered memory

// The object that the owner destroys while the writer is stopped.
enum class Destroyed { Region, QueuePair, Nothing };
Destroyed destroyed_in(int attempt) { return static_cast<Destroyed>(attempt % 3); }

template <typename Call>
void within_limit(const char* what, Call call) {
  alarm(kLimitSeconds);
  must(call() == 0, what);
  alarm(0);
}

// A queue pair that is not connected to the writer.
void modify_unrelated(End& e) {
  ibv_qp* const other = e.make_qp();
  within_limit("modify of an unrelated queue pair", [&] {
    return programs::make_ready_for_receives(other, {.access = programs::kAccess});
  });
  within_limit("ibv_destroy_qp of an unrelated queue pair", [&] { return ibv_destroy_qp(other); });
}

void destroy_while_stopped(End& e, pid_t writer, int attempt) {
  while (__atomic_load_n(&e.memory[0], __ATOMIC_ACQUIRE) != attempt + 1) usleep(10);
  usleep(static_cast<useconds_t>(attempt * 37 % 300));  // at a different point each time
  must(kill(writer, SIGSTOP) == 0 && waitpid(writer, nullptr, WUNTRACED) == writer, "stop");
  modify_unrelated(e);
  if (destroyed_in(attempt) == Destroyed::QueuePair) {
    within_limit("ibv_destroy_qp", [&] { return ibv_destroy_qp(e.qp); });
    e.qp = e.make_qp();
  }
  if (destroyed_in(attempt) != Destroyed::Nothing) {
    within_limit("ibv_dereg_mr", [&] { return ibv_dereg_mr(e.mr); });
    std::memset(e.memory.data(), kDeregistered, kBytes);
  }
  must(kill(writer, SIGCONT) == 0, "continue");
}

void own_memory(End& e, pid_t writer) {
  for (int attempt = 0; attempt < kTries; ++attempt) {
    e.connect(12, 3);
    destroy_while_stopped(e, writer, attempt);
    e.synchronize();  // the writer has its error, or continued
    if (destroyed_in(attempt) == Destroyed::Nothing) continue;
    for (const uint8_t byte : e.memory) {
      must(byte == kDeregistered, "deregistered memory was written");
    }
    e.register_memory();
  }
}

// Writes until a request fails, or for 0.2 s if nothing is destroyed.
void write_memory(End& e) {
  for (int attempt = 0; attempt < kTries; ++attempt) {
    e.connect(12, 3);
    std::memset(e.memory.data(), attempt + 1, kBytes);
    const double end = programs::seconds_now() + 0.2;
    ibv_wc wc{};
    while (wc.status == IBV_WC_SUCCESS &&
           (destroyed_in(attempt) != Destroyed::Nothing || programs::seconds_now() < end)) {
      e.post(IBV_WR_RDMA_WRITE, 1, 0, 0, attempt % 2 == 0 ? kBytes : 8);
      do {
        must(e.poll(wc, 20), "a completion");
      } while (wc.wr_id == programs::kReceive);  // flushed, from the previous attempt
    }
    constexpr ibv_wc_status kExpected[] = {IBV_WC_REM_ACCESS_ERR, IBV_WC_RETRY_EXC_ERR,
                                           IBV_WC_SUCCESS};
    must(wc.status == kExpected[static_cast<int>(destroyed_in(attempt))],
         "the completion status of the WRITEs");
    e.synchronize();
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
  e.register_memory();
  if (child == 0) {
    write_memory(e);
    return 0;
  }
  own_memory(e, child);
  int status = 0;
  must(waitpid(child, &status, 0) == child && status == 0, "the writer's exit status");
  std::puts("ok");
  return 0;
}

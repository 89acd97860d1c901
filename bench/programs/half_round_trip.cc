// half_round_trip: two processes of this host, each on a core of its own, send each other one small
// message in turn and poll. Prints half a round trip in nanoseconds: the least of many short
// series, and the lower quartile. Perftest prints hundredths of a microsecond, which is too coarse
// to compare two versions.
//
//   verbena run -- half_round_trip [-w] [-s 2] [-n 40] [-i 10000]
//     -w  WRITEs instead of SENDs; the receiver polls the memory, then its completion queue
//     -s  bytes per message     -n  series     -i  round trips per series
//
// To compare two builds, run them in turn with LD_LIBRARY_PATH, several times each, and compare the
// least values between the same pair of cores.
#include <getopt.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <vector>

#include "bench/programs/verbs_support.h"

namespace {

using namespace verbena::bench;

constexpr size_t kMaxBytes = 4096;
constexpr uint32_t kInlineBytes = 64;
constexpr uint32_t kSendDepth = 16;
constexpr uint32_t kReceives = 256;
constexpr int kWarmUpSeries = 2;

struct Options {
  bool writes = false;
  uint32_t bytes = 2;
  int series = 40;
  int round_trips = 10000;
};

struct Peer {
  uint32_t qpn = 0;
  uint32_t rkey = 0;
  uint64_t address = 0;
};

// One side: a queue pair, a buffer that receives, and one that is sent.
class Side {
 public:
  Side(const Options& options, int control, bool begins)
      : options_(options), begins_(begins), device_(open_loopback_device()) {
    cq_ = ibv_create_cq(device_.context, 2 * kReceives, nullptr, nullptr, 0);
    if (!cq_) fail("ibv_create_cq");
    mr_ = ibv_reg_mr(device_.pd, memory_.data(), memory_.size(),
                     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    if (!mr_) fail("ibv_reg_mr");
    qp_ = create_rc_queue_pair(device_, cq_, kSendDepth, kReceives, kInlineBytes);
    const Peer mine{qp_->qp_num, mr_->rkey, reinterpret_cast<uintptr_t>(memory_.data())};
    if (write(control, &mine, sizeof mine) != sizeof mine ||
        read(control, &peer_, sizeof peer_) != sizeof peer_)
      fail("the other process has ended", 0);
    connect_queue_pair(device_, qp_, peer_.qpn);
    if (!options_.writes) {
      for (uint32_t i = 0; i < kReceives; ++i) post_receive();
    }
    char ready = 1;
    if (write(control, &ready, 1) != 1 || read(control, &ready, 1) != 1)
      fail("the other process has ended", 0);
  }
  ~Side() {
    must(ibv_destroy_qp(qp_), "ibv_destroy_qp");
    must(ibv_dereg_mr(mr_), "ibv_dereg_mr");
    must(ibv_destroy_cq(cq_), "ibv_destroy_cq");
    close_device(device_);
  }
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;

  void run_series() {
    for (int i = 0; i < options_.round_trips; ++i) {
      number_ = static_cast<char>(number_ % 100 + 1);
      if (begins_) send();
      receive();
      if (!begins_) send();
    }
  }

 private:
  void post_receive() {
    ibv_sge sge{reinterpret_cast<uintptr_t>(memory_.data()), kMaxBytes, mr_->lkey};
    ibv_recv_wr request{}, *bad = nullptr;
    request.sg_list = &sge;
    request.num_sge = 1;
    must(ibv_post_recv(qp_, &request, &bad), "ibv_post_recv");
  }
  void send() {
    char* const out = memory_.data() + kMaxBytes;
    out[options_.bytes - 1] = number_;
    ibv_sge sge{reinterpret_cast<uintptr_t>(out), options_.bytes, mr_->lkey};
    ibv_send_wr request{}, *bad = nullptr;
    request.sg_list = &sge;
    request.num_sge = 1;
    request.opcode = options_.writes ? IBV_WR_RDMA_WRITE : IBV_WR_SEND;
    request.send_flags = IBV_SEND_SIGNALED;
    if (options_.bytes <= kInlineBytes) request.send_flags |= IBV_SEND_INLINE;
    request.wr.rdma = {.remote_addr = peer_.address, .rkey = peer_.rkey};
    must(ibv_post_send(qp_, &request, &bad), "ibv_post_send");
    if (options_.writes) poll();
  }
  void receive() {
    if (options_.writes) {
      const volatile char& last = memory_[options_.bytes - 1];
      while (last != number_) {
      }
      return;
    }
    while (poll() != IBV_WC_RECV) {
    }
    post_receive();
  }
  ibv_wc_opcode poll() {
    ibv_wc done{};
    int found = 0;
    while ((found = ibv_poll_cq(cq_, 1, &done)) == 0) {
    }
    if (found < 0) fail("ibv_poll_cq", 0);
    if (done.status != IBV_WC_SUCCESS) fail(ibv_wc_status_str(done.status), 0);
    return done.opcode;
  }

  const Options options_;
  const bool begins_;
  Device device_;
  std::vector<char> memory_ = std::vector<char>(2 * kMaxBytes);
  ibv_cq* cq_ = nullptr;
  ibv_mr* mr_ = nullptr;
  ibv_qp* qp_ = nullptr;
  Peer peer_;
  char number_ = 0;
};

void measure(const Options& options, int control) {
  Side side(options, control, true);
  std::vector<double> half;
  for (int i = 0; i < kWarmUpSeries + options.series; ++i) {
    const auto start = Clock::now();
    side.run_series();
    if (i >= kWarmUpSeries) half.push_back(seconds_since(start) * 1e9 / options.round_trips / 2);
  }
  std::ranges::sort(half);
  std::printf("%s %u bytes: least %.1f ns, quartile %.1f ns\n", options.writes ? "WRITE" : "SEND",
              options.bytes, half.front(), half[half.size() / 4]);
  char done = 1;  // the server polls until now, so that the last ACK arrives
  if (write(control, &done, 1) != 1) fail("the other process has ended", 0);
}

void respond(const Options& options, int control) {
  Side side(options, control, false);
  for (int i = 0; i < kWarmUpSeries + options.series; ++i) side.run_series();
  char done = 0;
  if (read(control, &done, 1) != 1) fail("the other process has ended", 0);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int option; (option = getopt(argc, argv, "ws:n:i:")) != -1;) {
    switch (option) {
      case 'w':
        options.writes = true;
        break;
      case 's':
        options.bytes = static_cast<uint32_t>(std::atoi(optarg));
        break;
      case 'n':
        options.series = std::atoi(optarg);
        break;
      case 'i':
        options.round_trips = std::atoi(optarg);
        break;
      default:
        return 2;
    }
  }
  if (options.bytes < 1 || options.bytes > kMaxBytes || options.series < 1 ||
      options.round_trips < 1)
    fail("-s is 1 to 4096, -n and -i are at least 1", 0);
  int control[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, control) != 0) fail("socketpair");
  const pid_t server = fork();
  if (server < 0) fail("fork");
  if (server == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(control[0]);
    pin_to_core(1);
    respond(options, control[1]);
    return 0;
  }
  close(control[1]);
  pin_to_core(0);
  measure(options, control[0]);
  int status = 0;
  waitpid(server, &status, 0);
  return status == 0 ? 0 : 1;
}

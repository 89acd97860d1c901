// incast: processes of another network namespace send WRITEs to one process of this namespace,
// across whatever connects the two (tests/network/router.cc, a veth pair). Each sender is a process
// with one queue pair, so it has a congestion window of its own, as a host has. Senders sleep
// between completions: 48 of them do not fill the processors by polling.
//
//   verbena run -- incast -f /proc/PID/ns/net [-i verbena_tun0] [-n 1] [-s 65536] [-d 64] [-t 3]
//   [-w 1]
//     -f  the namespace of the senders   -i  the device, in both namespaces
//     -n  senders                        -s  bytes per message
//     -d  outstanding requests           -t  measured seconds, after -w seconds of warm-up
//
// Prints "measuring" when the measured time starts, and at its end one line of JSON: payload in
// Gb/s, Jain's fairness index of the senders, and how many queue pairs gave up.
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "bench/programs/verbs_support.h"

namespace {

using namespace verbena::bench;

struct Options {
  std::string far;
  std::string device = "verbena_tun0";
  size_t senders = 1;
  size_t size = 65536;
  uint32_t depth = 64;
  double seconds = 3;
  double warm_up_seconds = 1;
};

// What a sender shares with the receiving process.
struct alignas(64) Progress {
  std::atomic<uint64_t> messages;
  std::atomic<bool> gave_up;
  std::atomic<bool> is_over;  // set by the receiving process
};

struct Address {
  ibv_gid gid{};
  uint64_t memory = 0;
  uint32_t rkey = 0;
  uint32_t queue_pair = 0;
};

void connect_to(const Device& device, ibv_qp* qp, const Address& peer) {
  const verbena::programs::Connection to{.peer = peer.queue_pair,
                                         .gid = peer.gid,
                                         .mtu = device.mtu,
                                         .access = IBV_ACCESS_REMOTE_WRITE};
  must(make_ready_for_receives(qp, to), "to INIT");
  must(verbena::programs::connect(qp, to), "to RTS");
}

void enter_namespace(const std::string& file) {
  const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 || setns(fd, CLONE_NEWNET) != 0) fail(("cannot enter " + file).c_str());
  close(fd);
}

// A sender: keeps its queue pair full until the measurement is over or the queue pair gives up.
class Sender {
 public:
  Sender(const Options& options, int control, Progress& progress)
      : options_(options),
        progress_(progress),
        device_(open_device(options.device)),
        memory_(options.size) {
    channel_ = ibv_create_comp_channel(device_.context);
    if (!channel_) fail("ibv_create_comp_channel");
    cq_ = ibv_create_cq(device_.context, static_cast<int>(options.depth), nullptr, channel_, 0);
    if (!cq_) fail("ibv_create_cq");
    mr_ = ibv_reg_mr(device_.pd, memory_.data(), memory_.size(), IBV_ACCESS_LOCAL_WRITE);
    if (!mr_) fail("ibv_reg_mr");
    qp_ = create_rc_queue_pair(device_, cq_, options.depth);
    const Address mine{.gid = device_.gid, .queue_pair = qp_->qp_num};
    write_all(control, &mine, sizeof mine);
    read_all(control, &peer_, sizeof peer_);
    connect_to(device_, qp_, peer_);
    write_all(control, "", 1);
    char start;
    read_all(control, &start, 1);
  }

  void run() {
    must(ibv_req_notify_cq(cq_, 0), "ibv_req_notify_cq");
    for (uint32_t i = 0; i < options_.depth; ++i) post();
    while (!progress_.is_over && !progress_.gave_up) {
      if (complete() == 0) sleep_until_completion();
    }
  }

 private:
  void post() {
    ibv_sge sge{reinterpret_cast<uintptr_t>(memory_.data()), static_cast<uint32_t>(memory_.size()),
                mr_->lkey};
    ibv_send_wr request{};
    request.sg_list = &sge;
    request.num_sge = 1;
    request.opcode = IBV_WR_RDMA_WRITE;
    request.send_flags = IBV_SEND_SIGNALED;
    request.wr.rdma = {.remote_addr = peer_.memory, .rkey = peer_.rkey};
    ibv_send_wr* bad = nullptr;
    must(ibv_post_send(qp_, &request, &bad), "ibv_post_send");
  }

  int complete() {
    ibv_wc done[16];
    const int n = ibv_poll_cq(cq_, 16, done);
    if (n < 0) fail("ibv_poll_cq", 0);
    for (int i = 0; i < n; ++i) {
      if (done[i].status != IBV_WC_SUCCESS) {
        progress_.gave_up = true;
        return n;
      }
      ++progress_.messages;
      post();
    }
    return n;
  }

  void sleep_until_completion() {
    constexpr int kLookForTheEndMs = 100;
    pollfd events{channel_->fd, POLLIN, 0};
    if (poll(&events, 1, kLookForTheEndMs) <= 0) return;
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    must(ibv_get_cq_event(channel_, &cq, &context), "ibv_get_cq_event");
    ibv_ack_cq_events(cq, 1);
    must(ibv_req_notify_cq(cq_, 0), "ibv_req_notify_cq");
  }

  const Options& options_;
  Progress& progress_;
  Device device_;
  std::vector<char> memory_;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* cq_ = nullptr;
  ibv_mr* mr_ = nullptr;
  ibv_qp* qp_ = nullptr;
  Address peer_;
};

// The receiving process: a queue pair for each sender.
void accept_all(const Options& options, const std::vector<int>& controls, const Device& device,
                std::vector<char>& memory) {
  ibv_cq* const cq = ibv_create_cq(device.context, 1, nullptr, nullptr, 0);
  if (!cq) fail("ibv_create_cq");
  const ibv_mr* const mr = ibv_reg_mr(device.pd, memory.data(), memory.size(),
                                      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  if (!mr) fail("ibv_reg_mr");
  for (size_t i = 0; i < controls.size(); ++i) {
    Address peer;
    read_all(controls[i], &peer, sizeof peer);
    ibv_qp* const qp = create_rc_queue_pair(device, cq, 1);
    connect_to(device, qp, peer);
    const Address mine{.gid = device.gid,
                       .memory = reinterpret_cast<uintptr_t>(memory.data() + i * options.size),
                       .rkey = mr->rkey,
                       .queue_pair = qp->qp_num};
    write_all(controls[i], &mine, sizeof mine);
  }
  for (const int control : controls) {
    char ready;
    read_all(control, &ready, 1);
  }
  for (const int control : controls) write_all(control, "", 1);
}

std::vector<uint64_t> messages_of(const Progress* progress, size_t senders) {
  std::vector<uint64_t> messages;
  for (size_t i = 0; i < senders; ++i) messages.push_back(progress[i].messages);
  return messages;
}

void measure(const Options& options, const Progress* progress) {
  const auto wait = [](double seconds) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  };
  wait(options.warm_up_seconds);
  std::printf("measuring\n");
  std::fflush(stdout);
  const auto start = Clock::now();
  const std::vector<uint64_t> before = messages_of(progress, options.senders);
  wait(options.seconds);
  const std::vector<uint64_t> after = messages_of(progress, options.senders);
  const double seconds = seconds_since(start);
  double sum = 0, squares = 0;
  int gave_up = 0;
  for (size_t i = 0; i < options.senders; ++i) {
    const auto messages = static_cast<double>(after[i] - before[i]);
    sum += messages;
    squares += messages * messages;
    gave_up += progress[i].gave_up ? 1 : 0;
  }
  const double jain =
      squares > 0 ? sum * sum / (static_cast<double>(options.senders) * squares) : 0;
  std::printf("{\"gbps\": %.4f, \"jain\": %.4f, \"gave_up\": %d}\n",
              sum * static_cast<double>(options.size) * 8e-9 / seconds, jain, gave_up);
  std::fflush(stdout);
}

Options parse(int argc, char** argv) {
  Options options;
  for (int option; (option = getopt(argc, argv, "f:i:n:s:d:t:w:")) != -1;) {
    switch (option) {
      case 'f':
        options.far = optarg;
        break;
      case 'i':
        options.device = optarg;
        break;
      case 'n':
        options.senders = std::strtoul(optarg, nullptr, 10);
        break;
      case 's':
        options.size = std::strtoul(optarg, nullptr, 10);
        break;
      case 'd':
        options.depth = static_cast<uint32_t>(std::strtoul(optarg, nullptr, 10));
        break;
      case 't':
        options.seconds = std::strtod(optarg, nullptr);
        break;
      case 'w':
        options.warm_up_seconds = std::strtod(optarg, nullptr);
        break;
      default:
        std::exit(2);
    }
  }
  if (options.far.empty() || options.senders == 0 || options.size == 0 || options.depth == 0) {
    std::fprintf(stderr, "incast: -f is required; -n, -s and -d must be at least 1\n");
    std::exit(2);
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  std::signal(SIGPIPE, SIG_IGN);
  void* const shared = mmap(nullptr, options.senders * sizeof(Progress), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) fail("mmap");
  auto* const progress = static_cast<Progress*>(shared);
  std::vector<int> controls;
  for (size_t i = 0; i < options.senders; ++i) {  // before this process touches RDMA
    int control[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, control) != 0) fail("socketpair");
    const pid_t child = fork();
    if (child < 0) fail("fork");
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      close(control[0]);
      enter_namespace(options.far);
      Sender(options, control[1], progress[i]).run();
      std::_Exit(0);
    }
    close(control[1]);
    controls.push_back(control[0]);
  }
  const Device device = open_device(options.device);
  std::vector<char> memory(options.senders * options.size);
  accept_all(options, controls, device, memory);
  measure(options, progress);
  for (size_t i = 0; i < options.senders; ++i) progress[i].is_over = true;
  while (wait(nullptr) > 0) {
  }
  return 0;
}

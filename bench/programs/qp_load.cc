// qp_load: WRITEs at full speed from one process to another on this host, over any number of queue
// pairs in turn. Prints one line of JSON: messages per second and Gb/s.
//
//   verbena run -- qp_load [-s 64] [-q 1] [-d 512] [-l 32] [-t 1] [-w]
//     -s  bytes per message              -q  queue pairs
//     -d  outstanding requests per QP    -l  requests per posted list; the last one is signalled
//     -t  seconds                        -w  when done, wait for the end of standard input, so that
//                                            the caller can read the counters of both processes
//
// All queue pairs use the same few megabytes in turn. The cost of more queue pairs is thus their
// own and not that of cache misses on more memory.
#include <getopt.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <string>
#include <vector>

#include "bench/programs/verbs_support.h"

namespace {

using namespace verbena::bench;

constexpr size_t kMemory = 4 << 20;  // of each side
constexpr int kClientCore = 0;
constexpr int kServerCore = 1;
constexpr double kWarmUpSeconds = 0.2;

struct Options {
  size_t size = 64;
  uint32_t queue_pairs = 1;
  uint32_t depth = 512;
  uint32_t list = 32;
  double seconds = 1;
  bool wait = false;
};

struct RemoteMemory {
  uint64_t address = 0;
  uint32_t rkey = 0;
  uint32_t reserved = 0;
};

// The verbs objects of one side, connected to those of the other side.
class Endpoint {
 public:
  Endpoint(const Options& options, int control)
      : device_(open_loopback_device()), memory_(std::max(kMemory, options.size)) {
    const uint32_t completions = options.queue_pairs * (options.depth / options.list) + 1;
    cq_ = ibv_create_cq(device_.context, static_cast<int>(completions), nullptr, nullptr, 0);
    if (!cq_) fail("ibv_create_cq");
    mr_ = ibv_reg_mr(device_.pd, memory_.data(), memory_.size(),
                     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    if (!mr_) fail("ibv_reg_mr");
    std::vector<uint32_t> ours, theirs(options.queue_pairs);
    for (uint32_t i = 0; i < options.queue_pairs; ++i) {
      queue_pairs_.push_back(create_rc_queue_pair(device_, cq_, options.depth));
      ours.push_back(queue_pairs_.back()->qp_num);
    }
    write_all(control, ours.data(), ours.size() * sizeof ours[0]);
    read_all(control, theirs.data(), theirs.size() * sizeof theirs[0]);
    for (size_t i = 0; i < queue_pairs_.size(); ++i)
      connect_queue_pair(device_, queue_pairs_[i], theirs[i]);
    const RemoteMemory mine{reinterpret_cast<uintptr_t>(memory_.data()), mr_->rkey};
    write_all(control, &mine, sizeof mine);
    read_all(control, &remote_, sizeof remote_);
  }

  ~Endpoint() {
    for (ibv_qp* qp : queue_pairs_) must(ibv_destroy_qp(qp), "ibv_destroy_qp");
    must(ibv_dereg_mr(mr_), "ibv_dereg_mr");
    must(ibv_destroy_cq(cq_), "ibv_destroy_cq");
    close_device(device_);
  }
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  ibv_cq* cq() const { return cq_; }
  const std::vector<ibv_qp*>& queue_pairs() const { return queue_pairs_; }
  uint64_t local_address() const { return reinterpret_cast<uintptr_t>(memory_.data()); }
  uint32_t lkey() const { return mr_->lkey; }
  const RemoteMemory& remote() const { return remote_; }
  size_t memory() const { return memory_.size(); }

 private:
  Device device_;
  std::vector<char> memory_;
  ibv_cq* cq_ = nullptr;
  ibv_mr* mr_ = nullptr;
  std::vector<ibv_qp*> queue_pairs_;
  RemoteMemory remote_;
};

// Keeps every queue pair full: when a list completes, the next one is posted to the same queue
// pair.
class Load {
 public:
  Load(const Options& options, const Endpoint& endpoint)
      : options_(options),
        endpoint_(endpoint),
        stride_(std::max<size_t>(options.size, 64)),
        buffers_(std::max<size_t>(1, endpoint.memory() / stride_)),
        requests_(options.list),
        sges_(options.list) {
    for (size_t i = 0; i < requests_.size(); ++i) {
      sges_[i] = {0, static_cast<uint32_t>(options.size), endpoint.lkey()};
      ibv_send_wr& request = requests_[i];
      request.next = i + 1 < requests_.size() ? &requests_[i + 1] : nullptr;
      request.sg_list = &sges_[i];
      request.num_sge = 1;
      request.opcode = IBV_WR_RDMA_WRITE;
      request.wr.rdma.rkey = endpoint.remote().rkey;
    }
    requests_.back().send_flags = IBV_SEND_SIGNALED;
    for (uint32_t lists = 0; lists < options.depth / options.list; ++lists) {
      for (size_t i = 0; i < endpoint.queue_pairs().size(); ++i) post_list(i);
    }
  }

  // Returns the number of messages completed in about `seconds`.
  uint64_t run(double seconds) {
    const auto start = Clock::now();
    uint64_t lists = 0;
    while (seconds_since(start) < seconds) lists += poll(true);
    return lists * options_.list;
  }

  void drain() {
    while (lists_in_flight_ > 0) poll(false);
  }

 private:
  void post_list(size_t queue_pair) {
    for (size_t i = 0; i < requests_.size(); ++i) {
      const uint64_t offset = next_buffer_ * stride_;
      next_buffer_ = (next_buffer_ + 1) % buffers_;
      sges_[i].addr = endpoint_.local_address() + offset;
      requests_[i].wr.rdma.remote_addr = endpoint_.remote().address + offset;
    }
    requests_.back().wr_id = queue_pair;
    ibv_send_wr* bad = nullptr;
    must(ibv_post_send(endpoint_.queue_pairs()[queue_pair], requests_.data(), &bad),
         "ibv_post_send");
    ++lists_in_flight_;
  }

  uint64_t poll(bool repost) {
    ibv_wc done[16];
    const int n = ibv_poll_cq(endpoint_.cq(), 16, done);
    if (n < 0) fail("ibv_poll_cq", 0);
    for (int i = 0; i < n; ++i) {
      if (done[i].status != IBV_WC_SUCCESS) fail(ibv_wc_status_str(done[i].status), 0);
      --lists_in_flight_;
      if (repost) post_list(done[i].wr_id);
    }
    return static_cast<uint64_t>(n);
  }

  const Options& options_;
  const Endpoint& endpoint_;
  size_t stride_;
  size_t buffers_;
  size_t next_buffer_ = 0;
  uint64_t lists_in_flight_ = 0;
  std::vector<ibv_send_wr> requests_;
  std::vector<ibv_sge> sges_;
};

void serve(const Options& options, int control) {
  pin_to_core(kServerCore);
  const Endpoint endpoint(options, control);
  char end;
  read_all(control, &end, 1);  // the client has finished
}

void drive(const Options& options, int control) {
  pin_to_core(kClientCore);
  const Endpoint endpoint(options, control);
  Load load(options, endpoint);
  load.run(kWarmUpSeconds);
  const auto start = Clock::now();
  const auto messages = static_cast<double>(load.run(options.seconds));
  const double seconds = seconds_since(start);
  load.drain();
  std::printf("{\"messages_per_second\": %.0f, \"gbps\": %.3f}\n", messages / seconds,
              messages * static_cast<double>(options.size) * 8 / seconds / 1e9);
  std::fflush(stdout);
  while (options.wait && std::getchar() != EOF) {
  }
  write_all(control, "", 1);
}

Options parse(int argc, char** argv) {
  Options options;
  for (int option; (option = getopt(argc, argv, "s:q:d:l:t:w")) != -1;) {
    const char* const text = optarg ? optarg : "";
    const unsigned long value = std::strtoul(text, nullptr, 10);
    switch (option) {
      case 's':
        options.size = value;
        break;
      case 'q':
        options.queue_pairs = static_cast<uint32_t>(value);
        break;
      case 'd':
        options.depth = static_cast<uint32_t>(value);
        break;
      case 'l':
        options.list = static_cast<uint32_t>(value);
        break;
      case 't':
        options.seconds = std::strtod(text, nullptr);
        break;
      case 'w':
        options.wait = true;
        break;
      default:
        std::exit(2);
    }
  }
  if (options.queue_pairs == 0 || options.list == 0 || options.depth % options.list != 0 ||
      options.depth == 0) {
    std::fprintf(stderr, "qp_load: -q and -l must be at least 1, and -d a multiple of -l\n");
    std::exit(2);
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  std::signal(SIGPIPE, SIG_IGN);
  int control[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, control) != 0) fail("socketpair");
  const pid_t server = fork();  // before either side touches RDMA
  if (server < 0) fail("fork");
  if (server == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(control[0]);
    serve(options, control[1]);
    return 0;
  }
  close(control[1]);
  drive(options, control[0]);
  int status = 0;
  if (waitpid(server, &status, 0) != server || status != 0) fail("the server process failed", 0);
  return 0;
}

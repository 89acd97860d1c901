// thread_load: does a process with many threads move as much as many processes? Each thread of one
// process has a queue pair and a completion queue of its own and is connected to a thread of a
// second process on this host. Prints one line of JSON: messages per second and Gb/s of all threads
// together.
//
//   verbena run -- thread_load [-t 1] [-p 1] [-s 64] [-o write] [-d 1] [-q 128] [-c]
//                              [--peer-polls] [--create-in-threads] [--pin]
//     -t  threads of each process          -p  pairs of processes; compare -t 7 with -p 7
//     -s  bytes per message                -o  write, send or read
//     -d  seconds                          -q  outstanding requests per queue pair
//     -c  TCP streams over loopback instead of queue pairs, one per thread
//     --peer-polls         the passive threads poll their completion queues; with SENDs they
//                          always do, otherwise they sleep
//     --create-in-threads  each thread creates its queue pair; otherwise the main thread creates
//                          all of them
//     --pin                each thread runs on a processor of its own, next to that of its peer,
//                          if there are enough. The library's threads then have to run elsewhere,
//                          which can cost half of the throughput.
//
// Each thread transfers one buffer again and again, so more threads do not need much more cache.
#include <arpa/inet.h>
#include <getopt.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <latch>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bench/programs/load_ends.h"

namespace {

using namespace verbena::bench;

constexpr double kWarmUpSeconds = 0.2;
constexpr unsigned kSpareSeconds = 25;  // for all but the measurement; then the program gives up
constexpr int kMaxThreads = 1024;
constexpr size_t kMaxBytes = 1 << 30;

std::vector<int> usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) fail("sched_getaffinity");
  std::vector<int> found;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(static_cast<size_t>(i), &set)) found.push_back(i);
  }
  return found;
}

// Two connected sockets. Over loopback, the kernel chooses the port.
std::array<int, 2> socket_pair(bool tcp) {
  std::array<int, 2> ends{};
  if (!tcp) {
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) != 0) fail("socketpair");
    return ends;
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const name = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof address;
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  ends[0] = socket(AF_INET, SOCK_STREAM, 0);
  if (listener < 0 || ends[0] < 0) fail("socket");
  if (bind(listener, name, length) != 0 || listen(listener, 1) != 0 ||
      getsockname(listener, name, &length) != 0)
    fail("listen on 127.0.0.1");
  if (connect(ends[0], name, length) != 0) fail("connect to 127.0.0.1");
  ends[1] = accept(listener, nullptr, nullptr);
  if (ends[1] < 0) fail("accept");
  close(listener);
  return ends;
}

// One process: its threads, and a main thread that starts, measures and stops them.
class Side {
 public:
  // `sockets` has one socket per thread, to the peer. `processors`: empty, or one per thread.
  Side(const LoadOptions& options, Role role, std::vector<int> sockets, std::vector<int> processors)
      : options_(options),
        role_(role),
        sockets_(std::move(sockets)),
        processors_(std::move(processors)),
        slots_(sockets_.size()),
        ready_(static_cast<ptrdiff_t>(sockets_.size())) {
    if (!options_.tcp) device_ = open_loopback_device();
    if (!options_.create_in_threads) {
      for (size_t i = 0; i < slots_.size(); ++i) slots_[i].end = create_end(i);
      for (Slot& slot : slots_) slot.end->connect();
    }
    for (size_t i = 0; i < slots_.size(); ++i) threads_.emplace_back([this, i] { work(i); });
    ready_.wait();
  }
  ~Side() {
    stop();
    slots_.clear();
    if (device_) close_device(*device_);
  }
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;

  void start() { advance(Phase::kRunning); }
  void stop() {
    advance(Phase::kStopped);
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  // Messages per second of all threads.
  double measure() const {
    pause(kWarmUpSeconds);
    const auto start = Clock::now();
    const uint64_t before = messages();
    pause(options_.seconds);
    const uint64_t after = messages();
    return static_cast<double>(after - before) / seconds_since(start);
  }

 private:
  enum class Phase : uint8_t { kPreparing, kRunning, kStopped };

  struct alignas(2 * 64) Slot {  // the threads share no cache line that is written
    std::unique_ptr<End> end;
    std::atomic<uint64_t> messages{0};
  };

  std::unique_ptr<End> create_end(size_t i) const {
    if (options_.tcp) return std::make_unique<TcpEnd>(options_, sockets_[i], role_);
    if (role_ == Role::kActive) return std::make_unique<Requester>(options_, *device_, sockets_[i]);
    return std::make_unique<Responder>(options_, *device_, sockets_[i]);
  }

  void work(size_t i) {
    if (!processors_.empty()) pin_to_core(processors_[i]);
    Slot& slot = slots_[i];
    if (options_.create_in_threads) {
      slot.end = create_end(i);
      slot.end->connect();
    }
    ready_.count_down();
    phase_.wait(Phase::kPreparing);
    if (!is_polling()) phase_.wait(Phase::kRunning);
    for (uint64_t done = 0; phase_.load(std::memory_order_relaxed) == Phase::kRunning;)
      slot.messages.store(done += slot.end->transfer(), std::memory_order_relaxed);
    if (role_ == Role::kActive) slot.end->drain();
  }

  bool is_polling() const {
    return role_ == Role::kActive || options_.tcp || options_.peer_polls ||
           options_.operation == "send";
  }

  void advance(Phase phase) {
    phase_.store(phase);
    phase_.notify_all();
  }

  static void pause(double seconds) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  }

  uint64_t messages() const {
    uint64_t sum = 0;
    for (const Slot& slot : slots_) sum += slot.messages.load(std::memory_order_relaxed);
    return sum;
  }

  const LoadOptions& options_;
  const Role role_;
  const std::vector<int> sockets_;
  const std::vector<int> processors_;
  std::optional<Device> device_;
  std::vector<Slot> slots_;
  std::vector<std::thread> threads_;
  std::latch ready_;
  alignas(2 * 64) std::atomic<Phase> phase_{Phase::kPreparing};
};

// A child process, and the socket to it. It writes a byte when it is ready and, if it is active,
// the rate that it measured. It reads a byte to start and one to end.
struct Child {
  pid_t pid = 0;
  int control = -1;
};

void run_side(const LoadOptions& options, Role role, int control, std::vector<int> sockets,
              std::vector<int> processors) {
  char byte = 1;
  Side side(options, role, std::move(sockets), std::move(processors));
  write_all(control, &byte, 1);
  read_all(control, &byte, 1);
  side.start();
  if (role == Role::kActive) {
    const double rate = side.measure();
    side.stop();  // while the passive processes still respond
    write_all(control, &rate, sizeof rate);
  }
  read_all(control, &byte, 1);
}

[[noreturn]] void give_up(int /*signal*/) {
  constexpr char kText[] = "FAILED: not done in time\n";
  if (write(STDERR_FILENO, kText, sizeof kText - 1) < 0) _exit(2);
  _exit(1);
}

// Starts the processes and adds up what they measure. It uses no verbs itself.
class Coordinator {
 public:
  explicit Coordinator(const LoadOptions& options)
      : options_(options), threads_(static_cast<size_t>(options.threads)) {
    processors_ = usable_processors();
    const size_t pairs = static_cast<size_t>(options.pairs);
    if (!options_.pin || processors_.size() < 2 * pairs * threads_) processors_.clear();
    for (size_t i = 0; i < pairs; ++i) {
      std::vector<std::array<int, 2>> streams(threads_);
      for (auto& stream : streams) stream = socket_pair(options_.tcp);
      active_.push_back(start(Role::kActive, i, streams));
      passive_.push_back(start(Role::kPassive, i, streams));
      for (const auto& stream : streams) {
        close(stream[0]);
        close(stream[1]);
      }
    }
  }

  bool is_pinned() const { return !processors_.empty(); }

  // Messages per second of all processes.
  double run() {
    for (const auto* children : {&active_, &passive_})
      for (const Child& child : *children) read_from<char>(child);
    for (const auto* children : {&passive_, &active_})
      for (const Child& child : *children) write_all(child.control, "", 1);
    double rate = 0;
    for (const Child& child : active_) rate += read_from<double>(child);
    for (const auto* children : {&active_, &passive_}) {
      for (const Child& child : *children) write_all(child.control, "", 1);
      for (const Child& child : *children) expect_success(child);
    }
    return rate;
  }

 private:
  Child start(Role role, size_t pair, const std::vector<std::array<int, 2>>& streams) {
    const std::array<int, 2> control = socket_pair(false);
    const pid_t pid = fork();  // before any process touches RDMA
    if (pid < 0) fail("fork");
    if (pid > 0) {
      close(control[1]);
      return {pid, control[0]};
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(control[0]);
    for (const auto* children : {&active_, &passive_})
      for (const Child& child : *children) close(child.control);
    const size_t own = role == Role::kActive ? 0 : 1;
    std::vector<int> sockets, processors;
    for (size_t i = 0; i < threads_; ++i) {
      sockets.push_back(streams[i][own]);
      close(streams[i][1 - own]);
      if (is_pinned()) processors.push_back(processors_[2 * (pair * threads_ + i) + own]);
    }
    run_side(options_, role, control[1], std::move(sockets), std::move(processors));
    std::exit(0);
  }

  template <typename Value>
  Value read_from(const Child& child) const {
    Value value{};
    if (read(child.control, &value, sizeof value) == sizeof value) return value;
    expect_success(child);
    fail("a process ended early", 0);
  }

  // A process that fails prints the reason itself, unless a signal ends it.
  void expect_success(const Child& child) const {
    int status = 0;
    if (waitpid(child.pid, &status, 0) != child.pid) fail("waitpid");
    if (WIFSIGNALED(status))
      std::fprintf(stderr, "FAILED: a process was ended: %s\n", strsignal(WTERMSIG(status)));
    if (status != 0) end_all();
  }

  [[noreturn]] void end_all() const {
    for (const auto* children : {&active_, &passive_}) {
      for (const Child& child : *children) {
        kill(child.pid, SIGKILL);
        waitpid(child.pid, nullptr, 0);
      }
    }
    std::exit(1);
  }

  const LoadOptions& options_;
  const size_t threads_;
  std::vector<int> processors_;
  std::vector<Child> active_, passive_;
};

[[noreturn]] void reject(const char* why) {
  std::fprintf(stderr, "thread_load: %s\n", why);
  std::exit(2);
}

void check(const LoadOptions& options) {
  if (options.threads < 1 || options.pairs < 1 || options.threads > kMaxThreads / options.pairs)
    reject("-t and -p must be at least 1, and at most 1024 threads in all");
  if (options.size < 1 || options.size > kMaxBytes) reject("-s must be 1 to 1073741824");
  if (options.operation != "write" && options.operation != "send" && options.operation != "read")
    reject("-o must be write, send or read");
  if (!(options.seconds > 0 && options.seconds <= 3600)) reject("-d must be above 0, at most 3600");
  if (options.depth < 1 || options.depth > 4096) reject("-q must be 1 to 4096");
}

LoadOptions parse(int argc, char** argv) {
  static const option kLong[] = {{"peer-polls", no_argument, nullptr, 'P'},
                                 {"create-in-threads", no_argument, nullptr, 'C'},
                                 {"pin", no_argument, nullptr, 'I'},
                                 {nullptr, 0, nullptr, 0}};
  LoadOptions options;
  for (int found; (found = getopt_long(argc, argv, "t:p:s:o:d:q:c", kLong, nullptr)) != -1;) {
    const char* const text = optarg ? optarg : "";
    const int value = static_cast<int>(std::strtol(text, nullptr, 10));
    switch (found) {
      case 't':
        options.threads = value;
        break;
      case 'p':
        options.pairs = value;
        break;
      case 's':
        options.size = static_cast<size_t>(std::max(value, 0));
        break;
      case 'o':
        options.operation = text;
        break;
      case 'd':
        options.seconds = std::strtod(text, nullptr);
        break;
      case 'q':
        options.depth = static_cast<uint32_t>(std::max(value, 0));
        break;
      case 'c':
        options.tcp = true;
        break;
      case 'P':
        options.peer_polls = true;
        break;
      case 'C':
        options.create_in_threads = true;
        break;
      case 'I':
        options.pin = true;
        break;
      default:
        std::exit(2);
    }
  }
  if (optind < argc) reject("it takes options only");
  check(options);
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const LoadOptions options = parse(argc, argv);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGALRM, give_up);
  alarm(static_cast<unsigned>(options.seconds) +
        kSpareSeconds);  // the others end with this process
  Coordinator coordinator(options);
  const double rate = coordinator.run();
  std::printf(
      "{\"threads\": %d, \"processes\": %d, \"pinned\": %s, \"messages_per_second\": %.0f, "
      "\"gbps\": %.3f}\n",
      options.threads, options.pairs, coordinator.is_pinned() ? "true" : "false", rate,
      rate * static_cast<double>(options.size) * 8 / 1e9);
  return 0;
}

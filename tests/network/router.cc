// bottleneck: a router between two network namespaces with one slow link. It creates the interface
// tun0 in its own namespace (192.0.2.1, 2001:db8::1) and in another one (192.0.2.2, 2001:db8::2);
// both directions have the same rate, delay and queue. Everything that the programs of a namespace
// send shares the queue.
//
//   bottleneck --far /proc/PID/ns/net [options]
//     --rate-mbit 1000      of IP packets; a link layer's headers are not counted
//     --delay-ms 0          one way
//     --queue-bytes 1500000
//     --ecn-bytes 0         a longer queue changes ECT to CE; 0: never
//     --loss-percent 0      by chance
//     --reorder-percent 0 --reorder-ms 1     the part that is held back, and for how long
//     --mtu 1500
//     --seed 1              of loss and reordering
//
// Prints "ready", then one line of JSON for each SIGUSR1 and at the end (SIGTERM, SIGINT), with the
// statistics since the line before. Exit status 77: the system does not permit it.
//
// Precision: while it is busy, the router delivers late by up to 50 us or 1/20 of the delay, as a
// NIC that coalesces interrupts, and later when it gets no processor. No capacity is lost by that:
// see Forwarder.
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/network/bottleneck.h"
#include "tests/network/tun_device.h"

namespace verbena::network {
namespace {

constexpr int kSkipped = 77;
constexpr size_t kBatch = 64;  // packets read before due packets are delivered

Instant clock_now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return {t.tv_sec * 1'000'000'000 + t.tv_nsec};
}

timespec timespec_of(int64_t ns) { return {ns / 1'000'000'000, ns % 1'000'000'000}; }

// How long the calling thread was ready to run without getting a processor.
class RunDelay {
 public:
  RunDelay() : file_(open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)) {}
  Duration total() const {
    char text[96] = "";
    long long delay_ns = 0;
    const ssize_t bytes = pread(file_.get(), text, sizeof text - 1, 0);
    if (bytes <= 0 || std::sscanf(text, "%*d %lld", &delay_ns) != 1) return {};
    return nanoseconds(delay_ns);
  }

 private:
  os::UniqueFd file_;
};

// Moves packets in one direction, in a thread of its own.
//
// The router does not see when a packet arrives. It knows that a packet of a batch arrived while
// the thread was not looking: it slept between two turns, delivered, or waited for a processor. So
// the arrivals of a batch are spread evenly over that time. A thread that runs late thus neither
// takes capacity from the link nor sees a queue that the network would not have.
class Forwarder {
 public:
  Forwarder(TunDevice& from, TunDevice& to, const LinkSettings& settings, int stop)
      : from_(from),
        to_(to),
        link_(settings),
        busy_interval_(std::clamp(settings.delay / 20, microseconds(50), microseconds(500))),
        stop_(stop) {}

  void run() {
    prctl(PR_SET_TIMERSLACK, 1);
    RunDelay run_delay;
    Duration delayed = run_delay.total();
    Instant looked = clock_now();
    Duration asleep{};  // since looked, waiting for packets
    while (true) {
      const size_t moved = turn(looked, asleep, run_delay, delayed);
      asleep = {};
      if (moved > 1) {
        const timespec until = timespec_of((looked + busy_interval_).ns);
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr);
        if (is_stopped()) return;
        continue;
      }
      const Instant start = clock_now();
      if (await_work(start)) return;
      asleep = clock_now() - start;
    }
  }

  // The statistics as JSON, since the last call.
  std::string report(Duration period);

 private:
  // Reads and delivers. Returns the number of packets moved.
  size_t turn(Instant& looked, Duration asleep, const RunDelay& run_delay, Duration& delayed) {
    const std::lock_guard lock(mutex_);
    std::vector<Bottleneck::Packet> batch;
    while (batch.size() < kBatch) {
      const std::span<const uint8_t> packet = from_.read();
      if (packet.empty()) break;
      batch.emplace_back(packet.begin(), packet.end());
    }
    const Instant now = clock_now();
    const Duration elapsed = now - looked;
    Duration unobserved = elapsed - asleep;
    if (batch.size() > 1) {
      const Duration total = run_delay.total();
      unobserved = std::min(elapsed, unobserved + (total - delayed));
      delayed = total;
    }
    const Instant first = now - unobserved;
    const auto size = static_cast<int64_t>(batch.size());
    for (int64_t i = 0; i < size; ++i) {
      link_.arrive(std::move(batch[static_cast<size_t>(i)]), first + unobserved * (i + 1) / size,
                   now);
    }
    looked = now;
    size_t delivered = 0;
    while (const std::optional<Bottleneck::Packet> packet = link_.deliver(now)) {
      ++delivered;
      if (!to_.write(*packet)) ++undelivered_;
    }
    return batch.size() + delivered;
  }

  bool is_stopped() const {
    pollfd stop{stop_, POLLIN, 0};
    return poll(&stop, 1, 0) > 0;
  }

  // Waits for a packet or the next delivery. Returns true at the end of the program.
  bool await_work(Instant now) {
    pollfd fds[] = {{from_.fd(), POLLIN, 0}, {stop_, POLLIN, 0}};
    const Instant next = next_delivery();
    const timespec left = timespec_of(std::max<int64_t>((next - now).ns, 0));
    ppoll(fds, 2, next == kNever ? nullptr : &left, nullptr);
    return (fds[1].revents & POLLIN) != 0;
  }
  Instant next_delivery() {
    const std::lock_guard lock(mutex_);
    return link_.next_delivery();
  }

  TunDevice& from_;
  TunDevice& to_;
  std::mutex mutex_;  // link_, undelivered_: also read by report()
  Bottleneck link_;
  uint64_t undelivered_ = 0;
  uint64_t reported_unread_ = 0;
  const Duration busy_interval_;  // between the turns while there are many packets
  const int stop_;
};

std::string Forwarder::report(Duration period) {
  const std::lock_guard lock(mutex_);
  link_.settle(clock_now());
  const LinkCounters& counters = link_.counters();
  const QueueLengths& lengths = link_.queue_lengths();
  const uint64_t unread = from_.unread_drops();
  char text[512];
  std::snprintf(
      text, sizeof text,
      R"({"packets": %lu, "bytes": %lu, "mbit_per_second": %.2f, "dropped": %lu, "lost": %lu, )"
      R"("marked": %lu, "reordered": %lu, "unread": %lu, "undelivered": %lu, )"
      R"("queue_bytes": {"median": %.0f, "p95": %.0f, "max": %.0f}, "flows": [)",
      counters.forwarded_packets, counters.forwarded_bytes,
      static_cast<double>(counters.forwarded_bytes) * 8e3 / static_cast<double>(period.ns),
      counters.dropped_packets, counters.lost_packets, counters.marked_packets,
      counters.reordered_packets, unread - reported_unread_, undelivered_, lengths.quantile(0.5),
      lengths.quantile(0.95), lengths.max());
  std::string json = text;
  const char* comma = "";
  for (const auto& [flow, bytes] : counters.bytes_by_flow) {
    json += comma + std::string(R"({"protocol": ")") + protocol_name(flow.protocol) +
            R"(", "source": ")" + source_text(flow) + R"(", "bytes": )" + std::to_string(bytes) +
            "}";
    comma = ", ";
  }
  reported_unread_ = unread;
  undelivered_ = 0;
  link_.restart_statistics();
  return json + "]}";
}

struct Options {
  std::string far;
  LinkSettings link;
  int mtu = 1500;
};

Duration from_ms(const char* text) {
  return nanoseconds(static_cast<int64_t>(std::strtod(text, nullptr) * 1e6));
}

Options parse(int argc, char** argv) {
  enum Option : int { kFar, kRate, kDelay, kQueue, kEcn, kLoss, kReorder, kHeld, kMtu, kSeed };
  const option known[] = {
      {"far", 1, nullptr, kFar},
      {"rate-mbit", 1, nullptr, kRate},
      {"delay-ms", 1, nullptr, kDelay},
      {"queue-bytes", 1, nullptr, kQueue},
      {"ecn-bytes", 1, nullptr, kEcn},
      {"loss-percent", 1, nullptr, kLoss},
      {"reorder-percent", 1, nullptr, kReorder},
      {"reorder-ms", 1, nullptr, kHeld},
      {"mtu", 1, nullptr, kMtu},
      {"seed", 1, nullptr, kSeed},
      {},
  };
  Options options;
  options.link.held_for = milliseconds(1);
  for (int found = 0; (found = getopt_long(argc, argv, "", known, nullptr)) != -1;) {
    switch (found) {
      case kFar:
        options.far = optarg;
        break;
      case kRate:
        options.link.bits_per_second = std::strtod(optarg, nullptr) * 1e6;
        break;
      case kDelay:
        options.link.delay = from_ms(optarg);
        break;
      case kQueue:
        options.link.queue_bytes = std::strtoull(optarg, nullptr, 10);
        break;
      case kEcn:
        options.link.ecn_bytes = std::strtoull(optarg, nullptr, 10);
        break;
      case kLoss:
        options.link.loss = std::strtod(optarg, nullptr) / 100;
        break;
      case kReorder:
        options.link.reordering = std::strtod(optarg, nullptr) / 100;
        break;
      case kHeld:
        options.link.held_for = from_ms(optarg);
        break;
      case kMtu:
        options.mtu = std::atoi(optarg);
        break;
      case kSeed:
        options.link.seed = std::strtoull(optarg, nullptr, 10);
        break;
      default:
        std::exit(2);
    }
  }
  if (options.far.empty() || optind != argc || options.link.bits_per_second <= 0) {
    std::fprintf(stderr,
                 "usage: bottleneck --far /proc/PID/ns/net [--rate-mbit N] [--delay-ms N] "
                 "[--queue-bytes N] [--ecn-bytes N] [--loss-percent N] [--reorder-percent N] "
                 "[--reorder-ms N] [--mtu N] [--seed N]\n");
    std::exit(2);
  }
  return options;
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

void print_report(Forwarder& to_far, Forwarder& to_near, Instant since) {
  const Duration period = clock_now() - since;
  std::printf(R"({"seconds": %.3f, "cpu_seconds": %.3f, "to_far": %s, "to_near": %s})"
              "\n",
              static_cast<double>(period.ns) * 1e-9, cpu_seconds(), to_far.report(period).c_str(),
              to_near.report(period).c_str());
  std::fflush(stdout);
}

void route(const Options& options) {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGUSR1, SIGTERM, SIGINT}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  TunDevice near("/proc/self/ns/net", {"tun0", "192.0.2.1", "2001:db8::1", options.mtu});
  TunDevice far(options.far, {"tun0", "192.0.2.2", "2001:db8::2", options.mtu});
  const os::UniqueFd stop(eventfd(0, EFD_CLOEXEC));
  LinkSettings back = options.link;
  back.seed += 1;
  Forwarder to_far(near, far, options.link, stop.get()), to_near(far, near, back, stop.get());
  std::thread far_thread(&Forwarder::run, &to_far), near_thread(&Forwarder::run, &to_near);
  std::printf("ready\n");
  std::fflush(stdout);

  Instant since = clock_now();
  for (int signal = SIGUSR1; signal == SIGUSR1;) {
    if (sigwait(&signals, &signal) != 0) break;
    print_report(to_far, to_near, since);
    since = clock_now();
  }
  eventfd_write(stop.get(), 1);
  far_thread.join();
  near_thread.join();
}

}  // namespace
}  // namespace verbena::network

int main(int argc, char** argv) try {
  verbena::network::route(verbena::network::parse(argc, argv));
  return 0;
} catch (const verbena::network::NotPermitted& e) {
  std::fprintf(stderr, "bottleneck: %s\n", e.what());
  return verbena::network::kSkipped;
} catch (const std::exception& e) {
  std::fprintf(stderr, "bottleneck: %s\n", e.what());
  return 1;
}

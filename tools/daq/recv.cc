// The receiver: one thread polls one completion queue for all streams and serves the connections.
#include "tools/daq/recv.h"

#include <fmt/core.h>
#include <sys/resource.h>

#include <algorithm>
#include <memory>

#include "tools/daq/completions.h"
#include "tools/daq/connections.h"
#include "tools/daq/nic_counters.h"
#include "tools/daq/numa.h"
#include "tools/daq/plan.h"
#include "tools/daq/screen.h"
#include "tools/daq/udp.h"
#include "tools/daq/verbs_device.h"

namespace verbena::daqtool {
namespace {

constexpr Duration kMaxSleep = milliseconds(50);
constexpr Duration kLastAcks = milliseconds(2);
constexpr Duration kScreenInterval = milliseconds(500);

double cpu_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

Limits limits_of(const VerbsDevice& device) {
  return {.queue_pair_receives = static_cast<uint32_t>(device.limits.max_qp_wr),
          .completions = static_cast<uint32_t>(device.limits.max_cqe),
          .free_memory = free_memory()};
}

class Receiver {
 public:
  using Line = std::function<void(const std::string&)>;

  Receiver(const ReceiveOptions& options, const Line& line)
      : options_(options),
        line_(line),
        device_(options.ip),
        plan_(plan_for(options, limits_of(device_))),
        completions_(device_, plan_.completions(), options.poll, microseconds(options.spin_us)),
        nic_(device_.name, device_.port, options.screen) {
    const ibv_mtu mtu = options.mtu == 0 ? device_.mtu : std::min(mtu_of(options.mtu), device_.mtu);
    options_.mtu = bytes_of(mtu);
    for (const std::string& remark : plan_.remarks) log(remark);
    connections_ = std::make_unique<Connections>(
        options_, plan_, device_, completions_.queue(),
        Connections::Hooks{.log = [this](const std::string& text) { log(text); },
                           .drain_completions = [this](Instant at) { poll_all(at); }});
  }

  ReceiveSummary run() {
    const Instant start = now();
    end_ = options_.seconds > 0 ? start + Duration{static_cast<int64_t>(options_.seconds * 1e9)}
                                : kNever;
    connections_->begin();
    for (Instant housekeeping_at = start;;) {
      const Instant at = now();
      const bool found = poll_once(at);
      if (options_.consumer_us != 0) connections_->consume(at);
      if (at >= housekeeping_at) {
        connections_->do_housekeeping(at);
        if (at >= screen_at_) draw_screen(at);
        if (interrupted() || at >= end_ || connections_->all_done()) break;
        housekeeping_at = at + kHousekeepingInterval;
      }
      if (found) continue;
      completions_.wait(at, std::min({at + kMaxSleep, connections_->next_deadline(), end_}),
                        connections_->fd());
    }
    finish();
    return summary_;
  }

 private:
  bool poll_once(Instant at) {
    const std::span<const ibv_wc> done = completions_.poll(at);
    for (const ibv_wc& completion : done) {
      Stream* const stream = connections_->stream_of(completion);
      if (stream == nullptr) continue;
      if (!stream->on_completion(completion, at)) {
        connections_->on_failure(*stream, at);
      } else if (first_message_ == kNever) {
        first_message_ = at;
        first_cpu_ = cpu_seconds();
      }
    }
    if (!done.empty() && options_.consumer_us == 0) connections_->consume(at);
    return !done.empty();
  }

  // Bounded by the size of the queue: other boards may fill it continuously.
  void poll_all(Instant at) {
    for (uint32_t i = 0; i < completions_.entries() && poll_once(at); ++i) {
    }
  }

  void finish() {
    const Instant ended = now();
    if (first_message_ != kNever) {
      const Instant last = std::max(connections_->last_activity(), first_message_);
      summary_.seconds = static_cast<double>((last - first_message_).ns) / 1e9;
      summary_.cpu_seconds = cpu_seconds() - first_cpu_;
    }
    // Send the last ACKs before the queue pairs are destroyed.
    while (now() < ended + kLastAcks) poll_once(now());
    draw_screen(now());
    connections_->end(ended);
    for (const Connections::View& v : connections_->view()) summary_.streams.push_back(v.so_far);
    summary_.sleeps = completions_.sleeps();
    summary_.receives = plan_.receives;
    summary_.device = device_.name;
    if (!options_.quiet) summary_.nic = nic_.read();
  }

  void draw_screen(Instant at) {
    if (!options_.screen) return;
    screen_at_ = at + kScreenInterval;
    screen_.draw({.streams = connections_->view(),
                  .at = at,
                  .start = std::min(first_message_, at),
                  .cpu_seconds = cpu_seconds(),
                  .max_depth = completions_.reset_max_depth(),
                  .completions = completions_.entries(),
                  .sleeps = completions_.sleeps(),
                  .nic = nic_.latest()});
  }
  void log(const std::string& text) {
    if (options_.quiet) return;
    screen_.clear();
    line_(text);
    screen_at_ = {0};
  }

  ReceiveOptions options_;
  const Line& line_;
  VerbsDevice device_;
  const Plan plan_;
  Completions completions_;
  NicWatch nic_;
  std::unique_ptr<Connections> connections_;  // destroyed before the members above
  ReceiveSummary summary_;
  Instant end_ = kNever;
  Instant first_message_ = kNever;
  double first_cpu_ = 0;
  Screen screen_;
  Instant screen_at_{0};
};

}  // namespace

ReceiveSummary receive(const ReceiveOptions& options,
                       const std::function<void(const std::string&)>& line) {
  ReceiveOptions resolved = options;
  if (resolved.ip == 0 && !resolved.boards.empty())
    resolved.ip = source_address_to(resolved.boards.front());
  if (resolved.ip == 0) resolved.ip = 0x7F000001;
  if (resolved.numa_node >= 0) run_on_node(resolved.numa_node);
  return Receiver(resolved, line).run();
}

}  // namespace verbena::daqtool

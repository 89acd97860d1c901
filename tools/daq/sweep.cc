// Measures each point of two curves with one emulated board and a receiver in this process.
#include "tools/daq/sweep.h"

#include <fmt/core.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>

#include "daq/board.h"
#include "tools/daq/plot.h"
#include "tools/daq/recv.h"
#include "tools/daq/udp.h"

namespace verbena::daqtool {
namespace {

constexpr uint32_t kReceives = 1024;  // upper limit for the curve over sizes
constexpr uint64_t kDefaultWrap = 1u << 24;
constexpr std::pair<Poll, const char*> kModes[] = {
    {Poll::Busy, "busy"}, {Poll::Event, "event"}, {Poll::Hybrid, "hybrid"}};

// The emulated board: a child process that ends with this process.
class BoardProcess {
 public:
  BoardProcess(uint32_t ip, uint64_t wrap) {
    const std::string address = daq::print_ip(ip), bytes = std::to_string(wrap);
    const pid_t parent = ::getpid();
    sigset_t all, before;
    ::sigfillset(&all);
    ::sigprocmask(SIG_SETMASK, &all, &before);
    pid_ = ::fork();
    if (pid_ == 0) {
      // From here on a signal ends the child; the parent's handler would only record it.
      for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::signal(signal, SIG_DFL);
      ::sigprocmask(SIG_SETMASK, &before, nullptr);
      ::prctl(PR_SET_PDEATHSIG, SIGTERM);
      if (::getppid() != parent) ::_exit(1);
      if (std::freopen("/dev/null", "w", stdout) == nullptr) ::_exit(1);
      ::execl("/proc/self/exe", "verbena-daq", "fpga", "--listen", address.c_str(), "--wrap",
              bytes.c_str(), nullptr);
      ::_exit(127);
    }
    ::sigprocmask(SIG_SETMASK, &before, nullptr);
    if (pid_ < 0) throw ToolError(with_errno("fork"));
  }
  ~BoardProcess() {
    ::kill(pid_, SIGTERM);
    ::waitpid(pid_, nullptr, 0);
  }
  BoardProcess(const BoardProcess&) = delete;
  BoardProcess& operator=(const BoardProcess&) = delete;

 private:
  pid_t pid_;
};

struct Point {
  uint32_t bytes = 0;
  uint32_t receives = 0;
  double gbps = 0;
  double messages_per_second = 0;
  double cpu = 0;  // mean number of processors in use
  bool good = false;
};

// One message more than there are receives must fit before offsets wrap.
uint64_t wrap_for(uint32_t bytes, uint32_t receives) {
  return std::bit_ceil(std::max(kDefaultWrap, (uint64_t{receives} + 1) * bytes));
}

Point measure(const SweepOptions& options, uint32_t bytes, uint32_t receives, Poll poll) {
  ReceiveOptions run;
  run.boards = {options.board};
  run.op = options.op;
  run.message_bytes = bytes;
  run.receives = receives;
  run.wrap_bytes = wrap_for(bytes, receives);
  run.messages = UINT32_MAX;
  run.seconds = options.seconds;
  run.poll = poll;
  run.quiet = true;
  const ReceiveSummary got = receive(run, [](const std::string&) {});
  const StreamSummary& s = got.streams.front();
  Point p{.bytes = bytes, .receives = got.receives};
  p.gbps = got.gbps();
  if (got.seconds > 0) {
    p.messages_per_second = static_cast<double>(got.messages()) / got.seconds;
    p.cpu = got.cpu_seconds / got.seconds;
  }
  p.good = s.messages > 0 && s.wrong_messages == 0 && s.trouble.empty();
  return p;
}

std::string size_text(uint32_t bytes) {
  if (bytes >= 1u << 20 && bytes % (1u << 20) == 0) return fmt::format("{} MiB", bytes >> 20);
  if (bytes >= 1u << 10 && bytes % (1u << 10) == 0) return fmt::format("{} KiB", bytes >> 10);
  return fmt::format("{} B", bytes);
}

using Rows = std::vector<std::vector<Point>>;  // by size or depth, then by mode

void print_heading(const char* first) {
  fmt::print("{:>9} |", first);
  for (const auto& [mode, name] : kModes) fmt::print(" {:>8} {:>9} {:>5} |", name, "msg/s", "CPU");
  fmt::print("\n");
}

void print_row(const std::string& first, const std::vector<Point>& row) {
  fmt::print("{:>9} |", first);
  for (const Point& p : row) {
    fmt::print(" {:>8.3f} {:>9.0f} {:>4.0f}% |{}", p.gbps, p.messages_per_second, p.cpu * 100,
               p.good ? "" : " WRONG");
  }
  fmt::print("\n");
  std::fflush(stdout);
}

std::string json_of(const Rows& rows) {
  std::string text;
  for (const auto& row : rows) {
    for (size_t mode = 0; mode < row.size(); ++mode) {
      const Point& p = row[mode];
      text += fmt::format(
          "{}\n  {{\"bytes\": {}, \"receives\": {}, \"poll\": \"{}\", \"gbps\": {:.4f}, "
          "\"messages_per_second\": "
          "{:.1f}, \"cpu\": {:.3f}, \"good\": {}}}",
          text.empty() ? "" : ",", p.bytes, p.receives, kModes[mode].second, p.gbps,
          p.messages_per_second, p.cpu, p.good);
    }
  }
  return text;
}

Chart chart_of(const Rows& rows, const std::string& title, const std::string& axis,
               uint32_t Point::*x) {
  Chart chart{.title = title, .x_axis = axis, .curves = {}};
  for (size_t mode = 0; mode < std::size(kModes); ++mode) {
    Curve curve{.name = kModes[mode].second, .points = {}};
    for (const auto& row : rows) {
      if (mode < row.size())
        curve.points.push_back({static_cast<double>(row[mode].*x), row[mode].gbps});
    }
    chart.curves.push_back(std::move(curve));
  }
  return chart;
}

// The file is opened before the first measurement, so that an error shows before a long sweep.
class OutputFile {
 public:
  explicit OutputFile(std::string name) : name_(std::move(name)), file_(name_) {
    if (!file_) throw ToolError(with_errno("cannot write " + name_));
  }
  void write(const std::string& text) {
    file_ << text;
    if (!file_.flush()) throw ToolError(with_errno("cannot write " + name_));
    fmt::print("{}\n", name_);
  }

 private:
  std::string name_;
  std::ofstream file_;
};

}  // namespace

bool run_sweep(const SweepOptions& wanted) {
  SweepOptions options = wanted;
  if (options.sizes.empty())
    options.sizes = {64, 256, 1024, 4096, 5120, 16384, 65536, 262144, 1 << 20, 4 << 20};
  if (options.depths.empty()) options.depths = {1, 4, 16, 64, 256, 1024, 4096, 32768};
  std::optional<OutputFile> json, svg;
  if (!options.output.empty()) {
    json.emplace(options.output + ".json");
    svg.emplace(options.output + ".svg");
  }
  std::unique_ptr<BoardProcess> board;
  uint64_t wrap = 0;  // the present board's
  bool good = true;
  const size_t total = (options.sizes.size() + options.depths.size()) * std::size(kModes);
  size_t done = 0;
  const auto measure_row = [&](uint32_t bytes, uint32_t receives) {
    std::vector<Point> row;
    if (wrap != wrap_for(bytes, receives)) {
      wrap = wrap_for(bytes, receives);
      board.reset();
      board = std::make_unique<BoardProcess>(options.board, wrap);
    }
    for (const auto& [mode, name] : kModes) {
      if (interrupted()) return row;
      if (::isatty(STDERR_FILENO) != 0) fmt::print(stderr, "\r{} of {} ...\r", ++done, total);
      row.push_back(measure(options, bytes, receives, mode));
      good = good && row.back().good;
    }
    return row;
  };

  const char* const op = options.op == daq::TransferKind::Write ? "WRITE" : "SEND";
  fmt::print("{} from {} in Gb/s, {} s each; data checked\n\n", op, daq::print_ip(options.board),
             options.seconds);
  Rows by_size, by_depth;
  print_heading("message");
  for (const uint32_t bytes : options.sizes) {
    if (interrupted()) break;
    const auto receives =
        static_cast<uint32_t>(std::clamp<uint64_t>(kDefaultWrap / bytes - 1, 1, kReceives));
    by_size.push_back(measure_row(bytes, receives));
    print_row(size_text(bytes), by_size.back());
  }
  fmt::print("\n");
  print_heading("receives");
  for (const uint32_t receives : options.depths) {
    if (interrupted()) break;
    by_depth.push_back(measure_row(options.depth_bytes, receives));
    print_row(std::to_string(receives), by_depth.back());
  }
  if (json) {
    fmt::print("\n");
    json->write(
        fmt::format("{{\"operation\": \"{}\", \"seconds\": {}, \"over_size\": "
                    "[{}\n],\n\"over_receives\": [{}\n]}}\n",
                    op, options.seconds, json_of(by_size), json_of(by_depth)));
    svg->write(draw_svg(
        {chart_of(by_size, fmt::format("{}, one stream", op), "message size in bytes",
                  &Point::bytes),
         chart_of(by_depth, fmt::format("{}, messages of {}", op, size_text(options.depth_bytes)),
                  "receives posted", &Point::receives)}));
  }
  return good && !interrupted();
}

}  // namespace verbena::daqtool

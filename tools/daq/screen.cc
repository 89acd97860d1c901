// A table with a line for each stream, and one for all of them.
#include "tools/daq/screen.h"

#include <fmt/core.h>

#include <cstdio>

#include "daq/board.h"

namespace verbena::daqtool {

void Screen::draw(const std::vector<ScreenRow>& rows, Instant at, Instant start, double cpu_seconds,
                  int deepest) {
  const auto seconds = [](Duration d) { return static_cast<double>(d.ns) / 1e9; };
  const double interval = seconds(at - before_at_);
  const double total = seconds(at - start);
  const bool first = before_.empty();
  before_.resize(rows.size());
  const auto gbps = [](uint64_t bytes, double time) {
    return time > 0 ? static_cast<double>(bytes) * 8 / time / 1e9 : 0;
  };

  if (lines_ != 0) fmt::print("\033[{}A", lines_);
  fmt::print("\033[K{:>6} {:<15} {:>6} {:>9} {:>9} {:>12} {:>12} {:>7} {:>7} {:>7} {:>8}\n",
             "stream", "board", "QP", "Gb/s now", "mean", "messages", "packets", "wrong", "lost",
             "starved", "receives");
  uint64_t all_now = 0, all = 0, messages = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const StreamSummary& s = rows[i].so_far;
    const uint64_t fresh = first ? 0 : s.bytes - before_[i].bytes;
    all_now += fresh;
    all += s.bytes;
    messages += s.messages;
    fmt::print("\033[K{:>6} {:<15} {:>6} {:>9.3f} {:>9.3f} {:>12} {:>12} {:>7} {:>7} {:>7} {:>8}\n",
               i, daq::print_ip(s.board), s.board_queue_pair, gbps(fresh, interval),
               gbps(s.bytes, total), s.messages, s.packets, s.wrong_messages, s.lost, s.starved,
               rows[i].receives_posted);
    before_[i] = {s.messages, s.bytes};
  }
  fmt::print(
      "\033[K{:>6} {:<15} {:>6} {:>9.3f} {:>9.3f} {:>12}   CPU {:.0f} %, at most {} completions at "
      "once\n",
      "all", "", "", first ? 0 : gbps(all_now, interval), gbps(all, total), messages,
      first || interval <= 0 ? 0 : (cpu_seconds - before_cpu_) / interval * 100, deepest);
  std::fflush(stdout);
  lines_ = rows.size() + 2;
  before_at_ = at;
  before_cpu_ = cpu_seconds;
}

}  // namespace verbena::daqtool

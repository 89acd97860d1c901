// Draws a table with one line per stream, a line of totals and a line about the host.
#include "tools/daq/screen.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "daq/board.h"

namespace verbena::daqtool {
namespace {

constexpr size_t kOtherLines = 5;  // headings, totals, "and N more", footer, cursor
constexpr winsize kDefaultTerminal{.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};

winsize terminal() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row == 0 || size.ws_col == 0) {
    return kDefaultTerminal;
  }
  return size;
}

double seconds(Duration d) { return static_cast<double>(d.ns) / 1e9; }

double gbps(uint64_t bytes, double time) {
  return time > 0 ? static_cast<double>(bytes) * 8 / time / 1e9 : 0;
}

// 12345678 becomes 12,345,678.
std::string grouped(uint64_t value) {
  std::string text = std::to_string(value);
  for (size_t at = text.size(); at > 3;) text.insert(at -= 3, 1, ',');
  return text;
}

struct Cells {
  std::string stream, board, state;
  double now = 0, mean = 0;
  uint64_t messages = 0, packets = 0, wrong = 0, lost = 0, starved = 0, posted = 0;
};

std::string line_of(const Cells& c) {
  return fmt::format("{:>6}  {:<19} {:<9} {:>8.3f} {:>8.3f} {:>13} {:>14} {:>6} {:>6} {:>5} {:>6}",
                     c.stream, c.board, c.state, c.now, c.mean, grouped(c.messages),
                     grouped(c.packets), c.wrong, c.lost, c.starved, c.posted);
}

std::string headings() {
  return fmt::format("{:>6}  {:<19} {:<9} {:>8} {:>8} {:>13} {:>14} {:>6} {:>6} {:>5} {:>6}",
                     "stream", "board, QP", "state", "Gb/s now", "mean", "messages", "packets",
                     "wrong", "lost", "empty", "posted");
}

}  // namespace

std::vector<std::string> Screen::table_of(const Scene& scene, size_t max_rows) const {
  const double interval = seconds(scene.at - previous_.at);
  const double total = seconds(scene.at - scene.start);
  std::vector<std::string> lines{headings()};
  Cells all{.stream = "all", .board = "", .state = ""};
  for (size_t i = 0; i < scene.streams.size(); ++i) {
    const auto& [s, state, posted] = scene.streams[i];
    const uint64_t fresh = previous_.bytes.empty() ? 0 : s.bytes - previous_.bytes[i];
    const std::string board =
        s.board == 0 ? "" : fmt::format("{} {}", daq::print_ip(s.board), s.board_queue_pair);
    const Cells row{std::to_string(i),
                    board,
                    state,
                    gbps(fresh, interval),
                    gbps(s.bytes, total),
                    s.messages,
                    s.packets,
                    s.wrong_messages,
                    s.lost,
                    s.starved,
                    posted};
    if (i < max_rows) lines.push_back(line_of(row));
    all.now += row.now;
    all.mean += row.mean;
    all.messages += row.messages;
    all.packets += row.packets;
    all.wrong += row.wrong;
    all.lost += row.lost;
    all.starved += row.starved;
    all.posted += row.posted;
  }
  if (scene.streams.size() > max_rows)
    lines.push_back(fmt::format("{:>6}  and {} more", "", scene.streams.size() - max_rows));
  lines.push_back(line_of(all));
  return lines;
}

std::string Screen::footer_of(const Scene& scene) const {
  const double interval = seconds(scene.at - previous_.at);
  const bool first = previous_.bytes.empty() || interval <= 0;
  std::string text =
      fmt::format("{:>6}  {:.0f} s; CPU {:.0f} %, {:.0f} sleeps/s; CQ {} of {}", "",
                  seconds(scene.at - scene.start),
                  first ? 0 : (scene.cpu_seconds - previous_.cpu_seconds) / interval * 100,
                  first ? 0 : static_cast<double>(scene.sleeps - previous_.sleeps) / interval,
                  scene.max_depth, scene.completions);
  if (scene.nic) {
    text += fmt::format("; NIC: {} RNR NAKs, {} repeated, {} out of order",
                        scene.nic->rnr_naks_sent, scene.nic->repeated, scene.nic->out_of_order);
  }
  return text;
}

void Screen::clear() {
  if (lines_ != 0) fmt::print("\033[{}A\033[J", lines_);
  std::fflush(stdout);
  lines_ = 0;
}

void Screen::draw(const Scene& scene) {
  const winsize size = terminal();
  const size_t room = size.ws_row > kOtherLines ? size.ws_row - kOtherLines : 1;
  std::vector<std::string> lines = table_of(scene, room);
  lines.push_back(footer_of(scene));
  std::string picture = lines_ != 0 ? fmt::format("\033[{}A", lines_) : "";
  // Truncate long lines: a wrapped line would take two rows, and lines_ would be wrong.
  for (const std::string& line : lines) {
    picture += fmt::format("\r\033[K{}\n", line.substr(0, size.ws_col - 1u));
  }
  std::fputs(picture.c_str(), stdout);
  std::fflush(stdout);
  lines_ = lines.size();
  previous_ = {
      .bytes = {}, .at = scene.at, .cpu_seconds = scene.cpu_seconds, .sleeps = scene.sleeps};
  for (const auto& view : scene.streams) previous_.bytes.push_back(view.so_far.bytes);
}

}  // namespace verbena::daqtool

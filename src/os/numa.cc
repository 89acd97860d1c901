// Parses the kernel's CPU lists and moves the background thread between NUMA nodes.
#include "os/numa.h"

#include <charconv>
#include <cstdio>
#include <memory>

#include "os/processors.h"

namespace verbena::os {
namespace {

std::optional<std::string> read_line(const std::string& path) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "re"), std::fclose);
  char line[4096];
  if (file == nullptr || std::fgets(line, sizeof line, file.get()) == nullptr) return std::nullopt;
  std::string_view text(line);
  if (text.ends_with('\n')) text.remove_suffix(1);
  return std::string(text);
}

// Removes a number from the front of `text` and returns it.
std::optional<unsigned> take_number(std::string_view& text) {
  unsigned number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || number >= CPU_SETSIZE) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

}  // namespace

std::optional<cpu_set_t> parse_cpu_list(std::string_view text) {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  while (!text.empty()) {
    const auto first = take_number(text);
    if (!first) return std::nullopt;
    auto last = first;
    if (text.starts_with('-')) {
      text.remove_prefix(1);
      last = take_number(text);
      if (!last || *last < *first) return std::nullopt;
    }
    for (unsigned cpu = *first; cpu <= *last; ++cpu) CPU_SET(cpu, &cpus);
    if (text.empty()) break;
    if (!text.starts_with(',') || text.size() == 1) return std::nullopt;
    text.remove_prefix(1);
  }
  return cpus;
}

std::optional<cpu_set_t> cpus_on_node(unsigned node, const cpu_set_t& allowed,
                                      const std::string& nodes) {
  const auto online = read_line(nodes + "/online");
  if (!online || online->find_first_of(",-") == std::string::npos) return std::nullopt;
  const auto list = read_line(nodes + "/node" + std::to_string(node) + "/cpulist");
  const auto on_node = list ? parse_cpu_list(*list) : std::nullopt;
  if (!on_node) return std::nullopt;
  cpu_set_t cpus;
  CPU_AND(&cpus, &*on_node, &allowed);
  if (CPU_COUNT(&cpus) == 0) return std::nullopt;
  return cpus;
}

void Placement::begin() {
  // The thread that started this one may have confined itself to one processor.
  allowed_ = process_affinity();
  known_ = CPU_COUNT(&allowed_) != 0 && sched_setaffinity(0, sizeof allowed_, &allowed_) == 0;
}

void Placement::note_caller() {
  unsigned cpu = 0;
  noted_ = getcpu(&cpu, &wanted_) == 0;
}

void Placement::follow() {
  if (!known_ || !noted_ || wanted_ == placed_) return;
  placed_ = wanted_;
  const auto cpus = cpus_on_node(wanted_, allowed_);
  if (cpus) sched_setaffinity(0, sizeof *cpus, &*cpus);
}

}  // namespace verbena::os

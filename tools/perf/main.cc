// The program behind `verbena perf`: the command line, and the results as a table or as JSON. It is
// an ordinary RDMA program, which works with any libibverbs; `verbena perf` makes it load
// Verbena's.
#include <cstdio>
#include <string>
#include <vector>

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include "tools/finite_range.h"
#include "tools/perf/connection.h"
#include "tools/perf/sides.h"
#include "tools/standard_output.h"

namespace verbena::perf {
namespace {

constexpr int kDone = 0;
constexpr int kNotThere = 1;
constexpr int kUsage = 2;

std::string size_text(uint32_t size) {
  if (size >= 1u << 20 && size % (1u << 20) == 0) return fmt::format("{} MiB", size >> 20);
  if (size >= 1u << 10 && size % (1u << 10) == 0) return fmt::format("{} KiB", size >> 10);
  return fmt::format("{} B", size);
}

void print_heading(const std::string& host, const Link& link) {
  fmt::print("{} by {}, path MTU {}; bandwidth in Gb/s, latency in microseconds\n\n", host,
             link.device, link.path_mtu);
  fmt::print("{:>8} | {:^19} | {:^19} | {:^19}\n", "", "WRITE", "READ", "SEND");
  fmt::print("{:>8} |", "message");
  for (const char* end : {" |", " |", "\n"})
    fmt::print(" {:>9} {:>9}{}", "bandwidth", "latency", end);
  std::fflush(stdout);
}

void print_row(const SizeResult& r) {
  fmt::print("{:>8} |", size_text(r.size));
  fmt::print(" {:>9.2f} {:>9.2f} |", r.write.gbps, r.write.latency_us);
  fmt::print(" {:>9.2f} {:>9.2f} |", r.read.gbps, r.read.latency_us);
  fmt::print(" {:>9.2f} {:>9.2f}\n", r.send.gbps, r.send.latency_us);
  std::fflush(stdout);
}

void print_json(const std::string& host, const Link& link, const std::vector<SizeResult>& results) {
  const auto figures = [](const char* name, const Figures& f) {
    return fmt::format(
        "\"{}\": {{\"gbps\": {:.6g}, \"messages_per_second\": {:.6g}, \"latency_us\": {:.6g}}}",
        name, f.gbps, f.messages_per_second, f.latency_us);
  };
  fmt::print("{{\"host\": \"{}\", \"device\": \"{}\", \"path_mtu\": {}, \"results\": [", host,
             link.device, link.path_mtu);
  const char* separator = "\n";
  for (const SizeResult& r : results) {
    fmt::print("{} {{\"size\": {}, {}, {}, {}}}", separator, r.size, figures("write", r.write),
               figures("read", r.read), figures("send", r.send));
    separator = ",\n";
  }
  fmt::print("\n]}}\n");
}

int run_client(const ClientOptions& options, bool json) {
  Link link;
  std::vector<SizeResult> results;
  measure(
      options,
      [&](const Link& found) {
        link = found;
        if (!json) print_heading(options.host, found);
      },
      [&](const SizeResult& result) {
        results.push_back(result);
        if (!json) print_row(result);
      });
  if (json) {
    print_json(options.host, link, results);
  } else {
    fmt::print("\nLatency is half a round trip, the median; of READ, the whole time.\n");
  }
  return kDone;
}

int main(int argc, char** argv) {
  CLI::App app("Measure bandwidth and latency between two hosts.", "verbena perf");
  app.footer(
      "\nStart it with --listen on one host, then with that host's address on the other.\n"
      "\nExamples:\n"
      "  verbena perf --listen\n"
      "  verbena perf 192.0.2.1\n"
      "  verbena perf 192.0.2.1 --sizes 64,65536 --seconds 2 --json\n"
      "\nExit status: 0 if all measurements succeeded, 1 if not, 2 if the command line was wrong.");
  ServerOptions server;
  ClientOptions client;
  client.sizes = {8, 4096, 65536, 1 << 20};
  bool listen = false, json = false;
  uint16_t port = kDefaultPort;
  double seconds = 0.5;
  auto* const host =
      app.add_option("HOST", client.host, "Host on which the other side listens")->type_name("");
  auto* const listening =
      app.add_flag("--listen", listen, "Wait for the other side")->excludes(host);
  app.add_flag("--once", server.once, "With --listen: exit after one client")->needs(listening);
  app.add_option("-p,--port", port, fmt::format("RDMA port of both sides (default {})", port))
      ->type_name("PORT")
      ->check(CLI::Range(1, 65535));
  app.add_option("--sizes", client.sizes, "Message sizes in bytes, up to 4194304")
      ->type_name("BYTES,...")
      ->delimiter(',')
      ->check(CLI::Range(1u, kMaxMessage));
  app.add_option("--seconds", seconds, "Time for each of the six measurements of a size")
      ->type_name("TIME")
      ->check(finite_range(0.01, 60.0));
  app.add_flag("--json", json, "Print JSON, for programs");
  try {
    app.parse(argc, argv);
    if (!listen && client.host.empty()) throw CLI::ValidationError("HOST or --listen is missing");
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    fmt::print(stderr, "verbena perf: {}\nTry: verbena perf --help\n", error.what());
    return kUsage;
  }
  server.port = client.port = port;
  client.time = std::chrono::duration<double>(seconds);
  try {
    if (!listen) return run_client(client, json);
    serve(server);
    return kDone;
  } catch (const ToolError& error) {
    fmt::print(stderr, "verbena perf: {}\n", error.what());
    return kNotThere;
  }
}

}  // namespace
}  // namespace verbena::perf

int main(int argc, char** argv) {
  return verbena::checking_standard_output("verbena perf",
                                           [&] { return verbena::perf::main(argc, argv); });
}

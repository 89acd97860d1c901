// verbena perf: the interface of client and server, and the client's results.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace verbena::perf {

struct ServerOptions {
  uint16_t port = 0;
  bool once = false;  // exit after one client
};
void serve(const ServerOptions& options);

struct ClientOptions {
  std::string host;
  uint16_t port = 0;
  std::vector<uint32_t> sizes;
  std::chrono::duration<double> time{};  // of each measurement
};

struct Figures {
  double gbps = 0;
  double messages_per_second = 0;
  double latency_us = 0;  // median; half a round trip, for a READ the whole one
};

struct SizeResult {
  uint32_t size = 0;
  Figures write, read, send;
};

struct Link {
  std::string device;
  uint32_t path_mtu = 0;
};

// Connects, passes the link to `connected` and the figures of each size to `result`. Throws
// ToolError.
void measure(const ClientOptions& options, const std::function<void(const Link&)>& connected,
             const std::function<void(const SizeResult&)>& result);

}  // namespace verbena::perf

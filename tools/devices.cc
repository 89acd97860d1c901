// verbena devices: lists the usable devices, and the interfaces without a device with the reason.
#include <string>

#include <fmt/core.h>

#include "runtime/config.h"
#include "runtime/devices.h"
#include "runtime/failure_text.h"
#include "runtime/port_state.h"
#include "tools/doctor/findings.h"
#include "tools/tool.h"

namespace verbena::tool {
namespace {

using runtime::DeviceInfo;
using runtime::Discovery;
using runtime::gid_text;
using runtime::guid_text;
using runtime::PortState;

const char* kind_of(const wire::Gid& gid) {
  if (gid.is_ipv4()) return "IPv4";
  return gid.is_link_local() ? "IPv6, link-local" : "IPv6";
}

std::string mtu_text(const DeviceInfo& device) {
  const PortState& port = device.port;
  std::string text = fmt::format(
      "{} bytes: the largest that fits into the interface's MTU of {} with "
      "{} of headers",
      wire::bytes_of(port.active_mtu), port.interface_mtu, runtime::kMaxHeadersAroundPayload);
  if (port.active_mtu != wire::Mtu::k4096) {
    const uint32_t needed = runtime::interface_mtu_for(wire::Mtu::k4096);
    text += fmt::format(";\n              4096 needs {0}, on every hop: ip link set {1} mtu {0}",
                        needed, device.interface);
  }
  return text;
}

std::string speed_text(const PortState& port) {
  if (port.speed_mbps >= 1000) return fmt::format("{:g} Gb/s", port.speed_mbps / 1000.0);
  return fmt::format("{} Mb/s", port.speed_mbps);
}

void print_device(const DeviceInfo& device, bool verbose) {
  const PortState& port = device.port;
  fmt::print("{}\n", device.name);
  fmt::print("  interface   {}{}\n", device.interface,
             device.loopback ? " (loopback: for processes of this host)" : "");
  fmt::print("  port        {}\n", port.up ? "active" : "down: the interface has no carrier");
  fmt::print("  RoCE MTU    {}\n", mtu_text(device));
  fmt::print("  speed       {}{}\n", speed_text(port),
             device.loopback ? " (nominal, so that programs prefer a real interface)" : "");
  fmt::print("  GUID        {}\n", guid_text(device.guid));
  if (verbose) {
    fmt::print("  index       {}\n", device.interface_index);
    fmt::print("  link layer  Ethernet, transport RoCEv2 over UDP port 4791\n");
  }
  // The GID table that a program gets if it opens the device now.
  runtime::GidTable table;
  table.update(port.addresses);
  fmt::print("  GIDs        index  type     address\n");
  for (size_t i = 0; i < table.size(); ++i) {
    fmt::print("              {:<6} RoCEv2   {} ({})\n", i, runtime::to_text(table.at(i)),
               kind_of(table.at(i)));
    if (verbose) fmt::print("                              {}\n", gid_text(table.at(i)));
  }
  fmt::print("\n");
}

// One sentence per problem. Problems of a single device are printed with the device.
std::vector<std::string> problems_of(const Discovery& found) {
  std::vector<std::string> problems;
  for (Finding& finding : examine_devices(found)) {
    const bool said = finding.about == "devices" || finding.verdict == Verdict::Good;
    if (!said) problems.push_back(std::move(finding.text));
  }
  return problems;
}

void print_text(const Discovery& found, bool verbose) {
  if (found.devices.empty()) {
    fmt::print(
        "No usable RDMA device: no interface of this network namespace is up and has an "
        "address.\n\n");
  }
  for (const DeviceInfo& device : found.devices) print_device(device, verbose);
  if (!found.unusable.empty()) {
    fmt::print("Interfaces without a device:\n");
    for (const auto& [interface, why] : found.unusable) fmt::print("  {} {}\n", interface, why);
    fmt::print("\n");
  }
  const auto problems = problems_of(found);
  if (problems.empty()) {
    fmt::print("No problems found.\n");
    return;
  }
  fmt::print("Problems:\n");
  for (const std::string& problem : problems) fmt::print("  * {}\n", problem);
}

std::string json_device(const DeviceInfo& device) {
  std::string gids;
  for (size_t i = 0; i < device.port.addresses.size() && i < runtime::GidTable::kSize; ++i) {
    const wire::Gid& gid = device.port.addresses[i];
    gids += fmt::format("{}{{\"index\":{},\"type\":\"RoCE v2\",\"address\":{},\"gid\":{}}}",
                        i == 0 ? "" : ",", i, json_string(runtime::to_text(gid)),
                        json_string(gid_text(gid)));
  }
  return fmt::format(
      "{{\"name\":{},\"interface\":{},\"interface_index\":{},\"loopback\":{},\"guid\":{},\"up\":{},"
      "\"interface_mtu\":{},\"active_mtu\":{},\"speed_mbps\":{},\"gids\":[{}]}}",
      json_string(device.name), json_string(device.interface), device.interface_index,
      device.loopback, json_string(guid_text(device.guid)), device.port.up,
      device.port.interface_mtu, wire::bytes_of(device.port.active_mtu), device.port.speed_mbps,
      gids);
}

void print_json(const Discovery& found) {
  std::string devices;
  for (const DeviceInfo& device : found.devices) {
    devices += (devices.empty() ? "" : ",") + json_device(device);
  }
  std::string unusable;
  for (const auto& [interface, why] : found.unusable) {
    unusable += fmt::format("{}{{\"interface\":{},\"why\":{}}}", unusable.empty() ? "" : ",",
                            json_string(interface), json_string(why));
  }
  std::string problems;
  for (const std::string& problem : problems_of(found)) {
    problems += (problems.empty() ? "" : ",") + json_string(problem);
  }
  fmt::print("{{\"devices\":[{}],\"unusable\":[{}],\"problems\":[{}]}}\n", devices, unusable,
             problems);
}

}  // namespace

int list_devices(const DevicesOptions& options) {
  const Discovery found = runtime::discover_devices(runtime::config().devices);
  if (options.json) {
    print_json(found);
  } else {
    print_text(found, options.verbose);
  }
  return found.devices.empty() ? kNotThere : kDone;
}

}  // namespace verbena::tool

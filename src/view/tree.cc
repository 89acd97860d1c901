// Builds the view. Names and formats are those of the kernel's drivers/infiniband/core/sysfs.c.
#include "view/tree.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <functional>
#include <optional>

#include "runtime/port_state.h"

#ifndef VERBENA_VERSION
#define VERBENA_VERSION ""
#endif

namespace verbena::view {
namespace {

using runtime::DeviceInfo;

constexpr std::string_view kSys = "/sys";
constexpr std::string_view kClass = "/sys/class/infiniband";
constexpr std::string_view kVirtual = "/sys/devices/virtual";
constexpr std::string_view kDeviceNodes = "/dev/infiniband";
constexpr std::string_view kConnectionManager = "rdma_cm";

constexpr uint32_t kPortCapabilities = 0x04010000;  // connection management, IP-based GIDs
constexpr int kMaxLinks = 8;

// A file or link of one device, by its path in the device's folder. Counters are queried when the
// file is read, not when the folder is listed.
struct Entry {
  std::string path;
  std::function<std::string()> text;
  bool link = false;
  int refusal = 0;
};

[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...) {
  char text[128];
  va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(text, sizeof text, pattern, arguments);
  va_end(arguments);
  return text;
}

// The name of a counter in the view, and the counters of Verbena that it is the sum of.
struct ShownCounter {
  const char* path;
  std::vector<std::string_view> of;
  uint64_t unit = 1;
};
const std::vector<ShownCounter>& shown_counters() {
  // The first folder has the specification's names, with data in words of four bytes. The second
  // has the names of hardware and of the kernel's Soft-RoCE.
  static const auto& all = *new std::vector<ShownCounter>{
      {"counters/port_xmit_data", {"_bytes_sent"}, 4},
      {"counters/port_rcv_data", {"_bytes_received"}, 4},
      {"counters/port_xmit_packets", {"packets_sent"}},
      {"counters/port_rcv_packets", {"packets_received"}},
      {"counters/port_rcv_errors", {"udp_icrc_errors", "udp_too_short", "malformed_packets"}},
      {"counters/port_xmit_discards", {"udp_send_drops"}},
      {"hw_counters/sent_pkts", {"packets_sent"}},
      {"hw_counters/rcvd_pkts", {"packets_received"}},
      {"hw_counters/duplicate_request", {"duplicate_requests"}},
      {"hw_counters/out_of_sequence", {"out_of_sequence"}},
      {"hw_counters/packet_seq_err", {"naks_sequence_received"}},
      {"hw_counters/implied_nak_seq_err", {"implied_naks"}},
      {"hw_counters/local_ack_timeout_err", {"timeouts"}},
      {"hw_counters/rnr_nak_retry_err", {"rnr_naks_received"}},
      {"hw_counters/out_of_buffer", {"rnr_naks_sent"}},
      {"hw_counters/retry_exceeded_err", {"retry_exceeded"}},
      {"hw_counters/retry_rnr_exceeded_err", {"rnr_retry_exceeded"}},
      {"hw_counters/rx_icrc_encapsulated", {"udp_icrc_errors"}},
      {"hw_counters/np_cnp_sent", {"np_cnp_sent"}},
      {"hw_counters/np_ecn_marked_roce_packets", {"np_ecn_marked_roce_packets"}},
      {"hw_counters/rp_cnp_handled", {"rp_cnp_handled"}},
      {"hw_counters/rp_cnp_ignored", {"rp_cnp_ignored"}},
  };
  return all;
}

// A mask of all CPUs in the kernel's notation: groups of 32 bits, highest first.
std::string all_processors() {
  const long count = std::max(1L, ::sysconf(_SC_NPROCESSORS_CONF));
  std::string text;
  for (long group = (count - 1) / 32; group >= 0; --group) {
    const long bits = std::min(32L, count - group * 32);
    text += format(text.empty() ? "%x" : ",%08x", static_cast<unsigned>((uint64_t{1} << bits) - 1));
  }
  return text;
}

std::string parent_of(std::string_view path) {
  return std::string(path.substr(0, path.rfind('/')));
}

// Returns an absolute path without ".", ".." and double slashes.
std::string normalized(std::string_view base, std::string_view path) {
  std::string result = path.starts_with('/') ? "" : std::string(base == "/" ? "" : base);
  while (!path.empty()) {
    const std::string_view name = path.substr(0, path.find('/'));
    path.remove_prefix(std::min(path.size(), name.size() + 1));
    if (name.empty() || name == ".") continue;
    if (name == "..") {
      result = parent_of(result);
    } else {
      result += "/" + std::string(name);
    }
  }
  return result.empty() ? "/" : result;
}

// The device's folder is below that of its hardware, as in the kernel.
std::string home_of(const DeviceInfo& device, const std::string& hardware) {
  return (hardware.empty() ? std::string(kVirtual) : hardware) + "/infiniband/" + device.name;
}

class DeviceFolder {
 public:
  DeviceFolder(const Machine& machine, const DeviceInfo& device, const std::string& hardware)
      : machine_(machine), device_(device), home_(home_of(device, hardware)) {
    add_device(hardware);
    add_port();
    add_gids();
    add_counters();
  }

  // `path` is relative to the folder; empty for the folder itself.
  Node look_up(std::string_view path) const {
    Node node{.path = home_ + (path.empty() ? "" : "/") + std::string(path)};
    for (const Entry& e : entries_) {
      if (e.path == path) {
        node.kind = e.link ? Node::Kind::Link : Node::Kind::File;
        node.text = e.refusal == 0 ? e.text() : "";
        node.refusal = e.refusal;
        return node;
      }
      if (e.link && path.starts_with(e.path + "/")) {
        node.kind = Node::Kind::Elsewhere;
        node.path = normalized(home_, e.text() + std::string(path.substr(e.path.size())));
        return node;
      }
      const std::string prefix = path.empty() ? "" : std::string(path) + "/";
      if (!e.path.starts_with(prefix)) continue;
      node.kind = Node::Kind::Directory;
      const std::string rest = e.path.substr(prefix.size());
      const std::string name = rest.substr(0, rest.find('/'));
      if (node.names.empty() || node.names.back() != name) node.names.push_back(name);
    }
    return node;
  }

 private:
  void add(std::string path, std::string text) {
    entries_.push_back({std::move(path), [text = std::move(text)] { return text + "\n"; }});
  }

  void add_device(const std::string& hardware) {
    add("board_id", "VERBENA");
    if (!hardware.empty()) {
      const std::string name = hardware.substr(hardware.rfind('/'));
      entries_.push_back({"device", [name] { return "../../.." + name; }, true});
    } else {
      add("device/local_cpulist", format("0-%ld", ::sysconf(_SC_NPROCESSORS_CONF) - 1));
      add("device/local_cpus", all_processors());
      add("device/numa_node", "-1");
    }
    add("fw_ver", "verbena " VERBENA_VERSION);
    add("hca_type", "Verbena");
    add("hw_rev", "0");
    add("node_desc", device_.name);
    add("node_guid", runtime::guid_text(device_.guid));
    add("node_type", "1: CA");
    add("parent", device_.interface);
    add("sys_image_guid", runtime::guid_text(device_.guid));
  }

  void add_port() {
    const runtime::LinkRate& rate = runtime::link_rate_for(device_.port.speed_mbps);
    add("ports/1/cap_mask", format("0x%08x", kPortCapabilities));
    add("ports/1/lid", "0x0");
    add("ports/1/lid_mask_count", "0");
    add("ports/1/link_layer", "Ethernet");
    add("ports/1/phys_state", device_.port.up ? "5: LinkUp" : "3: Disabled");
    add("ports/1/rate", format("%g Gb/sec (%uX %s)", rate.mbps / 1000.0, rate.lanes, rate.name));
    add("ports/1/sm_lid", "0x0");
    add("ports/1/sm_sl", "0");
    add("ports/1/state", device_.port.up ? "4: ACTIVE" : "1: DOWN");
    add("ports/1/pkeys/0", "0xffff");
  }

  void add_gids() {
    runtime::GidTable table;
    table.update(device_.port.addresses);
    for (size_t i = 0; i < runtime::GidTable::kSize; ++i) {
      add("ports/1/gids/" + std::to_string(i), runtime::gid_text(table.at(i)));
    }
    // A GID entry without an address has neither type nor interface. As in the kernel, the file
    // exists and reading it fails.
    for (const auto& [folder, text] :
         {std::pair<std::string, std::string>{"types", "RoCE v2"}, {"ndevs", device_.interface}}) {
      for (size_t i = 0; i < runtime::GidTable::kSize; ++i) {
        add("ports/1/gid_attrs/" + folder + "/" + std::to_string(i), text);
        if (table.at(i).is_zero()) entries_.back().refusal = EINVAL;
      }
    }
  }

  void add_counters() {
    for (const ShownCounter& shown : shown_counters()) {
      entries_.push_back({"ports/1/" + std::string(shown.path), [this, &shown] {
                            uint64_t sum = 0;
                            for (const auto name : shown.of)
                              sum += machine_.counter(device_.name, name);
                            return std::to_string(sum / shown.unit) + "\n";
                          }});
    }
    add("ports/1/hw_counters/lifespan", "10");
  }

  const Machine& machine_;
  const DeviceInfo& device_;
  const std::string home_;
  std::vector<Entry> entries_;
};

// Returns the rest of `path` after `folder`: "" for the folder itself, nullopt for a path outside
// it.
std::optional<std::string_view> within(std::string_view folder, std::string_view path) {
  if (!path.starts_with(folder)) return std::nullopt;
  path.remove_prefix(folder.size());
  if (path.empty()) return path;
  if (path.front() != '/') return std::nullopt;
  return path.substr(1);
}

Node device_node(const std::vector<DeviceInfo>& devices, std::string_view name) {
  Node node{.path = std::string(kDeviceNodes)};
  if (name.empty()) {
    node.kind = Node::Kind::Directory;
    for (const DeviceInfo& d : devices) node.names.push_back(runtime::uverbs_name(d));
    node.names.emplace_back(kConnectionManager);
    return node;
  }
  node.path += "/" + std::string(name);
  const auto device = std::ranges::find(devices, name, runtime::uverbs_name);
  if (device != devices.end() || name == kConnectionManager) {
    node.kind = Node::Kind::CharacterDevice;
    node.minor = device != devices.end() ? device->interface_index : 0;
  }
  return node;
}

// Resolves one step. Stops at the first link on the path.
Node step(const Machine& machine, const std::vector<DeviceInfo>& devices, const std::string& path) {
  if (const auto name = within(kDeviceNodes, path)) return device_node(devices, *name);
  if (const auto rest = within(kClass, path)) {
    Node node{.path = path};
    if (rest->empty()) {
      node.kind = Node::Kind::Directory;
      for (const DeviceInfo& d : devices) node.names.push_back(d.name);
      return node;
    }
    const std::string_view name = rest->substr(0, rest->find('/'));
    const auto device = std::ranges::find(devices, name, &DeviceInfo::name);
    if (device == devices.end()) return node;
    const std::string home = home_of(*device, machine.hardware(*device));
    if (rest->size() == name.size()) {
      node.kind = Node::Kind::Link;
      node.text = "../.." + home.substr(kSys.size());
    } else {
      node.kind = Node::Kind::Elsewhere;
      node.path = home + std::string(rest->substr(name.size()));
    }
    return node;
  }
  Node homes{.path = path};  // the parent of device folders
  for (const DeviceInfo& device : devices) {
    const std::string hardware = machine.hardware(device);
    const std::string home = home_of(device, hardware);
    if (const auto inside = within(home, path)) {
      return DeviceFolder(machine, device, hardware).look_up(*inside);
    }
    if (parent_of(home) != path) continue;
    homes.kind = Node::Kind::Directory;
    homes.names.push_back(device.name);
  }
  if (homes.kind != Node::Kind::None) return homes;
  return {.kind = Node::Kind::Elsewhere, .path = path};
}

}  // namespace

bool may_be_shown(std::string_view path) {
  return path.find("infiniband") != std::string_view::npos;
}

std::optional<Node> look_up(const Machine& machine, std::string_view base, std::string_view path,
                            LastLink last) {
  std::string at = normalized(base, path);
  if (path.ends_with('/') || path.ends_with("/.")) last = LastLink::Follow;
  // The kernel cannot resolve ".." from a directory that it does not have.
  const std::string_view start = path.starts_with('/') ? path : base;
  bool ours = within(kClass, start) || within(kDeviceNodes, start);
  const std::vector<DeviceInfo> devices = machine.devices();
  for (int links = 0; links < kMaxLinks; ++links) {
    Node node = step(machine, devices, at);
    const bool outside = node.kind == Node::Kind::Elsewhere && node.path == at;
    const bool follow = node.kind == Node::Kind::Link && last == LastLink::Follow;
    if (outside && !ours) return std::nullopt;
    if (outside || (node.kind != Node::Kind::Elsewhere && !follow)) return node;
    at = follow ? normalized(parent_of(at), node.text) : node.path;
    ours = true;
  }
  return Node{};
}

}  // namespace verbena::view

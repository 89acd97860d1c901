// Decides which interfaces are devices, in which order, and why the others are not.
#include "runtime/devices.h"

#include <endian.h>
#include <fcntl.h>
#include <net/if.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <span>
#include <string_view>

#include "base/prng.h"
#include "runtime/interfaces.h"
#include "runtime/port_state.h"

namespace verbena::runtime {
namespace {

constexpr std::string_view kPrefix = "verbena_";

// Bits of an EUI-64: locally administered; group address.
constexpr uint64_t kLocalBit = uint64_t{2} << 56;
constexpr uint64_t kGroupBit = uint64_t{1} << 56;

// Stable for this installation; nothing secret depends on it.
std::string host_id() {
  std::array<char, 256> name{};
  if (const int file = ::open("/etc/machine-id", O_RDONLY | O_CLOEXEC); file >= 0) {
    const ssize_t n = ::read(file, name.data(), 32);  // 32 hexadecimal digits and a newline
    ::close(file);
    if (n == 32) return {name.data(), 32};
    name.fill(0);
  }
  if (::gethostname(name.data(), name.size() - 1) == 0) return name.data();
  return {};
}

bool has_mac(const Interface& link) {
  return link.hardware_address.size() == 6 &&
         std::ranges::any_of(link.hardware_address, [](uint8_t byte) { return byte != 0; });
}

// EUI-64 from the MAC address as IPv6 makes it; Soft-RoCE has the same GUID on the same interface.
uint64_t guid_from_mac(const std::vector<uint8_t>& mac) {
  const std::array<uint8_t, 8> bytes = {
      static_cast<uint8_t>(mac[0] ^ 2), mac[1], mac[2], 0xFF, 0xFE, mac[3], mac[4], mac[5]};
  uint64_t guid = 0;
  for (const uint8_t byte : bytes) guid = guid << 8 | byte;
  return guid;
}

uint64_t guid_from_name(const std::string& interface) {
  uint64_t hash = 0xCBF29CE484222325u;  // FNV-1a
  for (const char c : interface + '\0' + host_id()) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
  }
  const uint64_t spread = Prng(hash).next();
  return (spread | kLocalBit) & ~kGroupBit;
}

// `links` is sorted by index. VLANs and bridges share the MAC address of another interface. The
// first one gets the GUID made from it.
uint64_t guid_of(const Interface& link, const std::vector<Interface>& links) {
  if (!has_mac(link)) return guid_from_name(link.name);
  const auto first = std::ranges::find(links, link.hardware_address, &Interface::hardware_address);
  return first->index == link.index ? guid_from_mac(link.hardware_address)
                                    : guid_from_name(link.name);
}

// The reason why this interface is no device; empty if it is one. An interface without a carrier
// (docker0, virbr0) would be a useless entry in the list, so it is a device only if VERBENA_DEVICES
// names it.
std::string obstacle(const Interface& link, const PortState& port, bool named) {
  if ((link.flags & IFF_UP) == 0) return "is down: ip link set " + link.name + " up";
  if (port.addresses.empty()) {
    if (link.addresses.empty()) {
      return "has no IP address: ip address add ADDRESS/PREFIX dev " + link.name;
    }
    const bool waiting = std::ranges::any_of(
        link.addresses, [](const InterfaceAddress& a) { return a.tentative && !a.duplicate; });
    return waiting ? "has only tentative addresses yet (duplicate address detection takes a second)"
                   : "has only addresses that another host has too (duplicate address detection)";
  }
  if (!port.up && !named) {
    return "has no carrier (no cable, or nothing attached to it); naming it in VERBENA_DEVICES "
           "makes it a device nevertheless";
  }
  return {};
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> words;
  std::string word;
  for (const char c : list + ',') {
    if (c != ',' && c != ' ' && c != '\t') {
      word += c;
    } else if (!word.empty()) {
      words.push_back(std::move(word));
      word.clear();
    }
  }
  return words;
}

// VERBENA_DEVICES may contain interface names and device names.
bool is_named(const Interface& link, const std::string& word) {
  return word == link.name || word == std::string(kPrefix) + link.name;
}

class Finder {
 public:
  Finder(std::vector<Interface> links, const std::string& selection)
      : links_(std::move(links)), words_(split(selection)) {}

  Discovery run() {
    if (words_.empty()) {
      take_all();
    } else if (words_ == std::vector<std::string>{"none"}) {
      leave_others("not used: VERBENA_DEVICES is none");
    } else {
      take_named();
      leave_others("not selected by VERBENA_DEVICES");
    }
    return std::move(found_);
  }

 private:
  void take_all() {
    for (const bool loopback : {false, true}) {
      for (const Interface& link : links_) {
        if (((link.flags & IFF_LOOPBACK) != 0) == loopback) consider(link, false);
      }
    }
  }

  void take_named() {
    for (const std::string& word : words_) {
      const auto link =
          std::ranges::find_if(links_, [&](const Interface& l) { return is_named(l, word); });
      if (link != links_.end()) {
        if (!considered(*link)) consider(*link, true);
      } else {
        found_.unusable.push_back(
            {word, "is named by VERBENA_DEVICES, but there is no such interface"});
      }
    }
  }

  void leave_others(const char* why) {
    for (const Interface& link : links_) {
      if (!considered(link)) found_.unusable.push_back({link.name, why});
    }
  }

  bool considered(const Interface& link) const {
    return std::ranges::find(found_.devices, link.name, &DeviceInfo::interface) !=
               found_.devices.end() ||
           std::ranges::find(found_.unusable, link.name, &UnusableInterface::interface) !=
               found_.unusable.end();
  }

  void consider(const Interface& link, bool named) {
    PortState port = port_state_of(link);
    if (std::string why = obstacle(link, port, named); !why.empty()) {
      found_.unusable.push_back({link.name, std::move(why)});
      return;
    }
    DeviceInfo device;
    device.name = std::string(kPrefix) + link.name;
    device.interface = link.name;
    device.interface_index = link.index;
    device.loopback = (link.flags & IFF_LOOPBACK) != 0;
    device.guid = guid_of(link, links_);
    device.port = std::move(port);
    found_.devices.push_back(std::move(device));
  }

  const std::vector<Interface> links_;
  const std::vector<std::string> words_;
  Discovery found_;
};

// Two bytes a group.
std::string groups(std::span<const std::byte> bytes) {
  std::string text;
  char group[8];
  for (size_t i = 0; i + 1 < bytes.size(); i += 2) {
    std::snprintf(group, sizeof group, "%s%02x%02x", i == 0 ? "" : ":",
                  std::to_integer<unsigned>(bytes[i]), std::to_integer<unsigned>(bytes[i + 1]));
    text += group;
  }
  return text;
}

}  // namespace

std::string guid_text(uint64_t guid) {
  const uint64_t big_endian = htobe64(guid);
  return groups(std::as_bytes(std::span(&big_endian, 1)));
}

std::string gid_text(const wire::Gid& gid) { return groups(gid.bytes); }

Discovery discover_devices(const std::string& selection) {
  Interfaces interfaces = read_interfaces();
  if (interfaces.error != 0) {
    Discovery nothing;
    nothing.unusable.push_back({"(all)", "the kernel does not list its interfaces over netlink: " +
                                             std::string(std::strerror(interfaces.error))});
    return nothing;
  }
  return Finder(std::move(interfaces.all), selection).run();
}

}  // namespace verbena::runtime

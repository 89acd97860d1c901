// Queries sysfs for hardware behind an interface, and the driver for UDP segmentation.
#include "datapath/udp/egress.h"

#include <dirent.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "os/plain_socket.h"
#include "os/unique_fd.h"

namespace verbena::datapath {
namespace {

constexpr int kStackDepth = 4;  // a VLAN on a bond on a NIC, and one more

// Whether the interface, or one that it is stacked on, is a hardware device.
bool has_hardware(const std::string& name, int depth) {
  const std::string folder = "/sys/class/net/" + name;
  if (::access((folder + "/device").c_str(), F_OK) == 0) return true;
  DIR* const dir = depth > 0 ? ::opendir(folder.c_str()) : nullptr;
  if (dir == nullptr) return false;
  bool found = false;
  while (const dirent* entry = ::readdir(dir)) {
    constexpr std::string_view kLower = "lower_";
    const std::string_view file = entry->d_name;
    if (!file.starts_with(kLower)) continue;
    found = has_hardware(std::string(file.substr(kLower.size())), depth - 1);
    if (found) break;
  }
  ::closedir(dir);
  return found;
}

bool ethtool(int fd, const std::string& name, void* command) {
  ifreq request{};
  std::strncpy(request.ifr_name, name.c_str(), IFNAMSIZ - 1);
  request.ifr_data = static_cast<char*>(command);
  return ::ioctl(fd, SIOCETHTOOL, &request) == 0;
}

// The driver's feature of that name; nothing if the query fails.
std::optional<bool> feature(const std::string& name, const char* wanted) {
  const os::UniqueFd fd = os::plain_socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC);
  if (!fd.valid()) return std::nullopt;

  alignas(ethtool_sset_info) char info_bytes[sizeof(ethtool_sset_info) + sizeof(uint32_t)] = {};
  auto* const info = reinterpret_cast<ethtool_sset_info*>(info_bytes);
  info->cmd = ETHTOOL_GSSET_INFO;
  info->sset_mask = 1ull << ETH_SS_FEATURES;
  if (!ethtool(fd.get(), name, info) || info->sset_mask == 0) return std::nullopt;
  uint32_t count = 0;
  std::memcpy(&count, info_bytes + sizeof(ethtool_sset_info), sizeof count);
  if (count == 0 || count > 4096) return std::nullopt;

  std::vector<uint64_t> names_bytes(
      (sizeof(ethtool_gstrings) + size_t{count} * ETH_GSTRING_LEN + 7) / 8);
  auto* const names = reinterpret_cast<ethtool_gstrings*>(names_bytes.data());
  names->cmd = ETHTOOL_GSTRINGS;
  names->string_set = ETH_SS_FEATURES;
  names->len = count;
  if (!ethtool(fd.get(), name, names)) return std::nullopt;

  const uint32_t blocks = (count + 31) / 32;
  std::vector<uint64_t> bits_bytes(
      (sizeof(ethtool_gfeatures) + blocks * sizeof(ethtool_get_features_block) + 7) / 8);
  auto* const bits = reinterpret_cast<ethtool_gfeatures*>(bits_bytes.data());
  bits->cmd = ETHTOOL_GFEATURES;
  bits->size = blocks;
  if (!ethtool(fd.get(), name, bits)) return std::nullopt;

  const char* const strings = reinterpret_cast<const char*>(names + 1);
  const auto* const block = reinterpret_cast<const ethtool_get_features_block*>(bits + 1);
  for (uint32_t i = 0; i < count; ++i) {
    if (std::strncmp(strings + size_t{i} * ETH_GSTRING_LEN, wanted, ETH_GSTRING_LEN) == 0) {
      return (block[i / 32].active >> (i % 32) & 1) != 0;
    }
  }
  return false;
}

}  // namespace

bool segments_in_hardware(uint32_t interface_index) {
  char name[IF_NAMESIZE];
  if (::if_indextoname(interface_index, name) == nullptr) return false;
  if (!has_hardware(name, kStackDepth)) return false;
  return feature(name, "tx-udp-segmentation").value_or(true);
}

}  // namespace verbena::datapath

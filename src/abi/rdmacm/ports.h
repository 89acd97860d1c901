// Which ports are taken, in this process and on this host. A port that a program binds is held by
// an abstract Unix socket of that name: the kernel makes names exclusive and frees them however the
// process dies. Source ports of connections come out of blocks, so that a thousand connections do
// not need a thousand descriptors.
#pragma once

#include <bitset>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "cm/ip_addressing.h"
#include "cm/parameters.h"
#include "os/unique_fd.h"

namespace verbena::rdmacm {

class Ports;

// What an identifier holds of a port space.
struct PortBinding {
  cm::PortSpace space = cm::PortSpace::Tcp;
  uint16_t port = 0;                   // 0: holds nothing
  std::optional<wire::Gid> address{};  // none: every address of the family
  uint32_t scope = 0;
  cm::Family family = cm::Family::Both;
  bool reuse = false;      // others who say so too may have it, until one listens
  bool exclusive = false;  // the names below are held
  bool from_block = false;
  std::vector<os::UniqueFd> names{};
};

class Ports {
 public:
  // Takes binding.port, or any if it is 0. EACCES; EADDRINUSE; EADDRNOTAVAIL when every port is
  // taken.
  Status bind(PortBinding& binding);
  // A source port for a connection: nobody can call it, so it excludes only other source ports.
  Status bind_source(PortBinding& binding);
  // From now on nobody else may listen there.
  Status make_exclusive(PortBinding& binding);
  void release(PortBinding& binding);

  // Around fork(): the child holds nothing, lest ports stay taken when its parent is gone.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }
  void abandon();

 private:
  static constexpr size_t kBlockPorts = 64;
  struct Block {
    cm::PortSpace space;
    uint16_t first;
    os::UniqueFd name;
    std::bitset<kBlockPorts> used{};
    size_t next = 0;  // ports are not given again at once
  };

  Status bind_exactly(PortBinding& binding);
  Result<uint16_t> take_from_blocks(cm::PortSpace space);
  Result<Block*> block_with_room(cm::PortSpace space);
  void give_to_block(cm::PortSpace space, uint16_t port);
  bool is_source(cm::PortSpace space, uint16_t port) const;
  Status hold_names(PortBinding& binding);

  std::mutex mutex_;
  std::unordered_map<uint32_t, std::vector<PortBinding*>> bound_;  // by space and port
  std::vector<Block> blocks_;
};

}  // namespace verbena::rdmacm

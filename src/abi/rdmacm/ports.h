// The ports in use, in this process and on this host. A port that a program binds is held by an
// abstract Unix socket of that name: the kernel makes names exclusive and frees them when the
// process ends, even by a kill. Source ports of connections are allocated in blocks, so that a
// thousand connections do not need a thousand descriptors.
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

// A port that an identifier has bound.
struct PortBinding {
  cm::PortSpace space = cm::PortSpace::Tcp;
  uint16_t port = 0;                   // 0: none
  std::optional<wire::Gid> address{};  // none: every address of the family
  uint32_t scope = 0;
  cm::Family family = cm::Family::Both;
  bool reuse = false;      // shared with other reusing bindings, until one of them listens
  bool exclusive = false;  // the names below are held
  bool from_block = false;
  std::vector<os::UniqueFd> names{};
};

class Ports {
 public:
  // Binds binding.port, or any port if it is 0. Errors: EACCES; EADDRINUSE; EADDRNOTAVAIL if every
  // port is taken.
  Status bind(PortBinding& binding);
  // Binds a source port of a connection. No peer can connect to it, so it excludes only other
  // source ports.
  Status bind_source(PortBinding& binding);
  // No other binding may listen there from now on.
  Status make_exclusive(PortBinding& binding);
  void release(PortBinding& binding);

  // Fork handlers.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  static constexpr size_t kBlockPorts = 64;
  struct Block {
    cm::PortSpace space;
    uint16_t first;
    os::UniqueFd name;
    std::bitset<kBlockPorts> used{};
    size_t next = 0;  // delays the reuse of a port
  };

  Status bind_exactly(PortBinding& binding);
  Result<uint16_t> take_from_blocks(cm::PortSpace space);
  Result<Block*> block_with_room(cm::PortSpace space);
  void return_to_block(cm::PortSpace space, uint16_t port);
  bool is_source(cm::PortSpace space, uint16_t port) const;
  Status hold_names(PortBinding& binding);

  std::mutex mutex_;
  std::unordered_map<uint32_t, std::vector<PortBinding*>> bound_;  // by space and port
  std::vector<Block> blocks_;
};

}  // namespace verbena::rdmacm

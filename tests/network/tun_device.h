// A TUN device in a network namespace: what the namespace sends through it can be read here, what
// is written here is received there.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>

#include "os/unique_fd.h"

namespace verbena::network {

// This system does not permit TUN devices or namespaces to this user. what() says which and why.
struct NotPermitted : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Interface {
  std::string name;
  std::string ipv4;  // with a prefix of 24 bits
  std::string ipv6;  // with a prefix of 64 bits
  int mtu = 1500;
};

class TunDevice {
 public:
  // Creates the device in the namespace of that file (/proc/PID/ns/net) and sets it up. The calling
  // thread returns to its own namespace.
  TunDevice(const std::string& namespace_file, const Interface& interface);

  int fd() const { return fd_.get(); }
  // Reads one packet; empty if there is none.
  std::span<const uint8_t> read();
  bool write(std::span<const uint8_t> packet);
  // Packets that the kernel dropped because nobody read the device in time.
  uint64_t unread_drops() const;

 private:
  os::UniqueFd namespace_;
  os::UniqueFd fd_;
  std::string name_;
};

}  // namespace verbena::network

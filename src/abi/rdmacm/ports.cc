// Names, conflicts and blocks. A name contains port space, port and address; "4" and "6" stand for
// every IPv4 or IPv6 address. A process that binds one address claims its name and then checks the
// wildcard names; a process that binds the wildcard does the reverse. So at least one of two
// conflicting bindings fails.
#include "abi/rdmacm/ports.h"

#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <utility>

#include "abi/rdmacm/addresses.h"
#include "os/plain_socket.h"

namespace verbena::rdmacm {
namespace {

using cm::Family;
using os::UniqueFd;

constexpr Error kInUse{EADDRINUSE, "the port is taken on this address"};
constexpr Error kNotAllowed{EACCES,
                            "ports below net.ipv4.ip_unprivileged_port_start take "
                            "CAP_NET_BIND_SERVICE"};
constexpr Error kNoPorts{EADDRNOTAVAIL,
                         "every ephemeral port is taken (net.ipv4.ip_local_port_range)"};

uint32_t key_of(cm::PortSpace space, uint16_t port) {
  return uint32_t{static_cast<uint16_t>(space)} << 16 | port;
}

bool covers(Family family, const wire::Gid& address) {
  return family == Family::Both || (family == Family::Ipv4) == address.is_ipv4();
}

bool collide(const PortBinding& a, const PortBinding& b) {
  if (a.address && b.address) return *a.address == *b.address && a.scope == b.scope;
  if (a.address) return covers(b.family, *a.address);
  if (b.address) return covers(a.family, *b.address);
  return a.family == b.family || a.family == Family::Both || b.family == Family::Both;
}

// --- abstract names

struct Name {
  sockaddr_un address{};
  socklen_t size = 0;

  explicit Name(const std::string& text) {
    address.sun_family = AF_UNIX;
    const size_t length = std::min(text.size(), sizeof address.sun_path - 1);
    std::memcpy(address.sun_path + 1, text.data(), length);
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  }
  const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&address); }
};

UniqueFd unix_socket() { return UniqueFd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)); }

Result<UniqueFd> hold(const std::string& text) {
  UniqueFd fd = unix_socket();
  if (!fd.valid()) return Error{errno, "cannot hold a port (too many open files?)"};
  const Name name(text);
  if (::bind(fd.get(), name.raw(), name.size) != 0) return kInUse;
  return fd;
}

bool is_held(const std::string& text) {
  const UniqueFd fd = unix_socket();
  const Name name(text);
  return fd.valid() && ::connect(fd.get(), name.raw(), name.size) == 0;
}

std::string prefix_of(const PortBinding& b) {
  char text[48];
  std::snprintf(text, sizeof text, "verbena-port.%03x.%u.", static_cast<unsigned>(b.space), b.port);
  return text;
}

std::string exact_name(const PortBinding& b) {
  std::string text = prefix_of(b) + (b.address->is_ipv4() ? "v4." : "v6.");
  char part[16];
  for (const std::byte byte : b.address->bytes) {
    std::snprintf(part, sizeof part, "%02x", std::to_integer<unsigned>(byte));
    text += part;
  }
  if (b.scope != 0) text += "." + std::to_string(b.scope);
  return text;
}

// The wildcard names of the families that concern this binding.
std::vector<std::string> wildcard_names(const PortBinding& b) {
  const Family family =
      !b.address ? b.family : (b.address->is_ipv4() ? Family::Ipv4 : Family::Ipv6);
  std::vector<std::string> names;
  if (family != Family::Ipv6) names.push_back(prefix_of(b) + "4");
  if (family != Family::Ipv4) names.push_back(prefix_of(b) + "6");
  return names;
}

// Whether any process of this network namespace holds the port on one address of the family. Only
// addresses of this host can be bound, so the check covers their names: a few, however many sockets
// the host has.
bool any_exact_held(const PortBinding& b) {
  PortBinding exact;
  exact.space = b.space;
  exact.port = b.port;
  for (const LocalAddress& local : local_addresses()) {
    if (!covers(b.family, local.address.gid)) continue;
    exact.address = local.address.gid;
    exact.scope = local.address.scope;
    if (is_held(exact_name(exact))) return true;
  }
  return false;
}

// Whether the kernel lets this process use the port. The check binds a socket that is already
// bound, so the kernel always refuses; EACCES is the only refusal that counts.
bool is_allowed(uint16_t port) {
  const UniqueFd fd = os::plain_socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC);
  sockaddr_in any{};
  any.sin_family = AF_INET;
  const auto bind = [&] {
    return ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&any), sizeof any);
  };
  if (!fd.valid() || bind() != 0) return true;  // the check is not possible
  any.sin_port = htons(port);
  return bind() == 0 || errno != EACCES;
}

// --- range of ephemeral ports

struct Range {
  uint16_t first = 32768;
  uint16_t last = 60999;
};

Range read_range() {
  Range range;
  std::ifstream file("/proc/sys/net/ipv4/ip_local_port_range");
  unsigned first = 0;
  unsigned last = 0;
  if (file >> first >> last && first > 0 && first <= last && last <= UINT16_MAX) {
    range = {static_cast<uint16_t>(first), static_cast<uint16_t>(last)};
  }
  return range;
}

uint32_t random_number() {
  uint32_t number = 0;
  (void)!getrandom(&number, sizeof number, 0);
  return number;
}

}  // namespace

Status Ports::bind(PortBinding& binding) {
  const std::lock_guard guard(mutex_);
  if (binding.port != 0) {
    if (!is_allowed(binding.port)) return kNotAllowed;
    if (!binding.reuse && is_source(binding.space, binding.port)) return kInUse;
    return bind_exactly(binding);
  }
  for (;;) {
    Result<uint16_t> port = take_from_blocks(binding.space);
    if (!port.ok()) return port.error();
    binding.port = port.value();
    const Status bound = bind_exactly(binding);
    if (bound.ok()) {
      binding.from_block = true;
      return {};
    }
    if (bound.error().code != EADDRINUSE) {
      return_to_block(binding.space, std::exchange(binding.port, 0));
      return bound;
    }
    // Another process has bound this port explicitly. It stays marked as used, and the next one is
    // tried.
  }
}

Status Ports::bind_source(PortBinding& binding) {
  const std::lock_guard guard(mutex_);
  Result<uint16_t> port = take_from_blocks(binding.space);
  if (!port.ok()) return port.error();
  binding.port = port.value();
  binding.from_block = true;
  return {};
}

Status Ports::bind_exactly(PortBinding& binding) {
  const uint32_t key = key_of(binding.space, binding.port);
  if (const auto there = bound_.find(key); there != bound_.end()) {
    for (const PortBinding* other : there->second) {
      const bool shared = binding.reuse && other->reuse && !other->exclusive;
      if (!shared && collide(binding, *other)) return kInUse;
    }
  }
  const Status held = hold_names(binding);
  if (!held.ok()) return held;
  if (binding.reuse) {
    binding.names.clear();
  } else {
    binding.exclusive = true;
  }
  bound_[key].push_back(&binding);
  return {};
}

Status Ports::make_exclusive(PortBinding& binding) {
  const std::lock_guard guard(mutex_);
  if (binding.exclusive) return {};
  for (const PortBinding* other : bound_[key_of(binding.space, binding.port)]) {
    if (other != &binding && collide(binding, *other)) return kInUse;
  }
  const Status held = hold_names(binding);
  if (held.ok()) binding.exclusive = true;
  return held;
}

Status Ports::hold_names(PortBinding& binding) {
  const std::vector<std::string> wide = wildcard_names(binding);
  const std::vector<std::string> own = binding.address ? std::vector{exact_name(binding)} : wide;
  for (const std::string& name : own) {
    Result<UniqueFd> held = hold(name);
    if (!held.ok()) {
      binding.names.clear();
      return held.error();
    }
    binding.names.push_back(std::move(held.value()));
  }
  const bool has_conflict =
      binding.address ? std::any_of(wide.begin(), wide.end(), is_held) : any_exact_held(binding);
  if (!has_conflict) return {};
  binding.names.clear();
  return kInUse;
}

void Ports::release(PortBinding& binding) {
  if (binding.port == 0) return;
  const std::lock_guard guard(mutex_);
  binding.names.clear();
  if (const auto there = bound_.find(key_of(binding.space, binding.port)); there != bound_.end()) {
    std::erase(there->second, &binding);
    if (there->second.empty()) bound_.erase(there);
  }
  if (binding.from_block) return_to_block(binding.space, binding.port);
  binding.port = 0;
}

Result<uint16_t> Ports::take_from_blocks(cm::PortSpace space) {
  Result<Block*> found = block_with_room(space);
  if (!found.ok()) return found.error();
  Block& block = *found.value();
  while (block.used[block.next]) block.next = (block.next + 1) % kBlockPorts;
  block.used.set(block.next);
  const size_t offset = std::exchange(block.next, (block.next + 1) % kBlockPorts);
  return static_cast<uint16_t>(block.first + offset);
}

Result<Ports::Block*> Ports::block_with_room(cm::PortSpace space) {
  for (Block& block : blocks_) {
    if (block.space == space && !block.used.all()) return &block;
  }
  static const Range range = read_range();
  const uint32_t count =
      std::max<uint32_t>(1, (uint32_t{range.last} - range.first + 1) / kBlockPorts);
  const uint32_t start = random_number() % count;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t index = (start + i) % count;
    char name[48];
    std::snprintf(name, sizeof name, "verbena-ports.%03x.%u", static_cast<unsigned>(space), index);
    Result<UniqueFd> held = hold(name);
    if (!held.ok() && held.error().code != EADDRINUSE) return held.error();
    if (!held.ok()) continue;
    const auto first = static_cast<uint16_t>(range.first + index * kBlockPorts);
    blocks_.push_back({space, first, std::move(held.value())});
    for (size_t p = 0; p < kBlockPorts; ++p) {
      if (first + p > range.last) blocks_.back().used.set(p);
    }
    if (!blocks_.back().used.all()) return &blocks_.back();
  }
  return kNoPorts;
}

bool Ports::is_source(cm::PortSpace space, uint16_t port) const {
  if (bound_.contains(key_of(space, port))) return false;
  return std::any_of(blocks_.begin(), blocks_.end(), [&](const Block& b) {
    return b.space == space && port >= b.first && port < b.first + kBlockPorts &&
           b.used[port - size_t{b.first}];
  });
}

void Ports::return_to_block(cm::PortSpace space, uint16_t port) {
  const auto block = std::find_if(blocks_.begin(), blocks_.end(), [&](const Block& b) {
    return b.space == space && port >= b.first && port < b.first + kBlockPorts;
  });
  if (block == blocks_.end()) return;
  block->used.reset(port - size_t{block->first});
  // One block with free ports is kept for the next connection.
  const bool another = std::any_of(blocks_.begin(), blocks_.end(), [&](const Block& b) {
    return &b != &*block && b.space == space && !b.used.all();
  });
  if (block->used.none() && another) blocks_.erase(block);
}

}  // namespace verbena::rdmacm

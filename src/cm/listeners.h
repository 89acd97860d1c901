// The listeners by service ID and address, each with its backlog.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "cm/parameters.h"

namespace verbena::cm {

struct Listener {
  uint32_t id = 0;
  ListenParameters parameters;
  uint32_t waiting = 0;  // reported requests that the application has not taken yet

  bool full() const { return waiting >= parameters.backlog; }
};

class Listeners {
 public:
  // EADDRINUSE if another listener has this service and address.
  Result<uint32_t> add(const ListenParameters& parameters);
  bool remove(uint32_t id);
  Listener* find(uint32_t id);
  // Returns the listener for a request to `address`. A listener on that address takes precedence
  // over one on every address.
  Listener* match(uint64_t service_id, const wire::Gid& address);
  const Listener* match(uint64_t service_id, const wire::Gid& address) const {
    return const_cast<Listeners*>(this)->match(service_id, address);
  }
  size_t size() const;

 private:
  std::unordered_map<uint64_t, std::vector<Listener>> by_service_;
  std::unordered_map<uint32_t, uint64_t> service_of_;
  uint32_t next_id_ = 1;
};

}  // namespace verbena::cm

// Iomaps: the application's buffers that the peer may write directly (riomap), and the updates that
// the peer has yet to receive. Each buffer has an entry in a table in the peer's memory.
#pragma once

#include <infiniband/verbs.h>
#include <sys/types.h>

#include <deque>
#include <optional>
#include <vector>

#include "base/result.h"
#include "rsocket/wire.h"

namespace verbena::rsocket {

class Iomaps {
 public:
  // `entries`: the size of the peer's table.
  Iomaps(ibv_pd* protection_domain, uint32_t entries);
  ~Iomaps();
  Iomaps(const Iomaps&) = delete;
  Iomaps& operator=(const Iomaps&) = delete;

  // offset -1 means the buffer's address. Returns the offset. ENOMEM: the peer's table is full.
  Result<off_t> map(void* buffer, size_t size, bool writable, off_t offset);
  Status unmap(void* buffer, size_t size);

  // The next entry to write into the peer's table.
  struct Update {
    uint32_t index;
    IomapEntry entry;
  };
  bool has_updates() const { return !changed_.empty(); }
  Update take_update();

 private:
  static constexpr uint32_t kLocal = ~0u;  // not writable: it has no entry
  struct Mapping {
    ibv_mr* region = nullptr;
    uint64_t offset = 0;
    uint32_t index = kLocal;
  };
  void changed(uint32_t index);

  ibv_pd* protection_domain_;
  std::vector<Mapping> mappings_;
  std::vector<bool> used_;        // entries of the peer's table
  std::deque<uint32_t> changed_;  // entries to send, in this order
};

}  // namespace verbena::rsocket

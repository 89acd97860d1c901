// Iomaps: the application's buffers that the peer may write directly (riomap), and what the peer
// has still to be told about them. Each takes an entry of the table in the peer's memory.
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
  // `entries`: of the peer's table.
  Iomaps(ibv_pd* protection_domain, uint32_t entries);
  ~Iomaps();
  Iomaps(const Iomaps&) = delete;
  Iomaps& operator=(const Iomaps&) = delete;

  // offset -1: the buffer's address. Returns the offset. ENOMEM: the peer's table is full.
  Result<off_t> map(void* buffer, size_t size, bool writable, off_t offset);
  Status unmap(void* buffer, size_t size);

  // What is to be written into the peer's table next.
  struct News {
    uint32_t index;
    IomapEntry entry;
  };
  bool has_news() const { return !changed_.empty(); }
  News take_news();

 private:
  static constexpr uint32_t kLocal = ~0u;  // the peer need not know
  struct Mapping {
    ibv_mr* region = nullptr;
    uint64_t offset = 0;
    uint32_t index = kLocal;
  };
  void changed(uint32_t index);

  ibv_pd* protection_domain_;
  std::vector<Mapping> mappings_;
  std::vector<bool> used_;        // entries of the peer's table
  std::deque<uint32_t> changed_;  // in the order in which to tell them
};

}  // namespace verbena::rsocket

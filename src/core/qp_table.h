// QpTable: queue pairs by the index in their number. Two levels, so that all 65536 indices can be
// used before one is reused, without memory for unused ones.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "core/queue_pair.h"

namespace verbena::core {

class QpTable {
 public:
  QueuePair* find(uint32_t index) const {
    const Page* page = pages_[index / kPerPage].get();
    return page != nullptr ? page->qps[index % kPerPage].get() : nullptr;
  }
  // The index must be free.
  QueuePair* insert(uint32_t index, std::unique_ptr<QueuePair> qp) {
    auto& page = pages_[index / kPerPage];
    if (page == nullptr) page = std::make_unique<Page>();
    ++page->used;
    ++size_;
    page->qps[index % kPerPage] = std::move(qp);
    return page->qps[index % kPerPage].get();
  }
  void erase(uint32_t index) {
    auto& page = pages_[index / kPerPage];
    page->qps[index % kPerPage].reset();
    --size_;
    if (--page->used == 0) page.reset();
  }
  size_t size() const { return size_; }
  template <typename Visit>
  void each(Visit visit) const {
    for (const auto& page : pages_) {
      if (page == nullptr) continue;
      for (const auto& qp : page->qps) {
        if (qp) visit(*qp);
      }
    }
  }

 private:
  static constexpr uint32_t kPerPage = 256;
  struct Page {
    std::array<std::unique_ptr<QueuePair>, kPerPage> qps;
    uint32_t used = 0;
  };
  std::array<std::unique_ptr<Page>, 256> pages_;
  size_t size_ = 0;
};

}  // namespace verbena::core

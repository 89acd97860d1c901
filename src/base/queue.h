// Queue: a FIFO that keeps its memory and whose capacity can be reserved.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/exhaustion.h"

namespace verbena {

template <typename T>
class Queue {
 public:
  // Later pushes allocate no memory up to `count` items.
  void reserve(size_t count) { reserve_ahead(items_, count); }
  // False if memory is exhausted.
  bool push(const T& item) {
    const bool is_full = items_.size() == items_.capacity();
    if (is_full && 2 * head_ >= items_.size()) drop_popped();
    if (try_append(items_, item)) return true;
    if (head_ == 0) return false;
    drop_popped();
    items_.push_back(item);
    return true;
  }
  // The queue must not be empty.
  const T& front() const { return items_[head_]; }
  bool pop(T& into) {
    if (empty()) return false;
    into = items_[head_++];
    if (empty()) clear();
    return true;
  }
  void remove_if(auto&& unwanted) {
    items_.erase(
        std::remove_if(items_.begin() + static_cast<ptrdiff_t>(head_), items_.end(), unwanted),
        items_.end());
  }
  void clear() {
    items_.clear();
    head_ = 0;
  }
  bool empty() const { return head_ == items_.size(); }
  size_t size() const { return items_.size() - head_; }

 private:
  void drop_popped() {
    items_.erase(items_.begin(), items_.begin() + static_cast<ptrdiff_t>(head_));
    head_ = 0;
  }

  std::vector<T> items_;
  size_t head_ = 0;
};

}  // namespace verbena

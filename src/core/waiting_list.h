// WaitingList: queue pairs that wait for the window of a PeerPath, in order. Memory is reserved for
// all of them, so that waiting never allocates.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "base/check.h"

namespace verbena::core {

class QueuePair;

class WaitingList {
 public:
  // Reserves memory for `count` queue pairs in total.
  void reserve(size_t count) {
    if (count <= ring_.size()) return;
    std::vector<QueuePair*> larger(std::max(count, 2 * ring_.size()));
    for (size_t i = 0; i < size_; ++i) larger[i] = at(i);
    ring_ = std::move(larger);
    first_ = 0;
  }

  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  QueuePair* front() const { return ring_[first_]; }
  void push_back(QueuePair* qp) {
    VERBENA_CHECK(size_ < ring_.size());
    ring_[index(size_++)] = qp;
  }
  void push_front(QueuePair* qp) {
    VERBENA_CHECK(size_ < ring_.size());
    first_ = first_ == 0 ? ring_.size() - 1 : first_ - 1;
    ring_[first_] = qp;
    ++size_;
  }
  void pop_front() {
    first_ = index(1);
    --size_;
  }
  void remove(const QueuePair* qp) {
    size_t kept = 0;
    for (size_t i = 0; i < size_; ++i) {
      if (at(i) != qp) ring_[index(kept++)] = at(i);
    }
    size_ = kept;
  }
  std::vector<QueuePair*> in_order() const {
    std::vector<QueuePair*> all(size_);
    for (size_t i = 0; i < size_; ++i) all[i] = at(i);
    return all;
  }

 private:
  size_t index(size_t place) const {
    const size_t i = first_ + place;
    return i < ring_.size() ? i : i - ring_.size();
  }
  QueuePair* at(size_t place) const { return ring_[index(place)]; }

  std::vector<QueuePair*> ring_;
  size_t first_ = 0;
  size_t size_ = 0;
};

}  // namespace verbena::core

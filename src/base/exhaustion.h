// What to do when memory is exhausted. Packets, messages and events arrive without anybody who
// could be told ENOMEM: the one at hand is lost, as on the network, and everything else goes on.
// What must not be lost has its room reserved before, by a call that can be told.
#pragma once

#include <algorithm>
#include <cstddef>
#include <new>
#include <vector>

namespace verbena {

// False if memory ran out in the middle of `work`, which must leave things consistent then.
template <typename Work>
bool try_allocating(Work&& work) {
  try {
    work();
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

template <typename T>
bool try_append(std::vector<T>& list, const T& item) {
  return try_allocating([&] { list.push_back(item); });
}

// Room for so many items in all. Grows in steps, as push_back() does.
template <typename T>
void reserve_ahead(std::vector<T>& list, size_t items) {
  if (list.capacity() < items) list.reserve(std::max(items, 2 * list.capacity()));
}

}  // namespace verbena

// Handling of memory exhaustion. A received packet, message or event has no caller to return ENOMEM
// to: it is dropped, as on the network, and the process continues. Memory for an item that must not
// be dropped is reserved earlier, in a call that can return ENOMEM.
#pragma once

#include <algorithm>
#include <cstddef>
#include <new>
#include <vector>

namespace verbena {

// False if an allocation in `work` fails; `work` must leave its data consistent in that case.
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

// Reserves capacity for `items` items in total. Doubles the capacity, as push_back() does.
template <typename T>
void reserve_ahead(std::vector<T>& list, size_t items) {
  if (list.capacity() < items) list.reserve(std::max(items, 2 * list.capacity()));
}

}  // namespace verbena

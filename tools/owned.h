// Owned: an object of a C library with the function that ends it.
#pragma once

#include <memory>

namespace verbena {

// For std::unique_ptr: ends what `function` ends.
template <auto function>
struct EndedBy {
  template <typename T>
  void operator()(T* object) const {
    function(object);
  }
};
template <typename T, auto function>
using Owned = std::unique_ptr<T, EndedBy<function>>;

}  // namespace verbena

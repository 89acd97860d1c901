// Owned: a std::unique_ptr to an object of a C library with the function that destroys it.
#pragma once

#include <memory>

namespace verbena {

// A deleter for std::unique_ptr that calls `function`.
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

// Enumerators from a C caller. They may hold any number, which C++ does not allow in an
// enumeration. Read the number first.
#pragma once

#include <cstring>

namespace verbena::abi {

template <typename Enum>
unsigned number_of(const Enum& value) {
  unsigned number;
  static_assert(sizeof number == sizeof value);
  std::memcpy(&number, &value, sizeof number);
  return number;
}

}  // namespace verbena::abi

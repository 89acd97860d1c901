// Result<T>: a value, or the errno that a verbs caller sees and a sentence for the log.
#pragma once

#include <cerrno>
#include <utility>
#include <variant>

#include "base/check.h"

namespace verbena {

// The reason why a call failed. `why` is a string literal.
struct [[nodiscard]] Error {
  int code = 0;          // errno value; 0 only in Status
  const char* why = "";  // in terms of the call's arguments
};

// The outcome of a call that returns no value.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Error e) : error_(e) {}  // NOLINT(google-explicit-constructor)
  bool ok() const { return error_.code == 0; }
  const Error& error() const { return error_; }

 private:
  Error error_;
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor)
  Result(Error error) : value_(error) {}         // NOLINT(google-explicit-constructor)

  bool ok() const { return value_.index() == 0; }
  T& value() {
    VERBENA_CHECK(ok());
    return *std::get_if<0>(&value_);
  }
  const Error& error() const {
    VERBENA_CHECK(!ok());
    return *std::get_if<1>(&value_);
  }

 private:
  std::variant<T, Error> value_;
};

}  // namespace verbena

// Ledger: checks the completions of one queue against the posted requests: in order and each once;
// after the first error every request completes as flushed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/types.h"

namespace verbena::sim {

class Ledger {
 public:
  void posted(uint64_t wr_id, bool signaled) { entries_.push_back({wr_id, signaled}); }
  // Empty, or the error in the completion.
  std::string completed(const core::Completion& c);

  // The status and entry of the first failure; empty if there is none.
  std::optional<core::WcStatus> first_error() const { return first_error_; }
  size_t error_index() const { return error_index_; }
  size_t completed_count() const { return next_; }
  size_t size() const { return entries_.size(); }
  // Whether all required completions were reported.
  bool closed() const;

 private:
  struct Entry {
    uint64_t wr_id;
    bool signaled;
  };
  std::vector<Entry> entries_;
  size_t next_ = 0;
  std::optional<core::WcStatus> first_error_;
  size_t error_index_ = 0;
};

}  // namespace verbena::sim

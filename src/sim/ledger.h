// Ledger: the completions of one queue against what was posted to it. In order, each once; after
// the first error everything is reported, as flushed.
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
  // Empty, or what is wrong with it.
  std::string completed(const core::Completion& c);

  // How and at which entry it failed first; empty while it has not.
  std::optional<core::WcStatus> first_error() const { return first_error_; }
  size_t error_index() const { return error_index_; }
  size_t completed_count() const { return next_; }
  size_t size() const { return entries_.size(); }
  // Whether everything that must be reported was.
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

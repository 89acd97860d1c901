// Order and completeness of completions.
#include "sim/ledger.h"

#include <algorithm>

namespace verbena::sim {

using core::WcStatus;

std::string Ledger::completed(const core::Completion& c) {
  if (first_error_) {
    if (next_ >= entries_.size()) return "more completions than requests";
    if (entries_[next_].wr_id != c.wr_id) return "flushed out of order, or one is missing";
    ++next_;
    return c.status == WcStatus::Flushed ? "" : "not flushed although its queue pair had failed";
  }
  while (next_ < entries_.size() && entries_[next_].wr_id != c.wr_id) {
    if (entries_[next_].signaled) return "a signalled request was skipped, or completed twice";
    ++next_;
  }
  if (next_ >= entries_.size()) return "completion of a request that was not posted";
  const Entry& e = entries_[next_];
  if (c.status == WcStatus::Success) {
    ++next_;
    return e.signaled ? "" : "an unsignalled request completed";
  }
  first_error_ = c.status;
  error_index_ = next_++;
  return "";
}

bool Ledger::closed() const {
  if (first_error_) return next_ == entries_.size();
  return std::none_of(entries_.begin() + static_cast<ptrdiff_t>(next_), entries_.end(),
                      [](const Entry& e) { return e.signaled; });
}

}  // namespace verbena::sim

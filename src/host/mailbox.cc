// Delivery to a mailbox, and the wake-up of its owner.
#include "host/mailbox.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/exhaustion.h"
#include "host/slot_directory.h"

namespace verbena::host {

Mailbox::Mailbox(SlotDirectory& directory)
    : directory_(directory), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  directory_.add(*this);
}

Mailbox::~Mailbox() { directory_.remove(*this); }

void Mailbox::add_address(const LocalAddress& address) {
  const std::lock_guard lock(mutex_);
  addresses_.push_back(address);
}

void Mailbox::take(std::vector<MisroutedPackets>& misrouted, std::vector<MemberReport>& reports) {
  const std::lock_guard lock(mutex_);
  // Reserving comes first: it may throw, and then nothing has moved and the descriptor
  // still announces it.
  reserve_ahead(misrouted, misrouted.size() + misrouted_.size());
  reserve_ahead(reports, reports.size() + reports_.size());
  if (woken_) {
    eventfd_t count;
    (void)::eventfd_read(wake_.get(), &count);
    woken_ = false;
  }
  std::ranges::move(misrouted_, std::back_inserter(misrouted));
  misrouted_.clear();
  std::ranges::move(reports_, std::back_inserter(reports));
  reports_.clear();
}

bool Mailbox::has_address(const LocalAddress& address) const {
  const std::lock_guard lock(mutex_);
  return std::ranges::find(addresses_, address) != addresses_.end();
}

bool Mailbox::deliver(MisroutedPackets&& batch, bool wakes_owner) {
  const std::lock_guard lock(mutex_);
  if (misrouted_.size() >= kMaxBatches) return false;
  misrouted_.push_back(std::move(batch));
  if (wakes_owner) wake_owner();
  return true;
}

bool Mailbox::deliver(MemberReport&& report, bool wakes_owner) {
  const std::lock_guard lock(mutex_);
  if (reports_.size() >= kMaxReports) return false;
  reports_.push_back(std::move(report));
  if (wakes_owner) wake_owner();
  return true;
}

void Mailbox::wake_owner() {
  if (woken_) return;
  woken_ = true;
  (void)::eventfd_write(wake_.get(), 1);
}

}  // namespace verbena::host

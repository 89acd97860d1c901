// Posts receives and checks their completions.
#include "sim/receive_pool.h"

#include <algorithm>

namespace verbena::sim {

ReceivePool::ReceivePool(World& world, Host& host, const PoolShape& shape, uint32_t number)
    : world_(world), host_(host), shape_(shape), number_(number) {
  region_ = host.add_region(uint64_t{shape.depth} * shape.bytes + 64, core::kLocalWrite);
  for (int i = 0; i < static_cast<int>(shape.depth); ++i) free_.push_back(i);
}

std::string ReceivePool::fill() {
  while (!free_.empty()) {
    Receive r;
    r.wr_id = uint64_t{number_} << 32 | next_++;
    r.slot = free_.back();
    const uint64_t offset = static_cast<uint64_t>(r.slot) * shape_.bytes;
    std::ranges::fill(region_.at(offset, shape_.bytes), kUntouched);
    r.sges = split(region_, offset, shape_.bytes, shape_.sges, world_.prng());
    const core::ReceiveRequest request{.wr_id = r.wr_id, .sges = r.sges};
    const Status status =
        srq_ != nullptr ? host_.post_receive(*srq_, request) : host_.post_receive(*qp_, request);
    if (!status.ok()) return "a receive was refused although the queue has room";
    free_.pop_back();
    waiting_.push_back(std::move(r));
  }
  return "";
}

std::string ReceivePool::complete(const core::Completion& c, Receive* receive) {
  const auto found = std::ranges::find(waiting_, c.wr_id, &Receive::wr_id);
  if (found == waiting_.end()) return "a receive completed that was not waiting, or twice";
  // Another queue pair may still use an older receive of a shared queue.
  if (srq_ == nullptr && found != waiting_.begin()) return "receives complete out of order";
  uint64_t& last = last_of_[c.qpn.value()];
  if (c.wr_id < last) return "a queue pair completed a receive older than its last one";
  last = c.wr_id;
  *receive = std::move(*found);
  waiting_.erase(found);
  free_.push_back(receive->slot);
  return "";
}

std::string ReceivePool::check_stopped() const {
  const size_t left = srq_ != nullptr ? srq_->posted() : 0;
  if (waiting_.size() > left) return "receives were lost: neither completed nor left";
  return waiting_.size() < left ? "more receives are left than were posted" : "";
}

}  // namespace verbena::sim

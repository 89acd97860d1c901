// The computed queue and the wire of one direction, see bottleneck.h.
#include "tests/network/bottleneck.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace verbena::network {

QueueLengths::QueueLengths(uint64_t queue_bytes, double bytes_per_ns)
    : bytes_per_ns_(bytes_per_ns),
      ns_(static_cast<size_t>(static_cast<double>(queue_bytes) / kStep) + 1) {}

void QueueLengths::drain(double bytes, Duration time) {
  max_ = std::max(max_, bytes);
  auto left_ns = static_cast<double>(time.ns);
  size_t end = bytes > 0 ? std::min(ns_.size(), static_cast<size_t>(std::ceil(bytes / kStep))) : 0;
  for (; end > 0 && left_ns > 0; --end) {
    const double lower = static_cast<double>(end - 1) * kStep;
    const double spent_ns = std::min(left_ns, (bytes - lower) / bytes_per_ns_);
    ns_[end - 1] += spent_ns;
    left_ns -= spent_ns;
    bytes = lower;
  }
  empty_ns_ += std::max(left_ns, 0.0);
}

double QueueLengths::quantile(double part) const {
  double total = empty_ns_;
  for (const double ns : ns_) total += ns;
  double reached = empty_ns_;
  if (reached >= total * part) return 0;
  for (size_t i = 0; i < ns_.size(); ++i) {
    reached += ns_[i];
    if (reached >= total * part) return std::min(max_, static_cast<double>(i + 1) * kStep);
  }
  return max_;
}

Bottleneck::Bottleneck(const LinkSettings& settings)
    : settings_(settings),
      prng_(settings.seed),
      lengths_(settings.queue_bytes, settings.bits_per_second / 8e9) {}

double Bottleneck::queued_at(Instant time) const {
  const auto busy_ns = static_cast<double>(std::max<int64_t>((free_at_ - time).ns, 0));
  return busy_ns * settings_.bits_per_second / 8e9;
}

Duration Bottleneck::transmission_time(size_t bytes) const {
  return nanoseconds(std::llround(static_cast<double>(bytes) * 8e9 / settings_.bits_per_second));
}

void Bottleneck::arrive(Packet packet, Instant arrival, Instant read) {
  settle(arrival);
  ++counters_.arrived_packets;
  const bool is_lost = prng_.chance(settings_.loss);
  const bool is_held = prng_.chance(settings_.reordering);
  const double queued = queued_at(arrival);
  if (queued + static_cast<double>(packet.size()) > static_cast<double>(settings_.queue_bytes)) {
    ++counters_.dropped_packets;
    return;
  }
  if (settings_.ecn_bytes > 0 && queued > static_cast<double>(settings_.ecn_bytes) &&
      mark_congestion(packet))
    ++counters_.marked_packets;
  free_at_ = std::max(free_at_, arrival) + transmission_time(packet.size());
  if (is_lost) {
    ++counters_.lost_packets;
    return;
  }
  ++counters_.forwarded_packets;
  counters_.forwarded_bytes += packet.size();
  counters_.bytes_by_flow[flow_of(packet)] += packet.size();
  if (is_held) ++counters_.reordered_packets;
  const Instant delivery = std::max(free_at_, read) + settings_.delay;
  if (is_held)
    held_.push_back({delivery + settings_.held_for, std::move(packet)});
  else
    wire_.push_back({delivery, std::move(packet)});
}

Instant Bottleneck::next_delivery() const { return std::min(front_of(wire_), front_of(held_)); }

std::optional<Bottleneck::Packet> Bottleneck::deliver(Instant now) {
  Wire& first = front_of(wire_) <= front_of(held_) ? wire_ : held_;
  if (front_of(first) > now) return std::nullopt;
  Packet packet = std::move(first.front().packet);
  first.pop_front();
  return packet;
}

void Bottleneck::settle(Instant now) {
  if (now <= settled_) return;
  // Before its first packet the link has not existed.
  if (settled_ > Instant{}) lengths_.drain(queued_at(settled_), now - settled_);
  settled_ = now;
}

void Bottleneck::restart_statistics() {
  counters_ = {};
  lengths_ = QueueLengths(settings_.queue_bytes, settings_.bits_per_second / 8e9);
}

}  // namespace verbena::network

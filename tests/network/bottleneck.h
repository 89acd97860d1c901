// One direction of a slow link: a FIFO queue in front of a transmitter of a fixed rate, then a wire
// with a delay, which may lose packets and hold some back. Reads no clock: the caller passes the
// time.
//
// The queue is computed, not emptied by a timer: a packet that arrives while the transmitter is
// busy until `free_at` finds (free_at - arrival) * rate bytes in front of it. So a caller that runs
// late delivers packets late, but loses no capacity.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "base/time.h"
#include "tests/network/ip_header.h"

namespace verbena::network {

struct LinkSettings {
  double bits_per_second = 1e9;
  Duration delay{};  // from the end of transmission to the delivery
  uint64_t queue_bytes = 1'500'000;
  uint64_t ecn_bytes = 0;  // a queue above this gets ECN marks; 0: no marks
  double loss = 0;         // probability that the wire loses a packet
  double reordering = 0;   // probability that the wire holds a packet back
  Duration held_for{};     // that long
  uint64_t seed = 1;
};

// How long the queue had which length, in steps of 1,000 bytes.
class QueueLengths {
 public:
  QueueLengths(uint64_t queue_bytes, double bytes_per_ns);

  // The queue had that length and then only drained for a time.
  void drain(double bytes, Duration time);
  // The length that the queue did not exceed for this part of the time.
  double quantile(double part) const;
  double max() const { return max_; }

 private:
  static constexpr double kStep = 1000;

  double bytes_per_ns_;
  double empty_ns_ = 0;
  std::vector<double> ns_;  // by length: of [i] up to (i + 1) * kStep bytes
  double max_ = 0;
};

struct LinkCounters {
  uint64_t arrived_packets = 0;
  uint64_t forwarded_packets = 0, forwarded_bytes = 0;
  uint64_t dropped_packets = 0;            // the queue was full
  uint64_t lost_packets = 0;               // by chance, on the wire
  uint64_t marked_packets = 0;             // ECT changed to CE
  uint64_t reordered_packets = 0;          // held back
  std::map<Flow, uint64_t> bytes_by_flow;  // forwarded
};

class Bottleneck {
 public:
  using Packet = std::vector<uint8_t>;

  explicit Bottleneck(const LinkSettings& settings);

  // A packet arrives. Arrivals are passed in order of time. A packet that was read later is on the
  // wire for the whole delay from then on: an end must never measure a shorter path than it has.
  void arrive(Packet packet, Instant arrival, Instant read);
  void arrive(Packet packet, Instant arrival) { arrive(std::move(packet), arrival, arrival); }
  // When the next packet leaves the wire; kNever if there is none.
  Instant next_delivery() const;
  // Takes a packet whose delivery is due.
  std::optional<Packet> deliver(Instant now);

  // The statistics since the last restart.
  const LinkCounters& counters() const { return counters_; }
  const QueueLengths& queue_lengths() const { return lengths_; }
  // Accounts for the queue up to this time.
  void settle(Instant now);
  void restart_statistics();

 private:
  struct InFlight {
    Instant delivery;
    Packet packet;
  };
  using Wire = std::deque<InFlight>;

  double queued_at(Instant time) const;
  Duration transmission_time(size_t bytes) const;
  static Instant front_of(const Wire& wire) {
    return wire.empty() ? kNever : wire.front().delivery;
  }

  LinkSettings settings_;
  Prng prng_;
  Instant free_at_{};  // the transmitter has sent everything that has arrived
  Instant settled_{};  // lengths_ accounts for the time before
  Wire wire_;          // both in the order of delivery
  Wire held_;
  LinkCounters counters_;
  QueueLengths lengths_;
};

}  // namespace verbena::network

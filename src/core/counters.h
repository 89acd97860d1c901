// Counters of the engine: one for every kind of drop, retransmission and refusal.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace verbena::core {

// name, explanation (shown to users)
#define VERBENA_COUNTERS(X)                                                                \
  X(packets_received, "RoCE packets that reached the engine")                              \
  X(packets_sent, "RoCE packets handed to the datapath")                                   \
  X(malformed_packets, "dropped: truncated, unknown opcode, bad version or padding")       \
  X(unknown_qp, "dropped: no such queue pair")                                             \
  X(wrong_source, "dropped: not from the address that the queue pair is connected to")     \
  X(wrong_transport, "dropped: opcode of another transport than the queue pair's")         \
  X(wrong_pkey, "dropped: partition key mismatch")                                         \
  X(qp_not_ready, "dropped: the queue pair's state does not allow receiving")              \
  X(wrong_qkey, "dropped: datagrams with another Q_Key than the queue pair's")             \
  X(no_receive_posted, "dropped: UD or UC messages for which no receive was posted")       \
  X(receive_too_small, "dropped: UD or UC messages longer than the receive")               \
  X(incomplete_messages, "dropped: UC messages of which a packet was lost or wrong")       \
  X(writes_refused, "dropped: UC WRITEs to memory without remote write access")            \
  X(bad_management, "dropped: datagrams to queue pair 1 that are not MADs")                \
  X(management_overruns, "dropped: MADs that exceeded the receive or send queue")          \
  X(cnp_received, "congestion notifications received")                                     \
  X(duplicate_requests, "duplicate requests (the response was lost or late)")              \
  X(duplicate_dropped, "dropped: duplicate READs or atomics without a responder resource") \
  X(out_of_sequence, "requests ahead of the expected PSN (a packet was lost)")             \
  X(naks_sequence_sent, "sequence error NAKs sent")                                        \
  X(naks_invalid_request_sent, "invalid request NAKs sent")                                \
  X(naks_remote_access_sent, "remote access error NAKs sent")                              \
  X(naks_remote_operation_sent, "remote operational error NAKs sent")                      \
  X(rnr_naks_sent, "RNR NAKs sent: no receive was posted")                                 \
  X(naks_sequence_received, "sequence error NAKs received")                                \
  X(naks_fatal_received, "NAKs received that failed a queue pair")                         \
  X(rnr_naks_received, "RNR NAKs received")                                                \
  X(implied_naks, "retransmissions because a READ or atomic response was overtaken")       \
  X(timeouts, "ACK timeouts")                                                              \
  X(probes_sent, "tail-loss probes: request packets that ask for a late response")         \
  X(acks_piggybacked, "ACKs sent inside a request")                                        \
  X(requests_buffered, "requests buffered behind a lost packet")                           \
  X(requests_reordered, "requests buffered because the peer sent them out of order")       \
  X(responses_buffered, "responses buffered behind a lost packet")                         \
  X(retransmitted_packets, "request packets retransmitted")                                \
  X(stale_responses, "dropped: responses that were already handled or not requested")      \
  X(bad_responses, "responses that do not match their request")                            \
  X(retry_exceeded, "queue pairs failed: retry_cnt used up")                               \
  X(rnr_retry_exceeded, "queue pairs failed: rnr_retry used up")                           \
  X(cq_overruns, "completions lost because the completion queue was full")                 \
  X(one_sided_writes, "WRITEs performed by one-sided access to the peer's memory")         \
  X(one_sided_reads, "READs performed by one-sided access to the peer's memory")           \
  X(requests_retracted, "requests retracted because the peer had not read them")           \
  X(out_of_memory, "dropped: packets and events for which memory was exhausted")           \
  X(window_waits, "times a queue pair waited for the congestion window")

enum class CounterId : uint8_t {
#define X(name, text) name,
  VERBENA_COUNTERS(X)
#undef X
      kCount
};

struct Counters {
  std::array<uint64_t, static_cast<size_t>(CounterId::kCount)> values{};
  void add(CounterId id, uint64_t n = 1) { values[static_cast<size_t>(id)] += n; }
  uint64_t operator[](CounterId id) const { return values[static_cast<size_t>(id)]; }
};

const char* name_of(CounterId id);
const char* meaning_of(CounterId id);

}  // namespace verbena::core

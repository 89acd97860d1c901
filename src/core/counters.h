// Every drop, retry and refusal has a counter.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace verbena::core {

// name, meaning (shown to users)
#define VERBENA_COUNTERS(X)                                                                \
  X(packets_received, "RoCE packets that reached the engine")                              \
  X(packets_sent, "RoCE packets handed to the datapath")                                   \
  X(malformed_packets, "dropped: truncated, unknown opcode, bad version or padding")       \
  X(unknown_qp, "dropped: no such queue pair")                                             \
  X(wrong_source, "dropped: not from the address the queue pair is connected to")          \
  X(wrong_transport, "dropped: an opcode of another transport than the queue pair's")      \
  X(wrong_pkey, "dropped: partition key mismatch")                                         \
  X(qp_not_ready, "dropped: the queue pair is not in a state that accepts packets")        \
  X(wrong_qkey, "dropped: datagrams with another Q_Key than the queue pair's")             \
  X(no_receive_posted, "dropped: UD or UC messages for which no receive was posted")       \
  X(receive_too_small, "dropped: UD or UC messages longer than the receive")               \
  X(incomplete_messages, "dropped: UC messages of which a packet was lost or wrong")       \
  X(writes_refused, "dropped: UC WRITEs without access to the memory")                     \
  X(bad_management, "dropped: datagrams to queue pair 1 that are no MAD")                  \
  X(management_overruns, "dropped: MADs beyond the capacity of the queues")                \
  X(np_ecn_marked_roce_packets, "packets that arrived with an ECN mark (CE)")              \
  X(np_cnp_sent, "CNPs sent to peers whose packets arrived with an ECN mark")              \
  X(rp_cnp_handled, "CNPs received that slow a queue pair down")                           \
  X(rp_cnp_ignored, "dropped: CNPs to no queue pair, not from its peer, or not needed")    \
  X(duplicate_requests, "requests received again (their response was lost or late)")       \
  X(duplicate_dropped, "dropped: duplicate READs or atomics without a responder resource") \
  X(out_of_sequence, "requests ahead of the expected PSN (a packet was lost)")             \
  X(naks_sequence_sent, "NAK sequence error sent")                                         \
  X(naks_invalid_request_sent, "NAK invalid request sent")                                 \
  X(naks_remote_access_sent, "NAK remote access error sent")                               \
  X(naks_remote_operation_sent, "NAK remote operational error sent")                       \
  X(rnr_naks_sent, "receiver-not-ready NAK sent: no receive was posted")                   \
  X(naks_sequence_received, "NAK sequence error received")                                 \
  X(naks_fatal_received, "NAK received that failed a queue pair")                          \
  X(rnr_naks_received, "receiver-not-ready NAK received")                                  \
  X(implied_naks, "retransmissions because a READ or atomic response was overtaken")       \
  X(timeouts, "ACK timeouts")                                                              \
  X(probes_sent, "tail-loss probes: requests sent again because a response is late")       \
  X(acks_piggybacked, "ACKs sent inside a request")                                        \
  X(requests_buffered, "requests buffered behind a gap: a packet before them was lost")    \
  X(requests_reordered, "requests buffered because the peer sent them out of PSN order")   \
  X(responses_buffered, "responses buffered behind a gap: a packet before them was lost")  \
  X(retransmitted_packets, "request packets sent again")                                   \
  X(stale_responses, "dropped: responses already handled or never requested")              \
  X(bad_responses, "responses that do not fit their request")                              \
  X(retry_exceeded, "queue pairs failed: retry_cnt used up")                               \
  X(rnr_retry_exceeded, "queue pairs failed: rnr_retry used up")                           \
  X(cq_overruns, "completions lost because their queue was full")                          \
  X(one_sided_writes, "WRITEs by one-sided access to the peer's memory")                   \
  X(one_sided_reads, "READs by one-sided access to the peer's memory")                     \
  X(requests_retracted, "requests retracted because the peer did not read them")           \
  X(out_of_memory, "dropped: packets and events for which there was no memory")            \
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

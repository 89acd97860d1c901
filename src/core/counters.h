// Every drop, retry and refusal has a name: the first debugging tool.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace verbena::core {

// name, what it means (shown to people)
#define VERBENA_COUNTERS(X)                                                                \
  X(packets_received, "RoCE packets that reached the engine")                              \
  X(packets_sent, "RoCE packets handed to the datapath")                                   \
  X(malformed_packets, "dropped: truncated, unknown opcode, bad version or padding")       \
  X(unknown_qp, "dropped: no such queue pair")                                             \
  X(wrong_source, "dropped: not from the address the queue pair is connected to")          \
  X(wrong_transport, "dropped: an opcode of another transport than the queue pair's")      \
  X(wrong_pkey, "dropped: partition key mismatch")                                         \
  X(qp_not_ready, "dropped: the queue pair is not in a state that takes packets")          \
  X(wrong_qkey, "dropped: datagrams with another Q_Key than the queue pair's")             \
  X(no_receive_posted, "dropped: UD or UC messages for which no receive was posted")       \
  X(receive_too_small, "dropped: UD or UC messages longer than the receive")               \
  X(incomplete_messages, "dropped: UC messages of which a packet was lost or wrong")       \
  X(writes_refused, "dropped: UC WRITEs to memory that is not open to them")               \
  X(bad_management, "dropped: datagrams to queue pair 1 that are no MAD")                  \
  X(management_overruns, "dropped: MADs that came or left too many at once")               \
  X(cnp_received, "congestion notifications received")                                     \
  X(duplicate_requests, "requests seen again (their answer was lost or late)")             \
  X(duplicate_dropped, "duplicate reads or atomics no longer remembered, dropped")         \
  X(out_of_sequence, "requests ahead of the expected PSN (something was lost)")            \
  X(naks_sequence_sent, "NAK sequence error sent")                                         \
  X(naks_invalid_request_sent, "NAK invalid request sent")                                 \
  X(naks_remote_access_sent, "NAK remote access error sent")                               \
  X(naks_remote_operation_sent, "NAK remote operational error sent")                       \
  X(rnr_naks_sent, "receiver-not-ready NAK sent: no receive was posted")                   \
  X(naks_sequence_received, "NAK sequence error received")                                 \
  X(naks_fatal_received, "NAK received that failed a queue pair")                          \
  X(rnr_naks_received, "receiver-not-ready NAK received")                                  \
  X(implied_naks, "retransmissions because a read or atomic answer was overtaken")         \
  X(timeouts, "acknowledge timeouts")                                                      \
  X(probes_sent, "requests sent again to ask for an answer that is late")                  \
  X(acks_piggybacked, "acknowledgements sent inside a request")                            \
  X(requests_buffered, "requests kept until one before them, which was lost, is there")    \
  X(requests_reordered, "requests kept until one before them is there, as the peer chose") \
  X(responses_buffered, "answers kept until one before them, which was lost, is there")    \
  X(retransmitted_packets, "request packets sent again")                                   \
  X(stale_responses, "dropped: responses already handled or never asked for")              \
  X(bad_responses, "responses that do not fit their request")                              \
  X(retry_exceeded, "queue pairs failed: retry_cnt used up")                               \
  X(rnr_retry_exceeded, "queue pairs failed: rnr_retry used up")                           \
  X(cq_overruns, "completions lost because their queue was full")                          \
  X(one_sided_writes, "WRITEs that this process did in the peer's memory itself")          \
  X(one_sided_reads, "READs that this process did in the peer's memory itself")            \
  X(requests_retracted, "requests taken back because the peer did not read them")          \
  X(out_of_memory, "dropped: packets and events for which there was no memory")            \
  X(window_waits, "times a queue pair waited for the in-flight window")

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

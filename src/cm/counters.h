// Everything the connection manager drops, repeats or refuses has a name.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace verbena::cm {

// name, what it means (shown to people)
#define VERBENA_CM_COUNTERS(X)                                                           \
  X(mads_received, "management datagrams that reached the connection manager")           \
  X(mads_sent, "management datagrams sent")                                              \
  X(malformed_mads, "dropped: not 256 bytes, or not class 7 version 2")                  \
  X(unsupported_mads, "dropped: an attribute nobody here handles")                       \
  X(wrong_slot, "dropped: for another process of this host")                             \
  X(unknown_id, "messages about a connection that does not exist (any more)")            \
  X(wrong_source, "dropped: not from the address the connection is with")                \
  X(wrong_qpn, "dropped: disconnects that name another queue pair")                      \
  X(unexpected, "dropped: messages that do not fit the connection's state")              \
  X(duplicates, "messages seen again (their answer was lost or late)")                   \
  X(retransmissions, "REQ, REP, DREQ and SIDR_REQ sent again")                           \
  X(timeouts, "exchanges given up: the peer did not answer")                             \
  X(mras_sent, "MRA sent: the application has not decided yet")                          \
  X(mras_received, "MRA received: the peer has not decided yet")                         \
  X(rejects_sent, "REJ sent")                                                            \
  X(rejects_received, "REJ received")                                                    \
  X(no_listener, "requests refused: nobody listens there")                               \
  X(backlog_full, "requests refused: the listener's backlog is full")                    \
  X(too_many_connections, "requests refused: max_connections reached")                   \
  X(bad_requests, "requests refused: transport, MTU, address or IP header not possible") \
  X(stale_connections, "a peer reused a queue pair or id of a connection not yet over")  \
  X(alternate_paths_refused, "LAP answered with APR: no alternate paths on RoCE")        \
  X(out_of_memory, "dropped: datagrams and events for which there was no memory")

enum class CounterId : uint8_t {
#define X(name, text) name,
  VERBENA_CM_COUNTERS(X)
#undef X
      kCount
};

struct Counters {
  std::array<uint64_t, static_cast<size_t>(CounterId::kCount)> values{};
  void add(CounterId id) { ++values[static_cast<size_t>(id)]; }
  uint64_t operator[](CounterId id) const { return values[static_cast<size_t>(id)]; }
};

const char* name_of(CounterId id);
const char* meaning_of(CounterId id);

}  // namespace verbena::cm

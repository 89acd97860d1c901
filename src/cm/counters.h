// Counters for every message that the connection manager drops, retransmits or rejects.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace verbena::cm {

// name, explanation (shown to users)
#define VERBENA_CM_COUNTERS(X)                                                         \
  X(mads_received, "management datagrams that reached the connection manager")         \
  X(mads_sent, "management datagrams sent")                                            \
  X(malformed_mads, "dropped: not 256 bytes, or not class 7 version 2")                \
  X(unsupported_mads, "dropped: unsupported attribute")                                \
  X(wrong_slot, "dropped: for another process of this host")                           \
  X(unknown_id, "messages about an unknown or ended connection")                       \
  X(wrong_source, "dropped: not from the address of the connection's peer")            \
  X(wrong_qpn, "dropped: disconnects that name another queue pair")                    \
  X(unexpected, "dropped: messages that do not fit the connection's state")            \
  X(duplicates, "duplicate messages (the reply was lost or late)")                     \
  X(retransmissions, "REQ, REP, DREQ and SIDR_REQ retransmitted")                      \
  X(timeouts, "exchanges given up: the peer did not reply")                            \
  X(mras_sent, "MRA sent: the application has not decided yet")                        \
  X(mras_received, "MRA received: the peer has not decided yet")                       \
  X(rejects_sent, "REJ sent")                                                          \
  X(rejects_received, "REJ received")                                                  \
  X(no_listener, "requests refused: no listener")                                      \
  X(backlog_full, "requests refused: the listener's backlog is full")                  \
  X(too_many_connections, "requests refused: max_connections reached")                 \
  X(bad_requests, "requests refused: invalid transport, MTU, address or IP header")    \
  X(stale_connections, "a peer reused a queue pair or ID before its connection ended") \
  X(alternate_paths_refused, "LAP refused with APR: RoCE has no alternate paths")      \
  X(out_of_memory, "dropped: no memory for a datagram or event")

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

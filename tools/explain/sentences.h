// One line of text for each packet.
#pragma once

#include <string>

#include "tools/explain/streams.h"

namespace verbena::explain {

std::string address_of(const wire::Gid& gid);
std::string counted(uint64_t count, const char* noun);  // "1 packet", "2 packets"

// What the packet says: operation, PSN, sizes, addresses, keys.
std::string sentence_of(const wire::Packet& packet, const Remarks& remarks);
// What is remarkable about it; empty: nothing.
std::string remarks_of(const Datagram& datagram, const Remarks& remarks);
// It reports a problem by itself: NAK, RNR NAK, CNP, or a rejected connection.
bool is_trouble(const wire::Packet& packet);

}  // namespace verbena::explain

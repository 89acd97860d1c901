// Options of kernel sockets. Headers older than the kernel lack some of them.
#pragma once

#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>

#include <type_traits>

#ifndef SO_ATTACH_REUSEPORT_CBPF
#define SO_ATTACH_REUSEPORT_CBPF 51
#endif
#ifndef IPV6_MULTICAST_ALL
#define IPV6_MULTICAST_ALL 29
#endif
#ifndef UDP_NO_CHECK6_RX
#define UDP_NO_CHECK6_RX 102
#endif
#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

namespace verbena::os {

// Both return false, with errno, if the kernel refuses the option.
inline bool set_option(int fd, int level, int option, int value) {
  return ::setsockopt(fd, level, option, &value, sizeof value) == 0;
}
template <typename Value>
requires std::is_class_v<Value>
bool set_option(int fd, int level, int option, const Value& value) {
  return ::setsockopt(fd, level, option, &value, sizeof value) == 0;
}

}  // namespace verbena::os

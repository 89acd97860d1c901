// Control messages (cmsg) of sendmsg().
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstring>

namespace verbena::os {

// Writes one control message. Returns the number of bytes that it occupies.
template <typename T>
size_t put_control(std::byte* to, int level, int type, T value) {
  cmsghdr header{};
  header.cmsg_len = CMSG_LEN(sizeof value);
  header.cmsg_level = level;
  header.cmsg_type = type;
  std::memcpy(to, &header, sizeof header);
  std::memcpy(to + CMSG_LEN(0), &value, sizeof value);
  return CMSG_SPACE(sizeof value);
}

}  // namespace verbena::os

// ZeroCopySender: sends a GSO batch from its own pages. sendmsg sends the head of the batch with
// the address and options and leaves the message open; the pages follow through a pipe.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <span>

#include "os/unique_fd.h"

namespace verbena::datapath {

class ZeroCopySender {
 public:
  // A smaller batch is cheaper to copy.
  static constexpr size_t kMinBytes = size_t{16} * 1024;

  // Checks the kernel's version: older kernels send the pages one by one.
  ZeroCopySender();

  // False: zero-copy sends are not supported, or have failed permanently.
  bool works() const { return works_; }
  // `message` has no iovec; `bytes` begin at a page boundary. False: the batch was not sent
  // correctly. The caller then sends it by copying, which also reports the error.
  bool send(int fd, msghdr message, std::span<std::byte> bytes);

 private:
  bool fill_pipe(std::span<std::byte> bytes);

  bool works_ = false;
  os::UniqueFd pipe_out_;
  os::UniqueFd pipe_in_;
};

}  // namespace verbena::datapath

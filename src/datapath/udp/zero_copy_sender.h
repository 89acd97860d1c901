// ZeroCopySender: sends a batch from the pages it lies in. They go through a pipe into the send:
// the head of the batch opens it (and carries address and options), the pages follow.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <span>

#include "os/unique_fd.h"

namespace verbena::datapath {

class ZeroCopySender {
 public:
  // Less than this costs more to lend than to copy.
  static constexpr size_t kLeastBytes = size_t{16} * 1024;

  // Asks the kernel, once. Older ones send pages one by one.
  ZeroCopySender();

  // False: not here, or not any more.
  bool works() const { return works_; }
  // `message` without the bytes; they begin at a page. False: nothing of it was sent as it should
  // be. Then it is to be sent by copying, which also shows what is wrong.
  bool send(int fd, msghdr message, std::span<std::byte> bytes);

 private:
  bool fill_pipe(std::span<std::byte> bytes);

  bool works_ = false;
  os::UniqueFd pipe_out_;
  os::UniqueFd pipe_in_;
};

}  // namespace verbena::datapath

// rpoll and rselect: wait for rsockets and ordinary descriptors together.
#pragma once

#include <poll.h>
#include <sys/select.h>

#include "base/result.h"
#include "base/time.h"

namespace verbena::rsocket {

Result<int> poll_all(pollfd* descriptors, nfds_t count, Instant deadline);
Result<int> select_all(int count, fd_set* read, fd_set* write, fd_set* except, Instant deadline);

}  // namespace verbena::rsocket

// A copy for bytes that another processor reads next.
#pragma once

#include <cstddef>

namespace verbena {

// memcpy that writes whole cache lines to memory and not to this processor's caches, where the
// CPU can. A line that the other one has read last need not be asked back from it before it is
// written, and it can fetch lines from memory ahead of time, which it cannot out of another
// processor's cache. What is stored afterwards shows afterwards.
void copy_past_caches(std::byte* to, const std::byte* from, size_t bytes);

}  // namespace verbena

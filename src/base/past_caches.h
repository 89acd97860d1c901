// A copy for bytes that another processor reads next, by non-temporal stores.
#pragma once

#include <cstddef>

namespace verbena {

// memcpy that writes whole cache lines to memory, past this processor's caches, where the CPU
// supports it. The writer need not claim a line from the reader's cache, and the reader can
// prefetch lines from memory, which it cannot do from another processor's cache. Later stores
// become visible after the copy.
void copy_past_caches(std::byte* to, const std::byte* from, size_t bytes);

}  // namespace verbena

// What every way of registering memory comes down to.
#pragma once

#include <cstddef>
#include <cstdint>

#include "abi/verbs/objects.h"
#include "base/result.h"

namespace verbena::abi {

// Takes the NIC's view of [base, base + length) under the public access flags; `iova` is what peers
// and work requests will call its first byte. The memory must be there for as long as the region
// is, unless it is on demand. The caller fills what is particular to the kind.
Result<Mr*> add_region(Pd* pd, Mr::Kind kind, std::byte* base, size_t length, uint64_t iova,
                       unsigned access);

// IBV_ACCESS_* of a caller without what is only a hint; EINVAL for flags that do not exist.
Result<unsigned> known_access(unsigned access);
// Whether memory with these rights is going to be written.
bool writes(unsigned access);

// The newer calls, which are also reached through the context's table.
ibv_mr* reg_mr_ex(ibv_pd* pd, RegionInit* init);
DmaHandle* alloc_dmah(ibv_context* context, DmaHandleInit* init);
int dealloc_dmah(DmaHandle* handle);
int dm_export_dmabuf_fd(ibv_dm* dm);
void* alloc_buf(ibv_pd* pd, size_t size, Buffer** buffer);
void free_buf(Buffer* buffer);

Result<ibv_mr*> register_dmabuf(Pd* pd, uint64_t offset, size_t length, uint64_t iova, int fd,
                                unsigned access);
// `address` and `length` within the buffer, or EINVAL.
Result<ibv_mr*> register_buffer(Pd* pd, Buffer* buffer, void* address, size_t length, uint64_t iova,
                                unsigned access);

// Give back what a region of the kind held beside its key.
void release_buffer(Buffer* buffer);

}  // namespace verbena::abi

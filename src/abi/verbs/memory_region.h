// The common part of all kinds of memory registration.
#pragma once

#include <cstddef>
#include <cstdint>

#include "abi/verbs/objects.h"
#include "base/result.h"

namespace verbena::abi {

// Registers [base, base + length) with the public access flags; `iova` is the address of its first
// byte for peers and work requests. Unless the region is on demand, the memory must exist as long
// as the region. The caller fills in the fields of its kind.
Result<Mr*> add_region(Pd* pd, Mr::Kind kind, std::byte* base, size_t length, uint64_t iova,
                       unsigned access);

// Returns IBV_ACCESS_* without flags that are only hints; EINVAL for flags that do not exist.
Result<unsigned> known_access(unsigned access);
// Whether these rights include writing.
bool writes(unsigned access);

// The newer calls, which are also called through the context's table.
ibv_mr* reg_mr_ex(ibv_pd* pd, RegionInit* init);
DmaHandle* alloc_dmah(ibv_context* context, DmaHandleInit* init);
int dealloc_dmah(DmaHandle* handle);
int dm_export_dmabuf_fd(ibv_dm* dm);
void* alloc_buf(ibv_pd* pd, size_t size, Buffer** buffer);
void free_buf(Buffer* buffer);

Result<ibv_mr*> register_dmabuf(Pd* pd, uint64_t offset, size_t length, uint64_t iova, int fd,
                                unsigned access);
// EINVAL unless `address` and `length` are within the buffer.
Result<ibv_mr*> register_buffer(Pd* pd, Buffer* buffer, void* address, size_t length, uint64_t iova,
                                unsigned access);

// Release the resources that a region of the kind holds besides its key.
void release_buffer(Buffer* buffer);

}  // namespace verbena::abi

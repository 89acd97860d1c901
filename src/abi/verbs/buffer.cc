// Buffers that the library allocates for a program to register. They are ordinary pages and stay
// until the handle and the last region on them are released.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <memory>

#include "abi/verbs/errors.h"
#include "abi/verbs/memory_region.h"
#include "abi/verbs/objects.h"

namespace verbena::abi {

struct Buffer {
  Pd* pd = nullptr;
  std::byte* memory = nullptr;
  size_t size = 0;
  std::atomic<int> users{1};  // the program's handle, and one per region
};

namespace {

Result<Buffer*> allocate(Pd* pd, size_t size) {
  if (size == 0) return Error{EINVAL, "the size of the buffer is 0"};
  auto buffer = std::make_unique<Buffer>();
  void* at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return kNoMemory;
  buffer->pd = pd;
  buffer->memory = static_cast<std::byte*>(at);
  buffer->size = size;
  pd->add_user();
  return buffer.release();
}

}  // namespace

void release_buffer(Buffer* buffer) {
  if (buffer->users.fetch_sub(1) != 1) return;
  munmap(buffer->memory, buffer->size);
  delete buffer;
}

void* alloc_buf(ibv_pd* pd, size_t size, Buffer** buffer) {
  *buffer = object_of<Buffer>("ibv_alloc_buf", [&] { return allocate(from(pd), size); });
  return *buffer != nullptr ? (*buffer)->memory : nullptr;
}

void free_buf(Buffer* buffer) {
  if (buffer == nullptr) return;
  buffer->pd->drop_user();
  release_buffer(buffer);
}

Result<ibv_mr*> register_buffer(Pd* pd, Buffer* buffer, void* address, size_t length, uint64_t iova,
                                unsigned access) {
  if (pd != buffer->pd) return Error{EINVAL, "the buffer is of another protection domain"};
  auto known = known_access(access);
  if (!known.ok()) return known.error();
  auto* at = static_cast<std::byte*>(address);
  const uint64_t offset =
      reinterpret_cast<uintptr_t>(at) - reinterpret_cast<uintptr_t>(buffer->memory);
  if (offset > buffer->size || length > buffer->size - offset) {
    return Error{EINVAL, "address and length are not within the buffer"};
  }
  if ((known.value() & IBV_ACCESS_ZERO_BASED) != 0) iova = 0;
  auto mr = add_region(pd, Mr::Kind::Buffer, at, length, iova, known.value());
  if (!mr.ok()) return mr.error();
  mr.value()->addr = address;
  mr.value()->buffer = buffer;
  buffer->users.fetch_add(1);
  return mr.value();
}

}  // namespace verbena::abi

using namespace verbena;
using namespace verbena::abi;

extern "C" {

VERBENA_EXPORT void* ibv_alloc_buf(ibv_pd* pd, size_t size, Buffer** buffer) {
  return alloc_buf(pd, size, buffer);
}

VERBENA_EXPORT void ibv_free_buf(Buffer* buffer) { free_buf(buffer); }

// rdma-core returns the same for a buffer of ordinary memory.
VERBENA_EXPORT int ibv_export_buf_dmabuf_fd(Buffer*) {
  refuse("ibv_export_buf_dmabuf_fd", Error{ENODATA, "the buffer is ordinary memory, no DMA-buf"});
  return -1;
}

VERBENA_EXPORT ibv_mr* ibv_reg_buf_mr(ibv_pd* pd, Buffer* buffer, void* address, size_t length,
                                      int access) {
  return object_of<ibv_mr>("ibv_reg_buf_mr", [&] {
    return register_buffer(from(pd), buffer, address, length, reinterpret_cast<uintptr_t>(address),
                           static_cast<unsigned>(access));
  });
}

}  // extern "C"

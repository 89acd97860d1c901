// SocketTable: see socket_table.h.
#include "rsocket/socket_table.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>

#include "rsocket/clock.h"

namespace verbena::rsocket {

SocketTable& SocketTable::instance() {
  // Never destroyed: the service thread may look up a socket while the process ends.
  alignas(SocketTable) static char memory[sizeof(SocketTable)];
  static SocketTable* table = new (memory) SocketTable;
  return *table;
}

SocketTable::Slot* SocketTable::slot_of(int number) {
  if (number < 0 || static_cast<size_t>(number) >= kSlotsPerChunk * kChunks) return nullptr;
  const auto index = static_cast<size_t>(number);
  Chunk* chunk = chunks_[index / kSlotsPerChunk].load(std::memory_order_acquire);
  return chunk ? &(*chunk)[index % kSlotsPerChunk] : nullptr;
}

SocketTable::Slot* SocketTable::make_slot(int number) {
  if (Slot* slot = slot_of(number)) return slot;
  if (number < 0 || static_cast<size_t>(number) >= kSlotsPerChunk * kChunks) return nullptr;
  auto fresh = std::make_unique<Chunk>();
  Chunk* none = nullptr;
  if (chunks_[static_cast<size_t>(number) / kSlotsPerChunk].compare_exchange_strong(none,
                                                                                    fresh.get())) {
    (void)fresh.release();
  }
  return slot_of(number);
}

Status SocketTable::add(std::unique_ptr<Socket> socket) {
  Slot* slot = make_slot(socket->number());
  if (!slot) return Error{EMFILE};
  slot->disowned = false;
  slot->socket.store(socket.release(), std::memory_order_relaxed);
  slot->users.store(kOpen, std::memory_order_release);
  return {};
}

SocketTable::Ref SocketTable::find(int number) {
  Slot* slot = slot_of(number);
  if (!slot) return {};
  uint32_t users = slot->users.load(std::memory_order_relaxed);
  do {
    if (!(users & kOpen)) return {};
  } while (!slot->users.compare_exchange_weak(users, users + 1, std::memory_order_acquire,
                                              std::memory_order_relaxed));
  return Ref(slot);
}

SocketTable::Ref SocketTable::take_out(int number) {
  Ref ref = find(number);
  if (!ref) return ref;
  const uint32_t before = slot_of(number)->users.fetch_and(~kOpen);
  if (!(before & kOpen)) return {};
  return ref;
}

bool SocketTable::is_closing(int number) {
  const Slot* slot = slot_of(number);
  if (!slot) return false;
  const uint32_t users = slot->users.load();
  return users > 0 && !(users & kOpen);
}

void SocketTable::close_all(Duration timeout) {
  const Instant deadline = now() + timeout;
  const auto each_open = [&](auto use) {
    for (size_t chunk = 0; chunk < kChunks; ++chunk) {
      if (!chunks_[chunk].load()) continue;
      for (size_t i = 0; i < kSlotsPerChunk; ++i) {
        if ((*chunks_[chunk].load())[i].users.load() & kOpen) {
          use(static_cast<int>(chunk * kSlotsPerChunk + i));
        }
      }
    }
  };
  each_open([&](int number) {
    if (const Ref socket = find(number)) socket->send_last_message();
  });
  each_open([&](int number) {
    if (const Ref socket = take_out(number)) {
      socket->flush(std::max(Duration{0}, deadline - now()));
      socket->close();
    }
  });
}

void SocketTable::release(Slot* slot) {
  if (slot->users.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  // The socket is closed and this was the last reference. Its number is free as soon as the object
  // is destroyed. The call has already set errno; the system calls below must not change it.
  const int saved_errno = errno;
  delete slot->socket.exchange(nullptr, std::memory_order_relaxed);
  errno = saved_errno;
}

void SocketTable::disown_all() {
  for (std::atomic<Chunk*>& chunk : chunks_) {
    if (!chunk.load()) continue;
    for (Slot& slot : *chunk.load()) {
      // a grandchild inherits the child's as well
      slot.disowned |= (slot.users.load() & kOpen) != 0;
      slot.users = 0;
      slot.socket = nullptr;  // its locks and queues belong to the parent
    }
  }
}

bool SocketTable::close_disowned(int number) {
  Slot* slot = slot_of(number);
  if (!slot || !slot->disowned) return false;
  slot->disowned = false;
  ::close(number);
  return true;
}

}  // namespace verbena::rsocket

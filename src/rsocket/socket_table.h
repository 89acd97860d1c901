// SocketTable: the rsockets of the process by number, which is the number of a descriptor that the
// socket owns, so that it collides with no other descriptor.
//
// A call holds a Ref while it works. Closing takes the socket out of the table at once, and
// destroys it, with all its descriptors, when the last Ref goes: no number is used again while
// somebody still sleeps on it. Looking one up takes no lock.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <utility>

#include "rsocket/socket.h"

namespace verbena::rsocket {

class SocketTable {
 public:
  class Ref;
  static SocketTable& instance();

  // EMFILE: the number is beyond all reason.
  Status add(std::unique_ptr<Socket> socket);
  // Empty: no such rsocket.
  Ref find(int number);
  // Takes it out; of two threads one gets it, the other nothing.
  Ref take_out(int number);
  // It was taken out, and is not gone yet: its descriptor is no ordinary one.
  bool is_closing(int number);
  // When the process ends, as the kernel does with its sockets.
  void close_all(Duration patience);

  // In the child of a fork: the parent's sockets are out of reach. Closing them still works.
  void disown_all();
  bool close_disowned(int number);

 private:
  static constexpr uint32_t kOpen = 1u << 31;
  struct Slot {
    std::atomic<uint32_t> users{0};  // and kOpen
    // Atomic, since the kernel alone orders the end of one socket before the next of its number.
    std::atomic<Socket*> socket{nullptr};
    bool disowned = false;
  };
  static constexpr size_t kSlotsPerChunk = 1024;
  static constexpr size_t kChunks = 16384;
  using Chunk = std::array<Slot, kSlotsPerChunk>;

  Slot* slot_of(int number);
  Slot* make_slot(int number);
  static void leave(Slot* slot);

  std::array<std::atomic<Chunk*>, kChunks> chunks_{};
};

class SocketTable::Ref {
 public:
  Ref() = default;
  Ref(Ref&& other) noexcept : slot_(std::exchange(other.slot_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    std::swap(slot_, other.slot_);
    return *this;
  }
  ~Ref() {
    if (slot_) leave(slot_);
  }
  explicit operator bool() const { return slot_ != nullptr; }
  Socket* operator->() const { return get(); }
  Socket& operator*() const { return *get(); }
  Socket* get() const { return slot_ ? slot_->socket.load(std::memory_order_relaxed) : nullptr; }

 private:
  friend class SocketTable;
  explicit Ref(Slot* slot) : slot_(slot) {}
  Slot* slot_ = nullptr;
};

}  // namespace verbena::rsocket

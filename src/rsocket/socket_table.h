// SocketTable: the rsockets of the process by number. The number is that of a descriptor that the
// socket owns, so it differs from all other descriptors.
//
// A call holds a Ref while it works. Closing removes the socket from the table at once and destroys
// it, with all its descriptors, with the last Ref: no number is reused while a thread still sleeps
// on it. A lookup takes no lock.
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

  // EMFILE: the number exceeds the table.
  Status add(std::unique_ptr<Socket> socket);
  // Returns an empty Ref if there is no such rsocket.
  Ref find(int number);
  // Removes the socket from the table. Of two threads only one gets it.
  Ref take_out(int number);
  // Whether the socket was removed but not yet destroyed: its descriptor is not an ordinary one.
  bool is_closing(int number);
  // Called when the process ends: closes the sockets as the kernel closes its own.
  void close_all(Duration timeout);

  // In the child of a fork: the parent's sockets cannot be used, but they can be closed.
  void disown_all();
  bool close_disowned(int number);

 private:
  static constexpr uint32_t kOpen = 1u << 31;
  struct Slot {
    std::atomic<uint32_t> users{0};  // number of references, and kOpen
    // Atomic, because only the kernel orders the end of one socket before the next one of its
    // number.
    std::atomic<Socket*> socket{nullptr};
    bool disowned = false;
  };
  static constexpr size_t kSlotsPerChunk = 1024;
  static constexpr size_t kChunks = 16384;
  using Chunk = std::array<Slot, kSlotsPerChunk>;

  Slot* slot_of(int number);
  Slot* make_slot(int number);
  static void release(Slot* slot);

  std::array<std::atomic<Chunk*>, kChunks> chunks_{};
};

class SocketTable::Ref {
 public:
  Ref() = default;
  explicit Ref(Slot* slot) : slot_(slot) {}  // Slot is private: only SocketTable has one
  Ref(Ref&& other) noexcept : slot_(std::exchange(other.slot_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    std::swap(slot_, other.slot_);
    return *this;
  }
  ~Ref() {
    if (slot_) release(slot_);
  }
  explicit operator bool() const { return slot_ != nullptr; }
  Socket* operator->() const { return get(); }
  Socket& operator*() const { return *get(); }
  Socket* get() const { return slot_ ? slot_->socket.load(std::memory_order_relaxed) : nullptr; }

 private:
  Slot* slot_ = nullptr;
};

}  // namespace verbena::rsocket

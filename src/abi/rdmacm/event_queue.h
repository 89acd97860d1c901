// Events for the program, and the channels in which they wait.
#pragma once

#include <rdma/rdma_cma.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

#include "base/result.h"
#include "os/waker.h"

namespace verbena::rdmacm {

struct Id;
struct Library;
struct Multicast;

// Event types that are newer than this header.
inline constexpr unsigned kAddrinfoResolved = 16;
inline constexpr unsigned kAddrinfoError = 17;
inline constexpr unsigned kUserEvent = 18;

// An event of rdma_get_cm_event. It is created when the event occurs; work that needs the program's
// thread (verbs calls) is done when the program takes it.
struct Event : rdma_cm_event {
  Event(Id& about, unsigned kind, int outcome = 0);

  Id* owner;  // the identifier that the acknowledgement counts for; of a request, the listener
  Multicast* group = nullptr;  // the group of a multicast event
  Event* next = nullptr;
  std::array<std::byte, 256> private_data{};

  unsigned kind() const;
  void set_kind(unsigned kind);
  // Copies the message's private data, so that the public fields can point to it.
  const void* keep(std::span<const std::byte> data);
};

// A FIFO queue that owns its events.
class EventList {
 public:
  EventList() = default;
  EventList(const EventList&) = delete;
  EventList& operator=(const EventList&) = delete;
  ~EventList();

  bool empty() const { return first_ == nullptr; }
  void push(std::unique_ptr<Event> event);
  std::unique_ptr<Event> pop();
  void append(EventList& from);
  // Moves the events for which `chosen` is true to the end of `to`.
  template <typename Chosen>
  void move_if(EventList& to, Chosen chosen) {
    EventList rest;
    while (!empty()) {
      std::unique_ptr<Event> event = pop();
      EventList& target = chosen(*event) ? to : rest;
      target.push(std::move(event));
    }
    append(rest);
  }

 private:
  Event* first_ = nullptr;
  Event* last_ = nullptr;
};

// A queue with a descriptor (an eventfd) that is readable exactly while events wait.
struct Channel : rdma_event_channel {
  static Result<Channel*> create(Library& library);
  // A program may call this while another thread waits in rdma_get_cm_event. That thread then waits
  // forever, as it would in the kernel.
  static void destroy(Channel* channel);

  void push(std::unique_ptr<Event> event);
  void append(EventList& events);
  bool empty() {
    const std::lock_guard lock(mutex_);
    return events_.empty();
  }
  struct Wait {
    bool counted = false;
    uint32_t seen = 0;
  };
  // Takes the next event and counts it for its owner. Returns false if there is none; the caller
  // then counts as waiting until it returns or stops.
  bool pop(std::unique_ptr<Event>& event, Wait& wait);
  // Sleeps until there may be an event. Returns 0, EAGAIN if the descriptor is O_NONBLOCK, or EINTR
  // after a signal whose handler has no SA_RESTART. The thread may be cancelled here, so no frame
  // of this library may need cleanup: its unwinder is not the program's.
  int sleep(const Wait& wait);
  void stop_waiting();
  // Removes the events for which `chosen` is true.
  template <typename Chosen>
  void remove_if(EventList& to, Chosen chosen) {
    const std::lock_guard lock(mutex_);
    if (events_.empty()) return;
    events_.move_if(to, chosen);
    quiet_if_empty();
  }

  Library* library;

 private:
  Channel(Library& in, int descriptor);
  void quiet_if_empty();

  std::mutex mutex_;
  EventList events_;
  uint32_t waiting_ = 0;  // a cancelled thread stays counted
  std::atomic<bool> destroyed_{false};
  os::Waker waker_;
};

inline Channel* from(rdma_event_channel* channel) { return static_cast<Channel*>(channel); }

}  // namespace verbena::rdmacm

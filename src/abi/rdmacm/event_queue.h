// Events on their way to the program, and the channels that they wait in.
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

// Kinds that came after this header's time.
inline constexpr unsigned kAddrinfoResolved = 16;
inline constexpr unsigned kAddrinfoError = 17;
inline constexpr unsigned kUserEvent = 18;

// What the program gets from rdma_get_cm_event. It is made when something happens; what needs the
// program's own thread (verbs calls) is done when it is taken.
struct Event : rdma_cm_event {
  Event(Id& about, unsigned kind, int outcome = 0);

  Id* owner;                   // whose acknowledgement it is: for a request the listener's
  Multicast* group = nullptr;  // what a multicast event is about
  Event* next = nullptr;
  std::array<std::byte, 256> private_data{};

  unsigned kind() const;
  void set_kind(unsigned kind);
  // Copies what the message carried to where the public fields may point.
  const void* keep(std::span<const std::byte> data);
};

// First in, first out; owns what is in it.
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
  // Moves those for which `chosen` holds to the end of `to`.
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
  // Programs do this while another thread waits in rdma_get_cm_event. It then waits for ever, as it
  // would in the kernel.
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
  // Takes the next one, counted as its owner's. False: there is none, and the caller is counted as
  // one who waits until it comes back or stops.
  bool pop(std::unique_ptr<Event>& event, Wait& wait);
  // Until there may be one: 0; EAGAIN if the descriptor is O_NONBLOCK, EINTR when a signal arrived
  // whose handler has no SA_RESTART. Here a thread may be cancelled: no frame of this library may
  // have anything to clean up then, since its unwinder is not the program's.
  int sleep(const Wait& wait);
  void stop_waiting();
  // Takes out what `chosen` holds for.
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
  uint32_t waiting_ = 0;  // a thread that was cancelled stays in it
  std::atomic<bool> destroyed_{false};
  os::Waker waker_;
};

inline Channel* from(rdma_event_channel* channel) { return static_cast<Channel*>(channel); }

}  // namespace verbena::rdmacm

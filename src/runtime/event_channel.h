// EventChannel: a queue with a file descriptor, for completion events and asynchronous events of
// verbs. The descriptor is readable exactly while events wait; programs poll it, epoll it and set
// O_NONBLOCK on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>

#include "base/queue.h"
#include "base/result.h"
#include "os/unique_fd.h"
#include "os/waker.h"

namespace verbena::runtime {

struct Event {
  int kind = 0;            // ibv_event_type for asynchronous events; unused for completions
  void* object = nullptr;  // the ABI object (ibv_cq, ibv_qp, ...); null: the port
};

class EventChannel {
 public:
  static Result<EventChannel*> create();
  EventChannel(const EventChannel&) = delete;
  EventChannel& operator=(const EventChannel&) = delete;

  // -1 in the child of a fork, where waiting fails.
  int fd() const { return fd_.get(); }
  // Reserves memory for `count` more events. False: out of memory.
  bool reserve(size_t count);
  // False: out of memory.
  bool push(const Event& event);
  // Takes the next event. Waits for one unless the descriptor is O_NONBLOCK (then EAGAIN); EINTR
  // after a signal whose handler has no SA_RESTART, as read() would. `taken` is called while the
  // channel is locked, so its counts are complete when forget() returns, and destroying an object
  // can wait for the acknowledgements.
  int pop(Event* event, void (*taken)(const Event&) = nullptr);
  // The same without waiting: 0, EAGAIN or EBADF.
  int try_pop(Event* event, void (*taken)(const Event&) = nullptr);
  bool nonblocking() const;
  // An object is destroyed: drops its events that were not taken.
  void forget(const void* object);

 private:
  explicit EventChannel(int fd) : fd_(fd) {}
  void quiet_if_empty();

  const os::UniqueFd fd_;
  std::mutex mutex_;
  Queue<Event> events_;
  os::Waker waker_;
};

class CqLanes;

// The ABI object around a core object (core's `owner` points here).
struct Owner {
  EventChannel* completion_channel = nullptr;  // of a completion queue that has one
  EventChannel* async_channel = nullptr;       // of its context
  void* object = nullptr;                      // goes into Event::object
  CqLanes* lanes = nullptr;                    // of a completion queue
  Owner* next = nullptr;                       // the next owner of the same core object
};

// Pushes an asynchronous event to all of these owners, or to none of them. False: out of memory. No
// other thread may push into their asynchronous channels meanwhile.
bool push_to_all(const Owner* first, int kind);

}  // namespace verbena::runtime

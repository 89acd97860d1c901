// EventChannel: a queue with a real file descriptor, as verbs wants for completion events and for
// asynchronous events. The descriptor is readable exactly while events wait; programs poll it,
// epoll it and set O_NONBLOCK on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>

#include "base/queue.h"
#include "base/result.h"
#include "os/waker.h"

namespace verbena::runtime {

struct Event {
  int kind = 0;            // ibv_event_type for asynchronous events; unused for completions
  void* object = nullptr;  // the ABI's object it is about (ibv_cq, ibv_qp, ...); null: the port
};

class EventChannel {
 public:
  static Result<EventChannel*> create();
  ~EventChannel();
  EventChannel(const EventChannel&) = delete;
  EventChannel& operator=(const EventChannel&) = delete;

  int fd() const { return fd_; }
  // Room for so many events more. False if there is no memory.
  bool reserve(size_t count);
  // False if there is no memory for it.
  bool push(const Event& event);
  // Takes the next event. Waits for one unless the descriptor is O_NONBLOCK (then EAGAIN); EINTR
  // when a signal arrived whose handler has no SA_RESTART, as read() would. `taken` is called while
  // the channel is still locked: what it counts is complete when forget() returns, so that
  // destroying can wait for the acknowledgements.
  int pop(Event* event, void (*taken)(const Event&) = nullptr);
  // The same without waiting: 0, EAGAIN or EBADF.
  int try_pop(Event* event, void (*taken)(const Event&) = nullptr);
  bool nonblocking() const;
  // An object goes away: drops the events about it that nobody has taken.
  void forget(const void* object);
  // In the child of a fork: the descriptor's copy goes, waiting on it fails.
  void abandon();

 private:
  explicit EventChannel(int fd) : fd_(fd) {}
  void quiet_if_empty();

  int fd_;
  std::mutex mutex_;
  Queue<Event> events_;
  os::Waker waker_;
};

// What runtime needs to know about the ABI's object around a core object (core's `owner` points
// here).
struct Owner {
  EventChannel* completion_channel = nullptr;  // completion queues made with one
  EventChannel* async_channel = nullptr;       // its context's
  void* object = nullptr;                      // goes into Event::object
  Owner* next = nullptr;                       // another one around the same core object
};

// Tells all of these owners of an asynchronous event, or none of them: false if there is no memory.
// Nobody else pushes into their asynchronous channels meanwhile.
bool push_to_all(const Owner* first, int kind);

}  // namespace verbena::runtime

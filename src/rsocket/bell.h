// How a thread that sleeps in an rsocket call is woken by another thread.
//
// A Bell is a thread's own eventfd, which it adds to what it sleeps on. Before it sleeps, it hangs
// it at every socket it waits for (Waiters); whoever changes a socket rings all bells hung there.
// So it does not matter which of several waiting threads the kernel wakes first, and which of them
// takes the completions away: the others hear of it.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/result.h"

namespace verbena::rsocket {

class Bell {
 public:
  // Made and opened at the first use.
  static Result<Bell*> of_this_thread();
  Bell() = default;
  ~Bell();
  Bell(const Bell&) = delete;
  Bell& operator=(const Bell&) = delete;

  int fd() const { return fd_; }
  void ring();
  // By the owner, when its descriptor is readable, before it looks whether what it waits for is
  // there.
  void silence();

  // EMFILE, ENFILE, ENOMEM.
  Status open();

 private:
  int fd_ = -1;
  uint32_t process_ = 0;  // which child of a fork made it: others must not share it
  std::atomic<bool> rung_{false};
};

// The bells that hang at one socket; guarded by the socket's lock.
class Waiters {
 public:
  struct Node {
    Bell* bell = nullptr;
    bool hangs = false;
    Node* next = nullptr;
    Node* previous = nullptr;
  };

  void add(Node* node);
  void remove(Node* node);
  bool empty() const { return first_ == nullptr; }
  // All but the caller's own: it is awake.
  void ring_others() const;

 private:
  Node* first_ = nullptr;
};

// Counts the forks between the first process and this one.
uint32_t process_generation();
void on_fork_in_child();

}  // namespace verbena::rsocket

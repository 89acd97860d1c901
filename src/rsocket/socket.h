// Socket: the common part of stream and datagram sockets, as used by the calls (api.cc), by rpoll
// (poll.cc) and by the service thread (service_thread.h).
//
// Locking: lock_ guards the state and is held briefly. A thread that has to wait busy-polls for a
// short time, then sleeps in wait(), which releases the lock.
#pragma once

#include <poll.h>

#include <mutex>
#include <optional>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "rsocket/address.h"
#include "rsocket/buffers.h"
#include "rsocket/spin.h"
#include "rsocket/wakeup_fd.h"

namespace verbena::rsocket {

// The parameters of a send or receive besides its bytes.
struct Transfer {
  int flags = 0;                               // MSG_*
  const SocketAddress* destination = nullptr;  // sending: the named destination, if any
  bool wants_source = false;                   // receiving: fill in `source`
  SocketAddress source;
  bool truncated = false;  // receiving: the datagram was longer
};

class Socket {
 public:
  virtual ~Socket() = default;
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  int number() const { return number_; }

  // --- calls ------------------------------------------------------------------------------------
  virtual Status bind(const SocketAddress& address) = 0;
  virtual Status listen(int backlog);
  virtual Result<int> accept(SocketAddress* peer);
  virtual Status connect(const SocketAddress& address) = 0;
  virtual Status disconnect();  // connect() to AF_UNSPEC
  virtual Status shutdown(int how) = 0;
  virtual Result<size_t> send(Buffers& from, const Transfer& transfer) = 0;
  virtual Result<size_t> receive(Buffers& to, Transfer& transfer) = 0;
  virtual Result<SocketAddress> name() = 0;
  virtual Result<SocketAddress> peer_name() = 0;
  virtual Status set_option(int level, int option, const void* value, socklen_t size) = 0;
  virtual Status get_option(int level, int option, void* value, socklen_t* size) = 0;
  virtual Result<off_t> iomap(void* buffer, size_t size, int protection, off_t offset);
  virtual Status iounmap(void* buffer, size_t size);
  virtual Result<size_t> iowrite(Buffers& from, off_t offset, int flags);
  int file_flags();
  void set_file_flags(int flags);
  int descriptor_flags();
  void set_descriptor_flags(int flags);
  // Closing has three steps: send_last_message() notifies the peer, if there is one, without
  // waiting; flush() waits until the peer has received everything; close() ends the socket, which
  // is no longer in the table. Calls that wait in other threads return EBADF; the last of them
  // destroys the object.
  virtual void send_last_message() {}
  virtual void flush(Duration timeout) = 0;
  virtual void close() = 0;

  // --- rpoll ------------------------------------------------------------------------------------
  // Returns the ready events among `events` and those that poll() always reports.
  short poll_now(short events);
  // As poll_now(). If nothing is ready, a later change of the socket signals the node's WakeupFd or
  // makes one of the added descriptors readable.
  short poll_and_register(short events, Waiters::Node* node, std::vector<pollfd>* descriptors);
  void unregister(Waiters::Node* node);
  // Called after sleeping.
  short poll_woken(short events);

  // --- service thread ---------------------------------------------------------------------------
  // A watched descriptor is readable.
  virtual void on_ready(int descriptor) = 0;
  // The time set with ServiceThread::wake_at() is reached.
  virtual void on_tick(Instant) {}

 protected:
  explicit Socket(int number) : number_(number) {}

  // All of these require the lock.
  virtual void progress() = 0;          // takes completions
  virtual bool arm() = 0;               // arms the completion queue; false: it was armed already
  virtual void drain_events() = 0;      // removes the events that arm() caused
  virtual short readiness() const = 0;  // all poll() bits that are set
  // Adds the descriptors that armed completion queues make readable.
  virtual void add_descriptors(std::vector<pollfd>* to) const = 0;

  using Lock = std::unique_lock<std::mutex>;
  // Waits until ready() is true; it is called with the lock held. Errors: EINTR; EAGAIN if the
  // deadline has passed.
  template <typename Ready>
  Status wait(Lock& lock, Instant deadline, Ready ready) {
    const auto check = [&](Duration waited) {
      lock.unlock();  // gives other threads a chance
      pause_between_checks(waited);
      lock.lock();
      progress();
      return ready();
    };
    if (spin(SpinBudget::of_this_thread(), deadline, check)) return {};
    Sleeper sleeper(*this, lock);
    if (!sleeper.status().ok()) return sleeper.status();
    for (;;) {
      sleeper.arm();
      if (ready()) return {};
      const Status slept = sleeper.sleep(deadline);
      progress();
      if (ready()) return {};
      if (!slept.ok()) return slept;
    }
  }
  // Called when a condition that others may wait for has changed.
  void wake_waiters() const { waiters_.signal_others(); }
  bool nonblocking(int flags) const;
  Instant send_deadline() const;
  Instant receive_deadline() const;
  void inherit_time_limits(const Socket& from);
  // SO_RCVTIMEO and SO_SNDTIMEO. Returns nothing for any other option.
  std::optional<Status> set_time_limit(int option, const void* value, socklen_t size);
  std::optional<Status> get_time_limit(int option, void* value, socklen_t* size) const;

  std::mutex lock_;
  bool closed_ = false;

 private:
  // A thread that sleeps on this socket.
  class Sleeper {
   public:
    Sleeper(Socket& socket, Lock& lock);
    ~Sleeper();
    const Status& status() const { return status_; }
    void arm();
    Status sleep(Instant deadline);

   private:
    Socket& socket_;
    Lock& lock_;
    Waiters::Node node_;
    Status status_;
  };

  // Arms, then takes the completions from before arming, which cause no event.
  void arm_and_progress();
  // Removes a waiter. Its thread may have taken the event that others sleep on, so the queue is
  // armed again.
  void remove_waiter(Waiters::Node* node);

  const int number_;
  int file_flags_ = 0;
  int descriptor_flags_ = 0;
  Duration send_limit_{0};  // 0: none
  Duration receive_limit_{0};
  uint32_t polls_without_progress_ = 0;
  Waiters waiters_;
};

}  // namespace verbena::rsocket

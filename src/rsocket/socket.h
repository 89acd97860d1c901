// Socket: what streams and datagrams have in common as seen from the calls (api.cc), from rpoll
// (poll.cc) and from the attendant thread (attendant.h).
//
// Locking: lock_ guards the state and is held shortly. A thread that has to wait for something
// spins a moment, then sleeps in wait(), which gives the lock up.
#pragma once

#include <poll.h>

#include <mutex>
#include <optional>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "rsocket/address.h"
#include "rsocket/bell.h"
#include "rsocket/buffers.h"
#include "rsocket/spin.h"

namespace verbena::rsocket {

// Of a send or receive beside its bytes.
struct Transfer {
  int flags = 0;                               // MSG_*
  const SocketAddress* destination = nullptr;  // sending: where to, if named
  bool wants_source = false;                   // receiving: fill in `source`
  SocketAddress source;
  bool truncated = false;  // receiving a datagram: it was longer
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
  // Closing: tells the peer, if there is one, without waiting for anything; waits until the peer
  // has everything; and, out of the table by now, ends. Calls that still wait in other threads come
  // back with EBADF; the object goes with the last of them.
  virtual void say_farewell() {}
  virtual void flush(Duration patience) = 0;
  virtual void close() = 0;

  // --- rpoll ------------------------------------------------------------------------------------
  // What holds now, of `events` and of what poll() always tells.
  short poll_now(short events);
  // The same, and where nothing holds: rings node's bell when something may have changed, as does
  // readability of the descriptors it adds.
  short poll_and_hang(short events, Waiters::Node* node, std::vector<pollfd>* descriptors);
  void take_down(Waiters::Node* node);
  // After sleeping.
  short poll_woken(short events);

  // --- the attendant ----------------------------------------------------------------------------
  // A watched descriptor is readable.
  virtual void on_ready(int descriptor) = 0;
  // The time has come for which it asked (Attendant::wake_at).
  virtual void on_tick(Instant) {}

 protected:
  explicit Socket(int number) : number_(number) {}

  // All with the lock held.
  virtual void progress() = 0;          // takes completions
  virtual bool arm() = 0;               // the next completion is to wake; false: it already would
  virtual void drain_events() = 0;      // the other end of arm()
  virtual short readiness() const = 0;  // all poll() bits that hold
  // Those that armed completions make readable.
  virtual void add_descriptors(std::vector<pollfd>* to) const = 0;

  using Lock = std::unique_lock<std::mutex>;
  // Until ready() says so, called with the lock held. EINTR; EAGAIN when the deadline came first.
  template <typename Ready>
  Status wait(Lock& lock, Instant deadline, Ready ready) {
    const auto look = [&](Duration waited) {
      lock.unlock();  // others may want to look, too
      pause_between_looks(waited);
      lock.lock();
      progress();
      return ready();
    };
    if (spin(SpinBudget::of_this_thread(), deadline, look)) return {};
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
  // Something that others may wait for has changed.
  void ring_waiters() const { waiters_.ring_others(); }
  bool nonblocking(int flags) const;
  Instant send_deadline() const;
  Instant receive_deadline() const;
  void inherit_time_limits(const Socket& from);
  // SO_RCVTIMEO and SO_SNDTIMEO. Nothing where it is another option.
  std::optional<Status> set_time_limit(int option, const void* value, socklen_t size);
  std::optional<Status> get_time_limit(int option, void* value, socklen_t* size) const;

  std::mutex lock_;
  bool closed_ = false;

 private:
  // A thread asleep at this socket.
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

  // Arms, and takes what completed before arming, which makes no event.
  void arm_and_progress();
  // The bell does not hang here any longer. Its owner may have taken the event that others sleep
  // on.
  void leave(Waiters::Node* node);

  const int number_;
  int file_flags_ = 0;
  int descriptor_flags_ = 0;
  Duration send_limit_{0};  // 0: none
  Duration receive_limit_{0};
  uint32_t looks_spared_ = 0;
  Waiters waiters_;
};

}  // namespace verbena::rsocket

// StreamSocket: an rsocket of type SOCK_STREAM.
//
// Whose thread does what: connection events (stream_connect.cc, stream_listen.cc) are handled by
// the attendant alone; completions (stream_progress.cc) by whoever calls, since data moves only
// when somebody sends, receives, polls or waits.
//
// Locks, in this order: event_turn_, send_turn_ (one sender at a time) or receive_turn_ (one
// receiver), then lock_ (Socket's). Bytes are copied under a turn alone, so that both directions of
// a connection and the handling of completions do not wait for each other's copies. Nobody sleeps
// with a turn. Locks of two sockets are never held together.
#pragma once

#include <netinet/tcp.h>
#include <rdma/rdma_cma.h>

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "rsocket/iomaps.h"
#include "rsocket/settings.h"
#include "rsocket/socket.h"
#include "rsocket/socket_table.h"
#include "rsocket/stream_endpoint.h"

namespace verbena::rsocket {

class StreamSocket final : public Socket {
 public:
  // A new socket, already in the table; its number.
  static Result<int> create(int family, int file_flags, int descriptor_flags);
  ~StreamSocket() override;

  Status bind(const SocketAddress& address) override;
  Status listen(int backlog) override;
  Result<int> accept(SocketAddress* peer) override;
  Status connect(const SocketAddress& address) override;
  Status shutdown(int how) override;
  Result<size_t> send(Buffers& from, const Transfer& transfer) override;
  Result<size_t> receive(Buffers& to, Transfer& transfer) override;
  Result<SocketAddress> name() override;
  Result<SocketAddress> peer_name() override;
  Status set_option(int level, int option, const void* value, socklen_t size) override;
  Status get_option(int level, int option, void* value, socklen_t* size) override;
  Result<off_t> iomap(void* buffer, size_t size, int protection, off_t offset) override;
  Status iounmap(void* buffer, size_t size) override;
  Result<size_t> iowrite(Buffers& from, off_t offset, int flags) override;
  void say_farewell() override;
  void flush(Duration patience) override;
  void close() override;

  void on_ready(int descriptor) override;
  void on_tick(Instant now) override;

 private:
  enum class State : uint8_t {
    kIdle,  // fresh or bound
    kListening,
    kResolvingAddress,  // connecting, step by step
    kResolvingRoute,
    kConnecting,
    kConnected,
    kOver,  // was connected, or never came to be
  };
  // A connection event, copied: the original goes back at once.
  struct Event {
    rdma_cm_event_type type;
    int status;
    rdma_cm_id* id;
    rdma_conn_param parameters;
    std::vector<std::byte> private_data;
  };

  // What the application asked for, as far as it outlives the call. Children inherit it.
  struct Options {
    Sizes sizes;
    bool reuse_address = false;
    bool no_delay = false;
    bool out_of_band_inline = false;
    std::optional<bool> v6_only;  // unset: the system's
    bool keepalive = false;
    std::optional<int> keep_idle_s, keep_interval_s, keep_count;  // unset: the system's
    int keep_idle() const;
    int keep_interval() const;
    int keep_probes() const;
    int type_of_service = 0;
    linger lingering{};
    std::map<std::pair<int, int>, int> kept;  // by level and option: those without a meaning here
  };

  StreamSocket(int family, int number, rdma_event_channel* channel, rdma_cm_id* id);
  static Result<std::unique_ptr<StreamSocket>> make(int family, rdma_cm_id* id);

  void progress() override;
  bool arm() override;
  void drain_events() override;
  short readiness() const override;
  void add_descriptors(std::vector<pollfd>* to) const override;
  unsigned awaited() const;

  bool connecting() const {
    return state_ >= State::kResolvingAddress && state_ < State::kConnected;
  }
  bool readable_end() const { return state_ == State::kConnected && peer_open_ && read_open_; }

  // --- stream_connect.cc ------------------------------------------------------------------------
  // All with the lock held.
  Status watch();
  void unwatch();
  Status renew();
  Status fresh_id();
  Status apply_options();
  Status resolve_address();
  Status resolve_route();
  Status request_connection();
  void on_event(const Event& event);
  void on_established(const Event& event);
  void become_connected();
  void on_disconnected();
  void retry_or_end(int error, Status (StreamSocket::*step)());
  // The connection is over; what arrived can still be read. 0: it was closed in good order.
  void end(int error);
  Status wait_connected(Lock& lock, Instant deadline);
  // Of an attempt to connect, when it is known.
  Status tell_outcome(Lock& lock);
  // Without the lock.
  std::optional<Event> next_event();
  int take_error() { return std::exchange(error_, 0); }

  // --- stream_listen.cc -------------------------------------------------------------------------
  // A connection that is set up, or being so, and was not accepted yet.
  struct Pending {
    rdma_cm_id* id = nullptr;  // with the listener's channel; null once it went to its socket
    std::unique_ptr<StreamEndpoint> endpoint;
    bool established = false;
    bool hung_up = false;
    Pending() = default;
    ~Pending();
    Pending(const Pending&) = delete;
    Pending& operator=(const Pending&) = delete;
  };
  void on_child_event(const Event& event);
  void on_request(const Event& event);
  Status stop_listening();
  Status set_up(const Event& event, const ConnectData& peer);
  Result<std::unique_ptr<StreamSocket>> make_socket_of(Pending& pending);

  // --- stream_progress.cc -----------------------------------------------------------------------
  void on_completion(const ibv_wc& completion, unsigned* received);
  void on_message(const ibv_wc& completion);
  void on_control(Control control);
  void end_if_all_is_said();
  void send_pending();
  void post_failed(int error);

  // --- stream_transfer.cc -----------------------------------------------------------------------
  Status may_send() const;
  Result<size_t> outcome(size_t done, const Status& status);
  Status wait_to_write(Lock& turn, Lock& lock, int flags, Instant deadline, bool with_credit);
  Status announce_iomaps(Lock& turn, Lock& lock, int flags, Instant deadline);
  uint64_t copy_to(Buffers& to, Lock& lock, bool peek);
  std::optional<RemoteBuffer> find_peer_iomap(uint64_t offset) const;

  // --- stream_close.cc --------------------------------------------------------------------------
  void say_goodbye(Control control);
  bool goodbye_heard() const { return !goodbye_pending_ && goodbyes_in_flight_ == 0; }
  void wait_for_goodbye(Lock& lock, Duration limit);
  void schedule_probe(Instant from);

  // --- stream_options.cc ------------------------------------------------------------------------
  Status set_socket_option(int option, const void* value, socklen_t size);
  Status set_tcp_option(int option, const void* value, socklen_t size);
  Status set_rdma_option(int option, const void* value, socklen_t size);
  Status get_socket_option(int option, void* value, socklen_t* size);
  Status get_tcp_option(int option, void* value, socklen_t* size);
  Status get_rdma_option(int option, void* value, socklen_t* size);
  std::optional<int> kept_option(int level, int option) const;

  std::mutex event_turn_;  // before the others: one thread at a time works on the id
  std::mutex send_turn_;
  std::mutex receive_turn_;

  const int family_;
  rdma_event_channel* const channel_;
  rdma_cm_id* id_;
  State state_ = State::kIdle;
  Options options_;
  bool watched_ = false;
  std::optional<SocketAddress> bound_;
  SocketAddress destination_;
  std::vector<std::byte> route_;  // RDMA_ROUTE
  unsigned retries_ = 0;
  bool outcome_owed_ = false;  // connect() began something and has not told how it ended

  // A connection.
  std::unique_ptr<StreamEndpoint> endpoint_;
  std::unique_ptr<Iomaps> iomaps_;
  bool peer_open_ = false;   // it may send more
  bool read_open_ = false;   // we have not shut down reading
  bool write_open_ = false;  // nor writing
  int error_ = 0;            // for the next call that can tell it
  bool was_connected_ = false;
  bool reset_told_ = false;       // who sends nevertheless is told EPIPE
  std::optional<Control> said_;   // the last goodbye
  bool goodbye_pending_ = false;  // it waits for a place in the send queue
  unsigned goodbyes_in_flight_ = 0;
  bool active_ = false;   // something completed since the last tick
  bool probing_ = false;  // a probe is under way
  bool probed_ = false;   // one was sent at the last tick, or before and not answered yet
  int unanswered_ = 0;    // intervals since the probe was sent

  // A listener.
  size_t backlog_ = 0;
  std::unordered_map<rdma_cm_id*, std::unique_ptr<Pending>> pending_;
  std::deque<rdma_cm_id*> ready_;  // of those, for accept()
};

}  // namespace verbena::rsocket

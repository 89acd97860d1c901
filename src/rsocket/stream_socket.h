// StreamSocket: an rsocket of type SOCK_STREAM.
//
// Threads: only the service thread handles connection events (stream_connect.cc, stream_listen.cc).
// The calling threads handle completions (stream_progress.cc): data moves only while a thread
// sends, receives, polls or waits.
//
// Locks, in this order: event_mutex_, send_mutex_ (one sender at a time) or receive_mutex_ (one
// receiver), then lock_ (of Socket). Bytes are copied under the mutex of their direction only, so
// that the two directions and the handling of completions do not wait for each other's copies. No
// thread sleeps with one of the three mutexes held. Locks of two sockets are never held together.
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
  // Creates a socket, adds it to the table and returns its number.
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
  void send_last_message() override;
  void flush(Duration timeout) override;
  void close() override;

  void on_ready(int descriptor) override;
  void on_tick(Instant now) override;

 private:
  enum class State : uint8_t {
    kIdle,  // new or bound
    kListening,
    kResolvingAddress,  // the steps of connecting
    kResolvingRoute,
    kConnecting,
    kConnected,
    kOver,  // was connected, or the attempt failed
  };
  // A copy of a connection event; the original is acknowledged at once.
  struct Event {
    rdma_cm_event_type type;
    int status;
    rdma_cm_id* id;
    rdma_conn_param parameters;
    std::vector<std::byte> private_data;
  };

  // The application's options that outlive the call. Accepted sockets inherit them.
  struct Options {
    Sizes sizes;
    bool reuse_address = false;
    bool no_delay = false;
    bool out_of_band_inline = false;
    std::optional<bool> v6_only;  // unset: the system's default
    bool keepalive = false;
    std::optional<int> keep_idle_s, keep_interval_s, keep_count;  // unset: the system's default
    int keep_idle() const;
    int keep_interval() const;
    int keep_probes() const;
    int type_of_service = 0;
    linger lingering{};
    std::map<std::pair<int, int>, int> ignored;  // by level and option: options without an effect
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
  bool may_receive_more() const { return state_ == State::kConnected && peer_open_ && read_open_; }

  // --- stream_connect.cc ------------------------------------------------------------------------
  // All of these require the lock.
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
  // Ends the connection; received data can still be read. 0: it was closed normally.
  void end(int error);
  Status wait_connected(Lock& lock, Instant deadline);
  // Waits for the result of a connection attempt and reports it.
  Status report_outcome(Lock& lock);
  // Called without the lock.
  std::optional<Event> next_event();
  int take_error() { return std::exchange(error_, 0); }

  // --- stream_listen.cc -------------------------------------------------------------------------
  // A connection that is set up, or being set up, and not yet accepted.
  struct Pending {
    rdma_cm_id* id = nullptr;  // uses the listener's channel; null after its socket took it
    std::unique_ptr<StreamEndpoint> endpoint;
    bool established = false;
    bool disconnected = false;
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
  void end_if_both_closed();
  void send_pending();
  void post_failed(int error);

  // --- stream_transfer.cc -----------------------------------------------------------------------
  Status may_send() const;
  Result<size_t> outcome(size_t done, const Status& status);
  Status wait_to_write(Lock& direction_lock, Lock& lock, int flags, Instant deadline,
                       bool with_credit);
  Status announce_iomaps(Lock& direction_lock, Lock& lock, int flags, Instant deadline);
  uint64_t copy_to(Buffers& to, Lock& lock, bool peek);
  std::optional<RemoteBuffer> find_peer_iomap(uint64_t offset) const;

  // --- stream_close.cc --------------------------------------------------------------------------
  void queue_last_message(Control control);
  bool last_message_acked() const {
    return !last_message_pending_ && last_messages_in_flight_ == 0;
  }
  void wait_for_last_message(Lock& lock, Duration limit);
  void schedule_probe(Instant from);

  // --- stream_options.cc ------------------------------------------------------------------------
  Status set_socket_option(int option, const void* value, socklen_t size);
  Status set_tcp_option(int option, const void* value, socklen_t size);
  Status set_rdma_option(int option, const void* value, socklen_t size);
  Status get_socket_option(int option, void* value, socklen_t* size);
  Status get_tcp_option(int option, void* value, socklen_t* size);
  Status get_rdma_option(int option, void* value, socklen_t* size);
  std::optional<int> stored_option(int level, int option) const;

  std::mutex event_mutex_;  // locked first: one thread at a time works on the ID
  std::mutex send_mutex_;
  std::mutex receive_mutex_;

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
  bool outcome_pending_ = false;  // connect() has started and not yet reported its result

  // State of a connection.
  std::unique_ptr<StreamEndpoint> endpoint_;
  std::unique_ptr<Iomaps> iomaps_;
  bool peer_open_ = false;   // the peer may send more
  bool read_open_ = false;   // reading is not shut down
  bool write_open_ = false;  // writing is not shut down
  int error_ = 0;            // reported by the next call
  bool was_connected_ = false;
  bool reset_reported_ = false;          // later sends report EPIPE
  std::optional<Control> last_message_;  // shutdown or disconnect, once requested
  bool last_message_pending_ = false;    // waits for a control slot
  unsigned last_messages_in_flight_ = 0;
  bool active_ = false;           // there was a completion since the last tick
  bool probe_in_flight_ = false;  // a probe is not yet acknowledged
  bool probe_sent_ = false;       // a probe was sent at the last tick, or is not yet acknowledged
  int missed_intervals_ = 0;      // intervals since the probe was sent

  // State of a listener.
  size_t backlog_ = 0;
  std::unordered_map<rdma_cm_id*, std::unique_ptr<Pending>> pending_;
  std::deque<rdma_cm_id*> ready_;  // established ones of pending_, for accept()
};

}  // namespace verbena::rsocket

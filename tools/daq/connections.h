// The receiver's connections: assigns streams to boards, and opens, supervises and closes them.
#pragma once

#include <infiniband/verbs.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/time.h"
#include "daq/host_manager.h"
#include "tools/daq/plan.h"
#include "tools/daq/recv.h"
#include "tools/daq/stream.h"
#include "tools/daq/udp.h"

namespace verbena::daqtool {

class Connections {
 public:
  struct Hooks {
    std::function<void(const std::string&)> log;
    std::function<void(Instant)> drain_completions;  // polls until the queue is empty
  };
  Connections(const ReceiveOptions& options, const Plan& plan, const VerbsDevice& device,
              ibv_cq* cq, Hooks hooks);

  // Requests connections from the boards, or starts to wait for boards.
  void begin();
  // Handles messages, deadlines and silent boards. Call it periodically.
  void do_housekeeping(Instant at);

  // The stream of a completion; nullptr: its connection has ended.
  Stream* stream_of(const ibv_wc& completion);
  // Ends the connection of a failed stream; the stream's summary has the reason.
  void on_failure(const Stream& stream, Instant at);
  // Processes the received messages of every stream.
  void consume(Instant at);

  bool all_done() const;
  Instant next_deadline() const;
  Instant last_activity() const;
  int fd() const { return socket_.fd(); }
  // Closes all connections and completes the summaries.
  void end(Instant at);

  struct View {
    const StreamSummary& so_far;
    const char* state;
    uint32_t receives_posted;
  };
  std::vector<View> view() const;

 private:
  enum class State : uint8_t { Free, Opening, Running, Closing, Waiting, Done };
  struct Connection {  // a stream and the state of its connection
    std::unique_ptr<Stream> stream;
    uint32_t board = 0;  // to connect to; 0: the board connects
    State state = State::Free;
    uint32_t id = 0;  // of the connection
    Instant reopen_at = kNever;
  };

  static const char* name_of(State state);
  void receive_messages(Instant at);
  void send_messages();
  void open(Connection& connection);
  void on_event(const daq::HostEvent& event, Instant at);
  void on_peer_closed(Connection& connection, const daq::HostEvent& event, Instant at);
  bool start(Connection& connection, const daq::QpInfo& peer);
  void accept(const daq::HostEvent& event, Instant at);
  void on_failure(Connection& connection, Instant at);
  void end_connection(Connection& connection, const std::string& why, Instant at);
  void check_silence(Connection& connection, Instant at);
  bool is_quiet(const Connection& connection) const;
  double silence_limit(const Connection& connection) const;
  Connection* connection_of(uint32_t id);
  void log(const Connection& connection, const std::string& text);

  const ReceiveOptions& options_;
  ibv_cq* cq_;
  Hooks hooks_;
  daq::HostManager cm_;
  UdpSocket socket_;
  std::vector<Connection> connections_;
};

}  // namespace verbena::daqtool

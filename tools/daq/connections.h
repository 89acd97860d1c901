// The receiver's connections: which stream is with which board, and what is said on the way there
// and back.
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
    std::function<void(const std::string&)> say;
    std::function<void(Instant)> take_completions;  // all that there are
  };
  Connections(const ReceiveOptions& options, const Plan& plan, const VerbsDevice& device,
              ibv_cq* cq, Hooks hooks);

  // Asks the boards, or says that they may ask.
  void begin();
  // Messages, deadlines, silences: every now and then.
  void look_after(Instant at);

  // Whose completion this is; nullptr: of a connection that is over.
  Stream* stream_of(const ibv_wc& completion);
  // Its connection has failed; the stream's summary says why.
  void on_failure(const Stream& stream, Instant at);
  // Looks at what has arrived, in every stream.
  void consume(Instant at);

  bool all_done() const;
  Instant next_deadline() const;
  Instant last_heard() const;
  int fd() const { return socket_.fd(); }
  // Takes leave of all boards, and closes the books.
  void end(Instant at);

  struct View {
    const StreamSummary& so_far;
    const char* state;
    uint32_t receives_posted;
  };
  std::vector<View> view() const;

 private:
  enum class State : uint8_t { Free, Opening, Running, Closing, Waiting, Done };
  struct Lane {  // a stream and where its connection stands
    std::unique_ptr<Stream> stream;
    uint32_t board = 0;  // to be asked; 0: it asked
    State state = State::Free;
    uint32_t id = 0;  // of the connection
    Instant reopen_at = kNever;
  };

  static const char* name_of(State state);
  void hear(Instant at);
  void talk();
  void open(Lane& lane);
  void on_event(const daq::HostEvent& event, Instant at);
  void on_leave(Lane& lane, const daq::HostEvent& event, Instant at);
  bool start(Lane& lane, const daq::QpInfo& peer);
  void accept(const daq::HostEvent& event, Instant at);
  void on_failure(Lane& lane, Instant at);
  void end_connection(Lane& lane, const std::string& why, Instant at);
  void look_for_silence(Lane& lane, Instant at);
  bool is_quiet(const Lane& lane) const;
  double patience_with(const Lane& lane) const;
  Lane* lane_of(uint32_t id);
  void tell(const Lane& lane, const std::string& text);

  const ReceiveOptions& options_;
  ibv_cq* cq_;
  Hooks hooks_;
  daq::HostManager cm_;
  UdpSocket socket_;
  std::vector<Lane> lanes_;
};

}  // namespace verbena::daqtool

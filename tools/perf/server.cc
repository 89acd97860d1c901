// verbena perf --listen: takes part in the measurements of its clients, one client after the other.
#include <arpa/inet.h>
#include <netdb.h>

#include <algorithm>

#include <fmt/core.h>

#include "tools/perf/connection.h"
#include "tools/perf/sides.h"

namespace verbena::perf {
namespace {

struct ClientDisconnected {};

class Server {
 public:
  explicit Server(const ServerOptions& options) : channel_(open_channel()) {
    rdma_cm_id* id = nullptr;
    if (rdma_create_id(channel_.get(), &id, nullptr, RDMA_PS_TCP) != 0)
      throw ToolError(with_errno("rdma_create_id"));
    listener_.reset(id);
    sockaddr_in6 any{};
    any.sin6_family = AF_INET6;  // accepts IPv4, too
    any.sin6_port = htons(options.port);
    if (rdma_bind_addr(id, reinterpret_cast<sockaddr*>(&any)) != 0 || rdma_listen(id, 8) != 0) {
      throw ToolError(errno == EADDRINUSE
                          ? fmt::format("port {} is taken by another RDMA program; choose another "
                                        "one by --port, on both sides",
                                        options.port)
                          : with_errno("rdma_listen"));
    }
    fmt::print("Listening on port {}. On the other host: verbena perf ADDRESS{}\n", options.port,
               options.port == kDefaultPort ? "" : fmt::format(" --port {}", options.port));
    std::fflush(stdout);
  }

  // True if a client connected and was served until it disconnected.
  bool serve_next() {
    Event request = next_event(channel_, std::chrono::milliseconds(-1));
    if (request->event != RDMA_CM_EVENT_CONNECT_REQUEST) return false;
    const Id id(request->id);
    const auto handshake =
        Handshake::load(request->param.conn.private_data, request->param.conn.private_data_len);
    const uint8_t reads =
        std::min<uint8_t>(request->param.conn.responder_resources, Connection::kReadDepth);
    request.reset();
    if (!handshake || handshake->version != kVersion) {
      reject(id.get(), HandshakeResult::OtherVersion);
      return false;
    }
    const std::string client = address_of(id.get());
    try {
      serve_client(id.get(), *handshake, reads);
    } catch (const ClientDisconnected&) {
      fmt::print("{} is done.\n", client);
    } catch (const ToolError& error) {
      fmt::print(stderr, "verbena perf: {}: {}\n", client, error.what());
    }
    std::fflush(stdout);
    return true;
  }

 private:
  static void reject(rdma_cm_id* id, HandshakeResult result) {
    Handshake handshake;
    handshake.result = result;
    const Handshake raw = handshake.swapped();
    rdma_reject(id, &raw, sizeof raw);
  }

  static std::string address_of(rdma_cm_id* id) {
    char text[NI_MAXHOST] = "a client";
    const sockaddr* const peer = rdma_get_peer_addr(id);
    const socklen_t size = peer->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    getnameinfo(peer, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
    return text;
  }

  // Detects that the served client disconnects, and rejects other clients.
  void check_events(const rdma_cm_id* served) {
    Event event = next_event(channel_, std::chrono::milliseconds(0));
    if (event) handle(std::move(event), served);
  }

  static void handle(Event event, const rdma_cm_id* served) {
    if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
      const Id other(event->id);
      event.reset();
      reject(other.get(), HandshakeResult::Busy);
    } else if (event->id == served && event->event == RDMA_CM_EVENT_DISCONNECTED) {
      throw ClientDisconnected();
    } else if (event->id == served && event->event == RDMA_CM_EVENT_DEVICE_REMOVAL) {
      throw ToolError("the device was removed");
    }
  }

  void await_established(const rdma_cm_id* served) {
    const auto deadline = Clock::now() + kPeerTimeout;
    while (Clock::now() < deadline) {
      Event event = next_event(channel_, std::chrono::milliseconds(100));
      if (!event) continue;
      if (event->id == served && event->event == RDMA_CM_EVENT_ESTABLISHED) return;
      if (event->id == served && event->event != RDMA_CM_EVENT_DISCONNECTED)
        throw ToolError(rdma_event_str(event->event));
      handle(std::move(event), served);
    }
    throw ToolError("the client did not complete the connection");
  }

  void serve_client(rdma_cm_id* id, const Handshake& handshake, uint8_t reads) {
    Connection connection(id, [this, id] { check_events(id); });
    connection.set_remote(handshake);
    const Handshake ours = connection.local_handshake().swapped();
    rdma_conn_param param{};
    param.private_data = &ours;
    param.private_data_len = sizeof ours;
    param.responder_resources = reads;
    param.rnr_retry_count = 7;
    if (rdma_accept(id, &param) != 0) throw ToolError(with_errno("rdma_accept"));
    await_established(id);
    for (;;) {
      connection.sleep_until_message();
      execute(connection, connection.received_command());
    }
  }

  static void execute(Connection& connection, const Command& command) {
    if (command.size == 0 || command.size > kMaxMessage)
      throw ToolError(fmt::format("the client requests messages of {} bytes", command.size));
    const auto signal = [&](uint64_t i) { return i % 16 == 15 || i + 1 == command.count; };
    connection.target()[command.size - 1] = std::byte{0};
    connection.send_command(command);  // ready
    for (uint64_t i = 0; i < command.count; ++i) {
      switch (command.part) {
        case Part::ReceiveSends:
          connection.await_message();
          break;
        case Part::EchoSends:
          connection.await_message();
          connection.post(IBV_WR_SEND, command.size, signal(i));
          break;
        case Part::EchoWrites:
          connection.await_byte(command.size, sequence_byte(i));
          connection.outgoing()[command.size - 1] = std::byte{sequence_byte(i)};
          connection.post(IBV_WR_RDMA_WRITE, command.size, signal(i));
          break;
        default:
          throw ToolError("the client sent an unknown command");
      }
    }
    connection.drain();
  }

  Channel channel_;
  Id listener_;
};

}  // namespace

void serve(const ServerOptions& options) {
  Server server(options);
  for (;;) {
    const bool served = server.serve_next();
    if (served && options.once) return;
  }
}

}  // namespace verbena::perf

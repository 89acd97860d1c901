// Helpers for the tests of librdmacm: addresses, owners that destroy in the right order, events
// with a time limit, and two identifiers connected over the loopback device.
#pragma once

#include <gtest/gtest.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::test {

inline constexpr size_t kGrhBytes = 40;  // in front of a received datagram

// --- addresses

struct Address {
  sockaddr_storage storage{};
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};
Address ip(const std::string& text, uint16_t port = 0);
uint16_t source_port(rdma_cm_id* id);
uint16_t destination_port(rdma_cm_id* id);
std::string text_of(const sockaddr* address);
bool has_ipv6();

// --- owners

struct DestroyChannel {
  void operator()(rdma_event_channel* channel) const { rdma_destroy_event_channel(channel); }
};
using ChannelPtr = std::unique_ptr<rdma_event_channel, DestroyChannel>;
ChannelPtr make_channel();

// Destroys the queue pair first.
struct DestroyId {
  void operator()(rdma_cm_id* id) const {
    if (id->qp != nullptr) rdma_destroy_qp(id);
    if (id->srq != nullptr) rdma_destroy_srq(id);
    EXPECT_EQ(rdma_destroy_id(id), 0);
  }
};
using IdPtr = std::unique_ptr<rdma_cm_id, DestroyId>;
IdPtr make_id(rdma_event_channel* channel, rdma_port_space space = RDMA_PS_TCP,
              void* context = nullptr);

// Acknowledges it.
struct AckEvent {
  void operator()(rdma_cm_event* event) const { EXPECT_EQ(rdma_ack_cm_event(event), 0); }
};
using EventPtr = std::unique_ptr<rdma_cm_event, AckEvent>;

// --- events

// The next event; null, and a failed expectation, if there is none within some seconds.
EventPtr next_event(rdma_event_channel* channel);
// The next event, which must be of this kind.
EventPtr expect_event(rdma_event_channel* channel, rdma_cm_event_type kind, int status = 0);
bool event_within_ms(rdma_event_channel* channel, int ms);
std::string data_of(const rdma_conn_param& param);
std::string data_of(const rdma_ud_param& param);

// Fails with this errno.
#define EXPECT_ERRNO(call, code)                                \
  do {                                                          \
    errno = 0;                                                  \
    EXPECT_EQ((call), -1);                                      \
    EXPECT_EQ(errno, code) << #call << ": " << strerror(errno); \
  } while (false)

// --- connecting

ibv_qp_init_attr qp_attributes(ibv_qp_type type = IBV_QPT_RC);
ibv_qp_state state_of(ibv_qp* qp);
rdma_conn_param connect_parameters(std::string_view private_data = "");

// Bound and listening; the port is source_port(listener).
IdPtr listen_on(rdma_event_channel* channel, const std::string& address,
                rdma_port_space space = RDMA_PS_TCP, uint16_t port = 0, int backlog = 16);
// Resolves address and route and reads the events.
void resolve(rdma_event_channel* channel, rdma_cm_id* id, const std::string& address,
             uint16_t port);
IdPtr resolve(rdma_event_channel* channel, const std::string& address, uint16_t port,
              rdma_port_space space = RDMA_PS_TCP);

// Two identifiers of this process. Each side has its own channel.
struct Pair {
  ChannelPtr server_channel = make_channel();
  ChannelPtr client_channel = make_channel();
  IdPtr listener;
  IdPtr server;
  IdPtr client;

  explicit Pair(const std::string& address = "127.0.0.1", rdma_port_space space = RDMA_PS_TCP);
  // Creates the queue pairs and connects; `server` gets the request, not yet accepted. The client
  // may be an identifier with options.
  void request(const rdma_conn_param* param = nullptr);
  // Establishes the connection.
  void connect();
  void expect_disconnected();

  std::string address;
  rdma_port_space space;
};

// Sends from one side's queue pair to the other's and compares.
void expect_data_flows(rdma_cm_id* from, rdma_cm_id* to);

// Runs in a child process that shares nothing with this one (fork, then exec of this test binary
// with only that test, enabled). True if it passed.
bool passes_in_new_process(const std::string& disabled_test, const std::string& environment = "");

// The number of open descriptors of this process.
size_t open_descriptors();
bool within_ms(int ms, const std::function<bool()>& condition);

}  // namespace verbena::test

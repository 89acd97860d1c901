// Helpers for the tests of librdmacm.
#include "tests/rdmacm/cm_support.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace verbena::test {
namespace {

constexpr int kTimeoutMs = 20'000;

std::string text_of_data(const void* data, size_t size) {
  const std::string all(static_cast<const char*>(data), data != nullptr ? size : 0);
  return all.substr(0, all.find_last_not_of('\0') + 1);
}

}  // namespace

Address ip(const std::string& text, uint16_t port) {
  Address address;
  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_port = htons(port);
  if (inet_pton(AF_INET, text.c_str(), &in.sin_addr) == 1) {
    std::memcpy(&address.storage, &in, sizeof in);
    return address;
  }
  sockaddr_in6 in6{};
  in6.sin6_family = AF_INET6;
  in6.sin6_port = htons(port);
  EXPECT_EQ(inet_pton(AF_INET6, text.c_str(), &in6.sin6_addr), 1) << text;
  std::memcpy(&address.storage, &in6, sizeof in6);
  return address;
}

uint16_t source_port(rdma_cm_id* id) { return ntohs(rdma_get_src_port(id)); }
uint16_t destination_port(rdma_cm_id* id) { return ntohs(rdma_get_dst_port(id)); }

std::string text_of(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text, sizeof text);
  } else if (address->sa_family == AF_INET6) {
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text,
              sizeof text);
  }
  return text;
}

bool has_ipv6() {
  const int fd = ::socket(AF_INET6, SOCK_DGRAM, 0);
  if (fd < 0) return false;
  Address loopback = ip("::1");
  const bool bound = ::bind(fd, loopback.get(), sizeof(sockaddr_in6)) == 0;
  ::close(fd);
  return bound;
}

ChannelPtr make_channel() {
  ChannelPtr channel(rdma_create_event_channel());
  EXPECT_NE(channel, nullptr) << strerror(errno);
  return channel;
}

IdPtr make_id(rdma_event_channel* channel, rdma_port_space space, void* context) {
  rdma_cm_id* id = nullptr;
  EXPECT_EQ(rdma_create_id(channel, &id, context, space), 0) << strerror(errno);
  return IdPtr(id);
}

bool event_within_ms(rdma_event_channel* channel, int ms) {
  pollfd wait{channel->fd, POLLIN, 0};
  return poll(&wait, 1, ms) == 1 && (wait.revents & POLLIN) != 0;
}

EventPtr next_event(rdma_event_channel* channel) {
  if (!event_within_ms(channel, kTimeoutMs)) {
    ADD_FAILURE() << "no event within 20 seconds";
    return nullptr;
  }
  rdma_cm_event* event = nullptr;
  EXPECT_EQ(rdma_get_cm_event(channel, &event), 0) << strerror(errno);
  return EventPtr(event);
}

EventPtr expect_event(rdma_event_channel* channel, rdma_cm_event_type kind, int status) {
  EventPtr event = next_event(channel);
  if (event == nullptr) return event;
  EXPECT_STREQ(rdma_event_str(event->event), rdma_event_str(kind));
  EXPECT_EQ(event->status, status);
  return event;
}

std::string data_of(const rdma_conn_param& param) {
  return text_of_data(param.private_data, param.private_data_len);
}

std::string data_of(const rdma_ud_param& param) {
  return text_of_data(param.private_data, param.private_data_len);
}

ibv_qp_init_attr qp_attributes(ibv_qp_type type) {
  ibv_qp_init_attr attr{};
  attr.qp_type = type;
  attr.cap = {.max_send_wr = 8,
              .max_recv_wr = 8,
              .max_send_sge = 1,
              .max_recv_sge = 1,
              .max_inline_data = 0};
  attr.sq_sig_all = 1;
  return attr;
}

ibv_qp_state state_of(ibv_qp* qp) {
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  EXPECT_EQ(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init), 0);
  return attr.qp_state;
}

rdma_conn_param connect_parameters(std::string_view private_data) {
  rdma_conn_param param{};
  param.private_data = private_data.data();
  param.private_data_len = static_cast<uint8_t>(private_data.size());
  param.responder_resources = 4;
  param.initiator_depth = 4;
  param.retry_count = 7;
  param.rnr_retry_count = 7;
  return param;
}

IdPtr listen_on(rdma_event_channel* channel, const std::string& address, rdma_port_space space,
                uint16_t port, int backlog) {
  IdPtr id = make_id(channel, space);
  Address at = ip(address, port);
  EXPECT_EQ(rdma_bind_addr(id.get(), at.get()), 0) << strerror(errno);
  EXPECT_EQ(rdma_listen(id.get(), backlog), 0) << strerror(errno);
  return id;
}

IdPtr resolve(rdma_event_channel* channel, const std::string& address, uint16_t port,
              rdma_port_space space) {
  IdPtr id = make_id(channel, space);
  resolve(channel, id.get(), address, port);
  return id;
}

void resolve(rdma_event_channel* channel, rdma_cm_id* id, const std::string& address,
             uint16_t port) {
  Address to = ip(address, port);
  EXPECT_EQ(rdma_resolve_addr(id, nullptr, to.get(), 2000), 0) << strerror(errno);
  expect_event(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
  EXPECT_EQ(rdma_resolve_route(id, 2000), 0) << strerror(errno);
  expect_event(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
}

Pair::Pair(const std::string& at, rdma_port_space in) : address(at), space(in) {
  listener = listen_on(server_channel.get(), address, space);
}

void Pair::request(const rdma_conn_param* param) {
  const bool datagrams = space == RDMA_PS_UDP || space == RDMA_PS_IPOIB;
  ibv_qp_init_attr attr = qp_attributes(datagrams ? IBV_QPT_UD : IBV_QPT_RC);
  if (client == nullptr) client = make_id(client_channel.get(), space);
  resolve(client_channel.get(), client.get(), address, source_port(listener.get()));
  ASSERT_EQ(rdma_create_qp(client.get(), nullptr, &attr), 0) << strerror(errno);
  rdma_conn_param defaults = connect_parameters();
  ASSERT_EQ(rdma_connect(client.get(), const_cast<rdma_conn_param*>(param ? param : &defaults)), 0)
      << strerror(errno);
  EventPtr event = expect_event(server_channel.get(), RDMA_CM_EVENT_CONNECT_REQUEST);
  ASSERT_NE(event, nullptr);
  EXPECT_EQ(event->listen_id, listener.get());
  server.reset(event->id);
  attr = qp_attributes(datagrams ? IBV_QPT_UD : IBV_QPT_RC);
  ASSERT_EQ(rdma_create_qp(server.get(), nullptr, &attr), 0) << strerror(errno);
}

void Pair::connect() {
  request();
  ASSERT_NE(server, nullptr);
  rdma_conn_param param = connect_parameters();
  ASSERT_EQ(rdma_accept(server.get(), &param), 0) << strerror(errno);
  expect_event(client_channel.get(), RDMA_CM_EVENT_ESTABLISHED);
  const bool datagrams = space == RDMA_PS_UDP || space == RDMA_PS_IPOIB;
  if (!datagrams) expect_event(server_channel.get(), RDMA_CM_EVENT_ESTABLISHED);
}

void Pair::expect_disconnected() {
  expect_event(client_channel.get(), RDMA_CM_EVENT_DISCONNECTED);
  expect_event(server_channel.get(), RDMA_CM_EVENT_DISCONNECTED);
}

void expect_data_flows(rdma_cm_id* from, rdma_cm_id* to) {
  std::vector<char> sent(4096);
  std::vector<char> received(4096);
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<char>(i * 7);
  ibv_mr* out = rdma_reg_msgs(from, sent.data(), sent.size());
  ibv_mr* in = rdma_reg_msgs(to, received.data(), received.size());
  ASSERT_NE(out, nullptr);
  ASSERT_NE(in, nullptr);
  ASSERT_EQ(rdma_post_recv(to, nullptr, received.data(), received.size(), in), 0);
  ASSERT_EQ(rdma_post_send(from, nullptr, sent.data(), sent.size(), out, 0), 0);
  ibv_wc wc{};
  EXPECT_EQ(rdma_get_send_comp(from, &wc), 1);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(rdma_get_recv_comp(to, &wc), 1);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.byte_len, sent.size());
  EXPECT_EQ(sent, received);
  EXPECT_EQ(rdma_dereg_mr(out), 0);
  EXPECT_EQ(rdma_dereg_mr(in), 0);
}

bool passes_in_new_process(const std::string& disabled_test, const std::string& environment) {
  char self[4096] = "";
  if (readlink("/proc/self/exe", self, sizeof self - 1) < 0) return false;
  const std::string command =
      environment + " '" + self +
      "' --gtest_also_run_disabled_tests --gtest_brief=1 --gtest_filter=" + disabled_test;
  return std::system(command.c_str()) == 0;
}

size_t open_descriptors() {
  size_t count = 0;
  DIR* directory = opendir("/proc/self/fd");
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

bool within_ms(int ms, const std::function<bool()>& condition) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace verbena::test

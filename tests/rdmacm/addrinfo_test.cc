// rdma_getaddrinfo, its hints, and the asynchronous form of newer releases.
#include <dlfcn.h>
#include <netdb.h>

#include <cstring>

#include "tests/rdmacm/cm_support.h"

namespace verbena::test {
namespace {

constexpr int kFlagSa = 0x10;
constexpr int kAddrinfoResolved = 16;
constexpr int kAddrinfoError = 17;
constexpr int kUserEvent = 18;

struct Found {
  int code = 0;
  rdma_addrinfo* info = nullptr;
  ~Found() { rdma_freeaddrinfo(info); }
};

void look_up(Found& found, const char* node, const char* service,
             const std::function<void(rdma_addrinfo&)>& set = {}) {
  rdma_addrinfo hints{};
  if (set) set(hints);
  found.code = rdma_getaddrinfo(node, service, set ? &hints : nullptr, &found.info);
}

TEST(Addrinfo, ResolvesADestination) {
  Found found;
  look_up(found, "127.0.0.1", "4711", [](auto& h) { h.ai_port_space = RDMA_PS_TCP; });
  ASSERT_EQ(found.code, 0);
  EXPECT_EQ(found.info->ai_family, AF_INET);
  EXPECT_EQ(found.info->ai_qp_type, IBV_QPT_RC);
  EXPECT_EQ(found.info->ai_port_space, RDMA_PS_TCP);
  ASSERT_EQ(found.info->ai_dst_len, sizeof(sockaddr_in));
  EXPECT_EQ(text_of(found.info->ai_dst_addr), "127.0.0.1");
  EXPECT_EQ(ntohs(reinterpret_cast<sockaddr_in*>(found.info->ai_dst_addr)->sin_port), 4711);
  EXPECT_EQ(found.info->ai_src_addr, nullptr);
  EXPECT_EQ(found.info->ai_next, nullptr);
}

TEST(Addrinfo, ResolvesAPassiveAddress) {
  Found found;
  look_up(found, nullptr, "4711", [](auto& h) {
    h.ai_flags = RAI_PASSIVE;
    h.ai_family = AF_INET;
    h.ai_port_space = RDMA_PS_UDP;
  });
  ASSERT_EQ(found.code, 0);
  EXPECT_EQ(found.info->ai_flags & RAI_PASSIVE, RAI_PASSIVE);
  EXPECT_EQ(found.info->ai_qp_type, IBV_QPT_UD);
  EXPECT_EQ(text_of(found.info->ai_src_addr), "0.0.0.0");
  EXPECT_EQ(found.info->ai_dst_addr, nullptr);
}

TEST(Addrinfo, WorksWithoutHints) {
  Found found;
  look_up(found, "127.0.0.1", "4711");
  ASSERT_EQ(found.code, 0);
  EXPECT_EQ(text_of(found.info->ai_dst_addr), "127.0.0.1");
}

TEST(Addrinfo, ResolvesIpv6) {
  Found found;
  look_up(found, "::1", "4711", [](auto& h) { h.ai_flags = RAI_NUMERICHOST; });
  ASSERT_EQ(found.code, 0);
  EXPECT_EQ(found.info->ai_family, AF_INET6);
}

TEST(Addrinfo, UsesTheAddressesOfTheHints) {
  Address source = ip("127.0.0.1", 5);
  Address destination = ip("127.0.0.1", 6);
  Found found;
  look_up(found, nullptr, nullptr, [&](auto& h) {
    h.ai_family = AF_INET;
    h.ai_port_space = RDMA_PS_IB;
    h.ai_qp_type = IBV_QPT_XRC_SEND;
    h.ai_src_addr = source.get();
    h.ai_src_len = sizeof(sockaddr_in);
    h.ai_dst_addr = destination.get();
    h.ai_dst_len = sizeof(sockaddr_in);
  });
  ASSERT_EQ(found.code, 0);
  EXPECT_EQ(found.info->ai_port_space, RDMA_PS_IB);
  EXPECT_EQ(found.info->ai_qp_type, IBV_QPT_XRC_SEND);
  EXPECT_EQ(ntohs(reinterpret_cast<sockaddr_in*>(found.info->ai_src_addr)->sin_port), 5);
  EXPECT_EQ(ntohs(reinterpret_cast<sockaddr_in*>(found.info->ai_dst_addr)->sin_port), 6);
}

TEST(Addrinfo, KeepsTheSourceOfTheHints) {
  Address source = ip("127.0.0.1", 5);
  Found found;
  look_up(found, "127.0.0.1", "6", [&](auto& h) {
    h.ai_port_space = RDMA_PS_TCP;
    h.ai_src_addr = source.get();
    h.ai_src_len = sizeof(sockaddr_in);
  });
  ASSERT_EQ(found.code, 0);
  EXPECT_EQ(text_of(found.info->ai_src_addr), "127.0.0.1");
}

TEST(Addrinfo, RejectsInvalidRequests) {
  rdma_addrinfo* info = nullptr;
  EXPECT_ERRNO(rdma_getaddrinfo(nullptr, nullptr, nullptr, &info), EINVAL);
  rdma_addrinfo hints{};
  hints.ai_flags = RAI_FAMILY | RAI_NUMERICHOST;
  hints.ai_family = 27;  // AF_IB
  EXPECT_ERRNO(rdma_getaddrinfo("fe80::1", "1", &hints, &info), EAFNOSUPPORT);
  hints = {};
  hints.ai_flags = kFlagSa;
  EXPECT_ERRNO(rdma_getaddrinfo(nullptr, "1", &hints, &info), EOPNOTSUPP);
  hints = {};
  hints.ai_flags = RAI_NUMERICHOST;
  EXPECT_EQ(rdma_getaddrinfo("not-a-number", "1", &hints, &info), EAI_NONAME);
  EXPECT_EQ(info, nullptr);
}

// --- functions of newer releases, which Debian's headers do not declare

template <typename Function>
Function newer(const char* name) {
  void* found = dlvsym(RTLD_DEFAULT, name, "RDMACM_1.4");
  EXPECT_NE(found, nullptr) << name;
  return reinterpret_cast<Function>(found);
}
const auto resolve_addrinfo =
    newer<int (*)(rdma_cm_id*, const char*, const char*, const rdma_addrinfo*)>(
        "rdma_resolve_addrinfo");
const auto query_addrinfo = newer<int (*)(rdma_cm_id*, rdma_addrinfo**)>("rdma_query_addrinfo");
const auto write_cm_event = newer<int (*)(rdma_cm_id*, int, int, uint64_t)>("rdma_write_cm_event");

int kind_of(const EventPtr& event) {
  int kind = -1;
  std::memcpy(&kind, &event->event, sizeof kind);
  return kind;
}

TEST(Addrinfo, ReportsTheResultByAnEvent) {
  ChannelPtr channel = make_channel();
  const IdPtr id = make_id(channel.get());
  rdma_addrinfo* info = nullptr;
  EXPECT_ERRNO(query_addrinfo(id.get(), &info), ENOENT);
  ASSERT_EQ(resolve_addrinfo(id.get(), "127.0.0.1", "99", nullptr), 0);
  EXPECT_ERRNO(resolve_addrinfo(id.get(), "127.0.0.1", "99", nullptr), EBUSY);
  EventPtr event = next_event(channel.get());
  ASSERT_NE(event, nullptr);
  EXPECT_EQ(kind_of(event), kAddrinfoResolved);
  EXPECT_STREQ(rdma_event_str(event->event), "RDMA_CM_EVENT_ADDRINFO_RESOLVED");
  ASSERT_EQ(query_addrinfo(id.get(), &info), 0);
  EXPECT_EQ(text_of(info->ai_dst_addr), "127.0.0.1");
  rdma_freeaddrinfo(info);
  EXPECT_ERRNO(query_addrinfo(id.get(), &info), ENOENT);
}

TEST(Addrinfo, ReportsAnErrorByAnEvent) {
  ChannelPtr channel = make_channel();
  const IdPtr id = make_id(channel.get());
  rdma_addrinfo hints{};
  hints.ai_flags = RAI_NUMERICHOST;
  ASSERT_EQ(resolve_addrinfo(id.get(), "not-a-number", "99", &hints), 0);
  EventPtr event = next_event(channel.get());
  EXPECT_EQ(kind_of(event), kAddrinfoError);
  EXPECT_LT(event->status, 0);
  hints.ai_flags = kFlagSa;
  EXPECT_ERRNO(resolve_addrinfo(id.get(), nullptr, "99", &hints), EOPNOTSUPP);
}

TEST(Addrinfo, DestroyCancelsTheLookup) {
  ChannelPtr channel = make_channel();
  IdPtr id = make_id(channel.get());
  ASSERT_EQ(resolve_addrinfo(id.get(), "127.0.0.1", "99", nullptr), 0);
  id.reset();
  EXPECT_FALSE(event_within_ms(channel.get(), 0));
}

TEST(Events, DeliverEventsOfTheProgram) {
  ChannelPtr channel = make_channel();
  const IdPtr id = make_id(channel.get());
  ASSERT_EQ(write_cm_event(id.get(), kUserEvent, 5, 0x1122334455667788), 0);
  EventPtr event = next_event(channel.get());
  ASSERT_NE(event, nullptr);
  EXPECT_EQ(kind_of(event), kUserEvent);
  EXPECT_EQ(event->status, 5);
  EXPECT_EQ(event->id, id.get());
  uint64_t argument = 0;
  std::memcpy(&argument, &event->param, sizeof argument);
  EXPECT_EQ(argument, 0x1122334455667788u);
  EXPECT_ERRNO(write_cm_event(id.get(), RDMA_CM_EVENT_ESTABLISHED, 0, 0), EINVAL);
}

}  // namespace
}  // namespace verbena::test

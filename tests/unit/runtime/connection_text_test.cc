// Log lines about connections that were rejected, timed out or lost.
#include "runtime/connection_text.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "cm/ip_addressing.h"

namespace verbena::runtime {
namespace {

cm::Event event(cm::EventKind kind, bool active) {
  cm::Event e;
  e.kind = kind;
  e.active = active;
  const uint8_t address[4] = {192, 0, 2, 7};
  e.peer = wire::Gid::from_ipv4(address);
  e.port = 7174;
  return e;
}

TEST(ConnectionText, DescribesARejectionByThePeer) {
  cm::Event e = event(cm::EventKind::Rejected, true);
  e.reason = cm::RejectReason::InvalidServiceId;
  EXPECT_EQ(describe(e),
            "connection to 192.0.2.7 port 7174 was refused: no process listens on this port");
  e.reason = cm::RejectReason::Consumer;
  EXPECT_NE(describe(e).find("the peer's application"), std::string::npos);
  e.reason = cm::RejectReason::InvalidSl;
  EXPECT_NE(describe(e).find("reason 14"), std::string::npos);
}

TEST(ConnectionText, DescribesATimeout) {
  const std::string text = describe(event(cm::EventKind::Unreachable, false));
  EXPECT_EQ(text.rfind("connection from 192.0.2.7 to port 7174 failed: no response", 0), 0u);
}

// A firewall that rejects with "prohibited" looks like a missing host.
TEST(ConnectionText, DescribesAnUnreachableHost) {
  cm::Event e = event(cm::EventKind::Unreachable, true);
  e.error = EHOSTUNREACH;
  EXPECT_NE(describe(e).find("no such host, or a firewall refuses"), std::string::npos);
}

TEST(ConnectionText, DescribesOnlyAbnormalDisconnects) {
  cm::Event e = event(cm::EventKind::Disconnected, true);
  EXPECT_EQ(describe(e), "");
  e.error = ETIMEDOUT;
  EXPECT_NE(describe(e).find("does not respond"), std::string::npos);
  e.error = ECONNRESET;
  EXPECT_NE(describe(e).find("does not know this connection"), std::string::npos);
  EXPECT_EQ(describe(event(cm::EventKind::Established, true)), "");
  EXPECT_EQ(describe(event(cm::EventKind::SidrResponse, true)), "");
}

TEST(ConnectionText, DescribesAServiceThatWasNotFound) {
  cm::Event e = event(cm::EventKind::SidrResponse, true);
  e.sidr_status = cm::SidrStatus::UnsupportedServiceId;
  EXPECT_EQ(describe(e),
            "the service at 192.0.2.7 port 7174 was not found: no process listens on this port");
}

TEST(ConnectionText, DescribesOurRejection) {
  cm::Req req;
  req.service_id = cm::service_id(cm::PortSpace::Tcp, 7174);
  cm::Mad mad;
  req.store(mad);
  const cm::Event e = event(cm::EventKind::Rejected, false);
  const cm::ReceivedMad request{.source = e.peer, .destination = {}, .bytes = mad};
  EXPECT_EQ(describe_refusal(request, cm::CounterId::no_listener),
            "a request from 192.0.2.7 to port 7174 was refused: no process listens on this port");
  EXPECT_NE(describe_refusal(request, cm::CounterId::backlog_full).find("backlog"),
            std::string::npos);
  EXPECT_EQ(describe_refusal(request, cm::CounterId::mads_received), "");
}

}  // namespace
}  // namespace verbena::runtime

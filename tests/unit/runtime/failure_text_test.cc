// Log lines about a queue pair that failed.
#include "runtime/failure_text.h"

#include <gtest/gtest.h>

#include "wire/opcode.h"

namespace verbena::runtime {
namespace {

using core::QpType;

core::QpFailure failure(QpType type, core::WcStatus status) {
  core::QpFailure f;
  f.type = type;
  f.status = status;
  f.qpn = wire::Qpn(0x11);
  f.peer_qpn = wire::Qpn(0x22);
  const uint8_t address[4] = {192, 0, 2, 7};
  f.peer = wire::Gid::from_ipv4(address);
  return f;
}

bool contains(const std::string& text, const char* words) {
  const bool found = text.find(words) != std::string::npos;
  if (!found) ADD_FAILURE() << "\"" << words << "\" is not in: " << text;
  return found;
}

bool lacks(const std::string& text, const char* words) {
  const bool found = text.find(words) != std::string::npos;
  if (found) ADD_FAILURE() << "\"" << words << "\" is in: " << text;
  return !found;
}

TEST(FailureText, DescribesAConnectedQueuePair) {
  core::QpFailure f = failure(QpType::Rc, core::WcStatus::RetryExceeded);
  f.op = core::SendOp::Write;
  f.remote_address = 0xABC;
  f.retries = 3;
  const std::string text = describe(f);
  EXPECT_TRUE(text.starts_with("QP 0x000011 connected to QP 0x000022 at 192.0.2.7 is in error: "));
  EXPECT_TRUE(contains(text, "to address 0xabc with rkey 0x0"));
  EXPECT_TRUE(contains(text, "no response after 3 tries (completion in error)"));
  f.type = QpType::XrcSend;
  EXPECT_TRUE(describe(f).starts_with("XRC QP 0x000011 connected to QP 0x000022 at 192.0.2.7 "));
}

TEST(FailureText, DescribesOurRejection) {
  core::QpFailure f = failure(QpType::XrcReceive, core::WcStatus::RemoteAccess);
  f.as_responder = true;
  const std::string text = describe(f);
  EXPECT_TRUE(text.starts_with("XRC QP 0x000011 connected to QP 0x000022 at 192.0.2.7 is in "));
  EXPECT_TRUE(contains(text, "refused the peer's"));
  EXPECT_TRUE(contains(text, "a NAK was sent"));
}

// There are no ACKs: the queue pair stops sending and continues to receive.
TEST(FailureText, DescribesAnUnreliableSender) {
  core::QpFailure f = failure(QpType::Uc, core::WcStatus::LocalProtection);
  f.op = core::SendOp::Send;
  std::string text = describe(f);
  EXPECT_TRUE(text.starts_with(
      "UC QP 0x000011 connected to QP 0x000022 at 192.0.2.7 has stopped sending (state SQE): "));
  f.type = QpType::Ud;
  text = describe(f);
  EXPECT_TRUE(text.starts_with("UD QP 0x000011 has stopped sending (state SQE): "));
  EXPECT_TRUE(lacks(text, "connected"));
}

TEST(FailureText, DescribesAnUnreliableReceiver) {
  core::QpFailure f = failure(QpType::Ud, core::WcStatus::LocalProtection);
  f.as_responder = true;
  f.packet_opcode = wire::kUdBase | 0x04;
  f.psn = 9;
  f.length = 48;
  std::string text = describe(f);
  EXPECT_TRUE(
      text.starts_with("UD QP 0x000011 is in error: could not receive the UD SEND Only of QP "));
  EXPECT_TRUE(contains(text, " of QP 0x000022 at 192.0.2.7 (PSN 9, 48 bytes)"));
  EXPECT_TRUE(lacks(text, "NAK"));
  EXPECT_TRUE(lacks(text, "connected"));
  f.type = QpType::Uc;
  text = describe(f);
  EXPECT_TRUE(text.starts_with("UC QP 0x000011 connected to QP 0x000022 at 192.0.2.7 is in error"));
  EXPECT_TRUE(lacks(text, "NAK"));
}

TEST(FailureText, DescribesACompletionQueueOverrun) {
  const std::string text = describe(failure(QpType::Ud, core::WcStatus::Fatal));
  EXPECT_TRUE(text.starts_with("UD QP 0x000011 is in error: failed: its completion queue is full"));
}

}  // namespace
}  // namespace verbena::runtime

// Delivery to a mailbox: by address, up to a limit, and with a wake-up of its owner.
#include "host/mailbox.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "host/slot_directory.h"

namespace verbena::host {
namespace {

LocalAddress address(uint8_t last_byte) {
  LocalAddress a{};
  a.gid.bytes[15] = std::byte{last_byte};
  return a;
}

bool is_readable(int fd) {
  pollfd p{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&p, 1, 0) == 1;
}

class MailboxTest : public testing::Test {
 protected:
  void SetUp() override {
    auto claimed = SlotDirectory::claim();
    ASSERT_TRUE(claimed.ok());
    directory_ = std::move(claimed.value());
    mailbox_.emplace(*directory_);
  }
  void take() {
    batches_.clear();
    reports_.clear();
    mailbox_->take(batches_, reports_);
  }

  std::unique_ptr<SlotDirectory> directory_;
  std::optional<Mailbox> mailbox_;
  std::vector<MisroutedPackets> batches_;
  std::vector<MemberReport> reports_;
};

TEST_F(MailboxTest, HasTheAddressesThatWereAdded) {
  mailbox_->add_address(address(1));
  EXPECT_TRUE(mailbox_->has_address(address(1)));
  EXPECT_FALSE(mailbox_->has_address(address(2)));
}

TEST_F(MailboxTest, RefusesMessagesBeyondItsLimitUntilItIsEmptied) {
  for (size_t i = 0; i < Mailbox::kMaxBatches; ++i) {
    ASSERT_TRUE(mailbox_->deliver(MisroutedPackets{}, false));
  }
  EXPECT_FALSE(mailbox_->deliver(MisroutedPackets{}, false));
  EXPECT_TRUE(mailbox_->deliver(MemberReport{}, false));
  take();
  EXPECT_EQ(batches_.size(), Mailbox::kMaxBatches);
  EXPECT_EQ(reports_.size(), 1u);
  EXPECT_TRUE(mailbox_->deliver(MisroutedPackets{}, false));
}

TEST_F(MailboxTest, WakesItsOwnerOnlyForMessagesOfOtherThreads) {
  mailbox_->deliver(MemberReport{}, false);
  EXPECT_FALSE(is_readable(mailbox_->wake_fd()));
  mailbox_->deliver(MemberReport{}, true);
  EXPECT_TRUE(is_readable(mailbox_->wake_fd()));
  take();
  EXPECT_FALSE(is_readable(mailbox_->wake_fd()));
}

TEST_F(MailboxTest, DirectoryDropsPacketsForADestroyedMailbox) {
  mailbox_->add_address(address(1));
  const std::vector<std::byte> packet(64);
  const auto forward = [&] {
    return directory_->forward(directory_->slot(), address(1), {}, packet, 64);
  };
  ASSERT_EQ(forward(), Forwarded::Yes);
  directory_->poll(nullptr);
  take();
  EXPECT_EQ(batches_.size(), 1u);
  mailbox_.reset();
  ASSERT_EQ(forward(), Forwarded::Yes);
  directory_->poll(nullptr);
  EXPECT_EQ(directory_->undeliverable(), 1u);
}

}  // namespace
}  // namespace verbena::host

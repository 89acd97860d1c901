// A wake before the sleep. (Signals: runtime/event_channel_test.cc.)
#include "os/waker.h"

#include <gtest/gtest.h>

namespace verbena::os {
namespace {

TEST(Waker, DoesNotSleepAfterAnEarlierWake) {
  Waker waker;
  const uint32_t seen = waker.seen();
  waker.wake();
  EXPECT_EQ(waker.sleep(seen), 0);
}

}  // namespace
}  // namespace verbena::os

// The in-flight window's arithmetic.
#include "core/peer_window.h"

#include <gtest/gtest.h>

namespace verbena::core {
namespace {

TEST(PeerWindow, OpensAndClosesByWhatIsUnderWay) {
  PeerWindow w;
  EXPECT_TRUE(w.open());
  EXPECT_TRUE(w.idle());
  w.sent(PeerWindow::kInitial);
  EXPECT_FALSE(w.open());
  EXPECT_EQ(w.room(), 0u);
  w.acknowledged(1000);
  EXPECT_TRUE(w.open());
  EXPECT_EQ(w.in_flight(), PeerWindow::kInitial - 1000);
}

TEST(PeerWindow, GrowsByOneStepPerWindowAndNotBeyondItsLimit) {
  PeerWindow w;
  for (int i = 0; i < 3; ++i) {
    w.sent(w.limit() / 3 + 1);
    EXPECT_EQ(w.limit(), PeerWindow::kInitial);
    w.acknowledged(w.limit() / 3 + 1);
  }
  EXPECT_EQ(w.limit(), PeerWindow::kInitial + 4096);
  for (int i = 0; i < 1000; ++i) {
    w.sent(w.limit());
    w.acknowledged(w.limit());
  }
  EXPECT_EQ(w.limit(), PeerWindow::kMax);
}

TEST(PeerWindow, ShrinksOnLossButNotBelowItsFloor) {
  PeerWindow w;
  w.lost();
  EXPECT_EQ(w.limit(), PeerWindow::kInitial - PeerWindow::kInitial / 4);
  for (int i = 0; i < 100; ++i) w.lost();
  EXPECT_EQ(w.limit(), PeerWindow::kMin);
}

TEST(PeerWindow, NeverCountsBelowZero) {
  PeerWindow w;
  w.sent(10);
  w.release(100);
  EXPECT_TRUE(w.idle());
}

}  // namespace
}  // namespace verbena::core

// A value or an error.
#include "base/result.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace verbena {
namespace {

TEST(Result, HoldsAValueOrAnError) {
  Result<int> good = 5;
  EXPECT_TRUE(good.ok());
  EXPECT_EQ(good.value(), 5);
  const Result<int> bad = Error{ENOMEM, "full"};
  EXPECT_FALSE(bad.ok());
  EXPECT_EQ(bad.error().code, ENOMEM);
  EXPECT_TRUE(Status{}.ok());
  EXPECT_FALSE((Status{Error{EINVAL, "no"}}.ok()));
}

}  // namespace
}  // namespace verbena

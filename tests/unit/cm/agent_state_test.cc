// The communication IDs that an agent draws.
#include "cm/agent_state.h"

#include <gtest/gtest.h>

#include <vector>

namespace verbena::cm {
namespace {

// A peer keeps IDs in TIMEWAIT that this agent has already released, so none may be reused soon.
TEST(AgentState, DoesNotReuseIdsSoon) {
  AgentConfig config;
  config.slot = 7;
  config.secret = {1, 2};
  AgentState state(config);
  std::vector<bool> seen(1u << 24);
  for (uint32_t i = 0; i < 50'000; ++i) {  // about 75 random IDs would repeat
    const uint32_t id = state.draw_comm_id();
    ASSERT_EQ(id >> 24, 7u);
    ASSERT_FALSE(seen[id & 0xFFFFFF]) << i;
    seen[id & 0xFFFFFF] = true;
  }
}

TEST(AgentState, IdsDependOnTheSecret) {
  AgentConfig one;
  AgentConfig other;
  one.secret = {1, 2};
  other.secret = {1, 3};
  AgentState a(one);
  AgentState b(other);
  int same = 0;
  for (int i = 0; i < 1000; ++i) same += a.draw_comm_id() == b.draw_comm_id() ? 1 : 0;
  EXPECT_LE(same, 2);
}

}  // namespace
}  // namespace verbena::cm

// CPU lists, and the CPUs of a NUMA node.
#include "os/numa.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <vector>

namespace verbena::os {
namespace {

std::vector<unsigned> numbers(const std::optional<cpu_set_t>& cpus) {
  std::vector<unsigned> found;
  for (unsigned cpu = 0; cpus && cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &*cpus)) found.push_back(cpu);
  }
  return found;
}

using Cpus = std::vector<unsigned>;

TEST(CpuList, ParsesTheKernelsFormat) {
  EXPECT_EQ(numbers(parse_cpu_list("0-3,8,10-11")), (Cpus{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(numbers(parse_cpu_list("5")), Cpus{5});
  ASSERT_TRUE(parse_cpu_list(""));  // a node with memory and no CPUs
  EXPECT_EQ(numbers(parse_cpu_list("")), Cpus{});
}

TEST(CpuList, RejectsInvalidLists) {
  for (const char* text :
       {"a", "1-", "-1", "3-1", "1,,2", "1,", "1;2", "0-99999", "18446744073709551616"}) {
    EXPECT_FALSE(parse_cpu_list(text)) << text;
  }
}

// A machine described by files in the kernel's format.
class Nodes : public testing::Test {
 protected:
  Nodes() {
    char pattern[] = "/tmp/verbena-nodes-XXXXXX";
    folder_ = mkdtemp(pattern);
  }
  ~Nodes() override { std::filesystem::remove_all(folder_); }
  void describe(const char* online, std::vector<const char*> lists) {
    std::ofstream(folder_ + "/online") << online << "\n";
    for (size_t node = 0; node < lists.size(); ++node) {
      const std::string name = folder_ + "/node" + std::to_string(node);
      std::filesystem::create_directory(name);
      std::ofstream(name + "/cpulist") << lists[node] << "\n";
    }
  }
  static cpu_set_t all() { return *parse_cpu_list("0-1023"); }
  std::string folder_;
};

TEST_F(Nodes, ReturnsTheCpusOfTheNode) {
  describe("0-1", {"0-3,8-11", "4-7,12-15"});
  EXPECT_EQ(numbers(cpus_on_node(1, all(), folder_)), (Cpus{4, 5, 6, 7, 12, 13, 14, 15}));
}

TEST_F(Nodes, ReturnsOnlyCpusThatTheProcessMayUse) {
  describe("0-1", {"0-3", "4-7"});
  EXPECT_EQ(numbers(cpus_on_node(1, *parse_cpu_list("2-5"), folder_)), (Cpus{4, 5}));
  EXPECT_FALSE(cpus_on_node(0, *parse_cpu_list("4-7"), folder_));
}

TEST_F(Nodes, ReturnsNoneOnAMachineWithOneNode) {
  describe("0", {"0-3"});
  EXPECT_FALSE(cpus_on_node(0, all(), folder_));
}

TEST_F(Nodes, ReturnsNoneForAnUnknownNode) {
  EXPECT_FALSE(cpus_on_node(0, all(), folder_));
  describe("0-1", {"0-3", "4-7"});
  EXPECT_FALSE(cpus_on_node(2, all(), folder_));
}

}  // namespace
}  // namespace verbena::os

// A capture of all lanes of a process.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

namespace verbena::test {
namespace {

// Runs another test in a process of its own.
pid_t run_captured(const std::string& file, const char* test) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  setenv("VERBENA_PCAP", file.c_str(), 1);
  const std::string filter = std::string("--gtest_filter=") + test;
  execl("/proc/self/exe", "captured", "--gtest_brief=1", filter.c_str(), nullptr);
  _exit(127);
}

TEST(Capture, HasWholePacketsOfAllLanes) {
  const std::string folder = testing::TempDir();
  const pid_t pid = run_captured(folder + "verbena_lanes_%p", "Connections.OfManyThreadsComeAndGo");
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
  const std::string name = folder + "verbena_lanes_" + std::to_string(pid);
  std::ifstream in(name, std::ios::binary);
  std::string text(std::filesystem::file_size(name), '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  unlink(name.c_str());

  constexpr size_t kFileHeader = 24, kRecordHeader = 16, kIpUdp = 28, kDestinationQp = 5;
  std::set<uint8_t> slots;
  size_t at = kFileHeader;
  while (at + kRecordHeader + kIpUdp + kDestinationQp < text.size()) {
    uint32_t bytes = 0;
    std::memcpy(&bytes, text.data() + at + 8, sizeof bytes);
    const size_t packet = at + kRecordHeader;
    ASSERT_EQ(static_cast<uint8_t>(text[packet]), 0x45) << "no IPv4 header at " << at;
    slots.insert(static_cast<uint8_t>(text[packet + kIpUdp + kDestinationQp]));
    at = packet + bytes;
  }
  EXPECT_EQ(at, text.size());
  EXPECT_GE(slots.size(), 4u);
}

}  // namespace
}  // namespace verbena::test

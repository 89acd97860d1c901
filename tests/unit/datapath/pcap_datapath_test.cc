// The capture file, read back byte by byte.
#include "datapath/pcap_datapath.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/unit/datapath/fake_datapath.h"
#include "wire/headers.h"
#include "wire/icrc.h"

namespace verbena::datapath {
namespace {

struct Capture {
  std::string file = testing::TempDir() + "verbena_pcap_test_" + std::to_string(::getpid());
  ~Capture() { ::unlink(file.c_str()); }

  std::vector<std::byte> read() const {
    std::ifstream in(file, std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(in)), {});
    const auto bytes = std::as_bytes(std::span(text));
    return {bytes.begin(), bytes.end()};
  }
};

uint32_t u32(const std::vector<std::byte>& bytes, size_t at) {
  uint32_t v;
  std::memcpy(&v, bytes.data() + at, sizeof v);
  return v;
}

mode_t mode_of(const std::string& file) {
  struct stat status {};
  EXPECT_EQ(::stat(file.c_str(), &status), 0);
  return status.st_mode & 0777;
}

TEST(PcapDatapath, NewCaptureIsReadableOnlyByItsOwner) {
  const mode_t umask_before = ::umask(0);
  for (const bool append : {false, true}) {
    Capture capture;
    const auto opened = PcapDatapath::open(
        std::make_unique<FakeDatapath>(), capture.file.c_str(), append, [] { return uint64_t{0}; },
        [](int) { FAIL(); });
    EXPECT_TRUE(opened.ok());
    EXPECT_EQ(mode_of(capture.file), 0600u);
  }
  ::umask(umask_before);
}

TEST(PcapDatapath, ExistingFileKeepsItsMode) {
  Capture capture;
  std::ofstream(capture.file) << "before";
  ASSERT_EQ(::chmod(capture.file.c_str(), 0640), 0);
  const auto opened = PcapDatapath::open(
      std::make_unique<FakeDatapath>(), capture.file.c_str(), false, [] { return uint64_t{0}; },
      [](int) { FAIL(); });
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ(mode_of(capture.file), 0640u);
}

void capture_one(const wire::Route& route, size_t header_bytes,
                 std::unique_ptr<FakeDatapath> medium = std::make_unique<FakeDatapath>()) {
  Capture capture;
  auto opened = PcapDatapath::open(
      std::move(medium), capture.file.c_str(), false, [] { return uint64_t{5'000'000'007}; },
      [](int) { FAIL(); });
  ASSERT_TRUE(opened.ok());
  Datapath& datapath = *opened.value();
  auto path = datapath.open_path(route);
  ASSERT_TRUE(path.ok());

  wire::TxPacket p;
  p.path = path.value();
  wire::Bth bth;
  bth.opcode = static_cast<uint8_t>(wire::Opcode::RcSendOnly);
  bth.pad = 1;
  bth.becn = true;
  bth.store(p.header.data());
  p.header_bytes = wire::kBthBytes;
  const std::byte content[3] = {std::byte{1}, std::byte{2}, std::byte{3}};
  const std::span<const std::byte> parts[] = {std::span(content).first(1),
                                              std::span(content).subspan(1)};
  p.payload = parts;
  p.pad = 1;
  datapath.sink().push(p);
  datapath.flush();
  const auto received = datapath.receive();
  ASSERT_EQ(received.size(), 1u);
  EXPECT_EQ(received[0].bytes.size() + received[0].separate_payload.size(), 16u);

  const auto file = capture.read();
  const size_t packet_bytes = header_bytes + 16 + wire::kIcrcBytes;
  ASSERT_EQ(file.size(), 24 + 2 * (16 + packet_bytes));
  EXPECT_EQ(u32(file, 0), 0xA1B23C4Du);
  EXPECT_EQ(u32(file, 20), 101u);
  for (const size_t record : {size_t{24}, 24 + 16 + packet_bytes}) {
    EXPECT_EQ(u32(file, record), 5u);
    EXPECT_EQ(u32(file, record + 4), 7u);
    EXPECT_EQ(u32(file, record + 8), packet_bytes);
    EXPECT_EQ(u32(file, record + 12), packet_bytes);
    std::vector<std::byte> packet(
        file.begin() + static_cast<ptrdiff_t>(record + 16),
        file.begin() + static_cast<ptrdiff_t>(record + 16 + packet_bytes));
    EXPECT_EQ(load_be16(packet.data() + header_bytes - 6), wire::kRoceUdpPort);
    wire::IcrcVerifier verifier({route.source, route.destination,
                                 load_be16(packet.data() + header_bytes - 8), wire::kRoceUdpPort});
    EXPECT_EQ(verifier.check(std::span(packet).subspan(header_bytes), 0), wire::IcrcMatch::Known);
  }
}

TEST(PcapDatapath, WritesIpv4) {
  wire::Route route;
  route.source = wire::Gid::from_ipv4("\x0A\x00\x00\x01");
  route.destination = wire::Gid::from_ipv4("\x0A\x00\x00\x02");
  capture_one(route, 28);
}

TEST(PcapDatapath, WritesCompletePacketsFromSharedMemory) {
  wire::Route route;
  route.source = route.destination = wire::Gid::from_ipv4("\x7F\x00\x00\x01");
  capture_one(route, 28, std::make_unique<FakeDatapath>(FakeDatapath::InMemory{}));
}

TEST(PcapDatapath, OffersPacketsOnly) {
  Capture capture;
  auto opened = PcapDatapath::open(
      std::make_unique<FakeDatapath>(FakeDatapath::InMemory{}), capture.file.c_str(), false,
      [] { return uint64_t{0}; }, [](int) { FAIL(); });
  ASSERT_TRUE(opened.ok());
  expect_packets_only(*opened.value());
}

TEST(PcapDatapath, WritesIpv6) {
  wire::Route route;
  route.source.bytes[0] = route.destination.bytes[0] = std::byte{0xFD};
  route.destination.bytes[15] = std::byte{1};
  capture_one(route, 48);
}

TEST(PcapDatapath, ReportsAFileThatCannotBeCreated) {
  auto opened = PcapDatapath::open(
      std::make_unique<FakeDatapath>(), "/nonexistent/folder/file", false,
      [] { return uint64_t{0}; }, [](int) { FAIL(); });
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code, ENOENT);
}

TEST(PcapDatapath, FullDiskEndsOnlyTheCapture) {
  Capture capture;
  std::vector<int> ended;
  auto opened = PcapDatapath::open(
      std::make_unique<FakeDatapath>(), capture.file.c_str(), false, [] { return uint64_t{0}; },
      [&](int error) { ended.push_back(error); });
  ASSERT_TRUE(opened.ok());
  Datapath& datapath = *opened.value();
  wire::TxPacket packet;
  packet.path = datapath.open_path({}).value();
  packet.header = {};
  packet.header_bytes = wire::kBthBytes;

  // A file size limit simulates the full disk.
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit none{24, old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
  for (int i = 0; i < 3; ++i) {
    datapath.sink().push(packet);
    datapath.flush();
  }
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, before);
  EXPECT_EQ(ended, std::vector<int>{EFBIG});  // once
  EXPECT_EQ(datapath.receive().size(), 3u);
}

}  // namespace
}  // namespace verbena::datapath

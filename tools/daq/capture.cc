// Writes a pcap file with nanosecond timestamps and raw IP packets.
#include "tools/daq/capture.h"

#include <array>
#include <cstring>
#include <ctime>

#include "datapath/capture_file.h"
#include "tools/daq/udp.h"

namespace verbena::daqtool {
namespace {

constexpr uint32_t kFileHeader[6] = {0xA1B23C4D, 2 | 4 << 16, 0, 0, 65535, 101};
constexpr uint8_t kHopLimit = 64;

}  // namespace

Capture::Capture(const std::string& file) : name_(file) {
  os::UniqueFd fd = datapath::open_capture_file(file.c_str(), false);
  if (fd.valid()) file_.reset(::fdopen(fd.get(), "ab"));
  if (file_) (void)fd.release();
  if (!file_ || std::fwrite(kFileHeader, sizeof kFileHeader, 1, file_.get()) != 1 ||
      std::fflush(file_.get()) != 0) {
    throw ToolError(with_errno("cannot create the capture file " + file));
  }
}

void Capture::write(const wire::IcrcFlow& flow, std::span<const std::byte> payload) {
  if (!failure_.empty()) return;
  std::array<std::byte, 48> headers;
  const size_t front =
      wire::store_ip_udp_headers(flow, 0, kHopLimit, payload.size(), headers.data());
  timespec t{};
  ::clock_gettime(CLOCK_REALTIME, &t);
  const auto bytes = static_cast<uint32_t>(front + payload.size());
  const uint32_t record[4] = {static_cast<uint32_t>(t.tv_sec), static_cast<uint32_t>(t.tv_nsec),
                              bytes, bytes};
  const bool written =
      std::fwrite(record, sizeof record, 1, file_.get()) == 1 &&
      std::fwrite(headers.data(), 1, front, file_.get()) == front &&
      std::fwrite(payload.data(), 1, payload.size(), file_.get()) == payload.size();
  if (!written) record_failure();
}

void Capture::flush() {
  if (failure_.empty() && std::fflush(file_.get()) != 0) record_failure();
}

void Capture::record_failure() {
  failure_ = with_errno("the capture file " + name_ + " ends here");
}

}  // namespace verbena::daqtool

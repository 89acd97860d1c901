// Capture: a pcap file of all datagrams that an emulated board sends and receives, connection
// messages included.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>

#include "wire/icrc.h"

namespace verbena::daqtool {

class Capture {
 public:
  explicit Capture(const std::string& file);
  // Writes one UDP datagram.
  void write(const wire::IcrcFlow& flow, std::span<const std::byte> payload);
  void flush();
  // The reason why the file is incomplete; empty: it is complete.
  const std::string& failure() const { return failure_; }

 private:
  struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  void record_failure();

  std::string name_;
  std::unique_ptr<std::FILE, CloseFile> file_;
  std::string failure_;
};

}  // namespace verbena::daqtool

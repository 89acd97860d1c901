// A capture file of what an emulated board sends and receives, connection messages included.
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
  // A UDP datagram's payload, with the addresses it had.
  void write(const wire::IcrcFlow& flow, std::span<const std::byte> payload);

 private:
  struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::unique_ptr<std::FILE, CloseFile> file_;
};

}  // namespace verbena::daqtool

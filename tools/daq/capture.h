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
  void flush();
  // Why the file ends before its time; empty: it does not.
  const std::string& trouble() const { return trouble_; }

 private:
  struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  void note_failure();

  std::string name_;
  std::unique_ptr<std::FILE, CloseFile> file_;
  std::string trouble_;
};

}  // namespace verbena::daqtool

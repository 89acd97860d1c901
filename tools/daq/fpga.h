// verbena fpga: an emulated board on an address of this host.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "daq/board.h"

namespace verbena::daqtool {

struct FpgaOptions {
  uint32_t ip = 0;
  daq::Board::Config board;
  std::optional<daq::Board::MasterTask>
      master_task;  // as a master; the command ends when the task is done
  double loss = 0;  // share of packets to drop, in each direction
  uint64_t seed = 1;
  double seconds = 0;  // 0: until interrupted
  bool json = false;
  std::string pcap;
};

// Returns the exit status: 1 if a master could not send all its messages.
int run_fpga(const FpgaOptions& options);

}  // namespace verbena::daqtool

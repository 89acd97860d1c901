// Every environment variable that Verbena reads, in one place, each with its reason.
#pragma once

#include <cstdint>
#include <string>

#include "base/time.h"

namespace verbena::runtime {

enum class LogLevel : uint8_t { Silent = 0, Error = 1, Warning = 2, Info = 3, Debug = 4 };

// What carries packets between processes of one host.
enum class DatapathChoice : uint8_t { SharedMemory, Udp };

struct Config {
  std::string
      devices;  // VERBENA_DEVICES: which devices exist, so that a program takes the right one
  LogLevel log_level = LogLevel::Warning;  // VERBENA_LOG: silent, error, warning, info, debug
  std::string log_file;                    // VERBENA_LOG_FILE: where to, instead of standard error
  std::string faults;  // VERBENA_FAULTS: faults to inject, e.g. "loss=0.01,seed=7"
  std::string pcap;    // VERBENA_PCAP: file to capture packets to (%p becomes the process id)
  uint32_t vendor_part_id = 1;  // VERBENA_VENDOR_PART_ID: for programs that do less for parts that
                                // they have never heard of
  bool steering = true;  // VERBENA_STEERING: off where the kernel must not be given BPF programs
  // VERBENA_EXTENSIONS: off where two Verbenas are to say no more to each other than to others, to
  // read a capture, to try programs against what everybody can.
  bool extensions = true;
  // VERBENA_POLL: "hybrid" or "hybrid:MICROSECONDS" waits awake for so long before it sleeps on a
  // completion channel, for programs that get many events a second; "event" sleeps at once.
  Duration awake_before_sleep{0};
  // VERBENA_DATAPATH: shm, which is memory where the peer can share it; udp forces the wire, to
  // measure it, to capture it, to rule memory out.
  DatapathChoice datapath = DatapathChoice::SharedMemory;
  uint32_t receive_buffer = 4u << 20;  // VERBENA_RCVBUF: SO_RCVBUF to ask for, to try small ones
};

// Reads the environment once per process; the child of a fork keeps what the parent read.
const Config& config();

}  // namespace verbena::runtime

// Every environment variable that Verbena reads, in one place, each with its reason.
#pragma once

#include <cstdint>
#include <string>

#include "base/time.h"
#include "core/congestion/congestion_control.h"
#include "wire/traffic_class.h"

namespace verbena::runtime {

enum class LogLevel : uint8_t { Silent = 0, Error = 1, Warning = 2, Info = 3, Debug = 4 };

// The medium between processes of one host.
enum class DatapathChoice : uint8_t { SharedMemory, Udp };

struct Config {
  std::string devices;                     // VERBENA_DEVICES: the devices that programs see
  LogLevel log_level = LogLevel::Warning;  // VERBENA_LOG: silent, error, warning, info, debug
  std::string log_file;                    // VERBENA_LOG_FILE: instead of standard error
  std::string faults;  // VERBENA_FAULTS: faults to inject, e.g. "loss=0.01,seed=7"
  std::string pcap;    // VERBENA_PCAP: file to capture packets to (%p becomes the process id)
  uint32_t vendor_part_id = 1;  // VERBENA_VENDOR_PART_ID: for programs that restrict
                                // unknown parts
  bool steering = true;  // VERBENA_STEERING: off where the kernel must not be given BPF programs
  // VERBENA_EXTENSIONS: off makes two Verbenas speak standard RoCE to each other, to read captures
  // or to test standard behaviour.
  bool extensions = true;
  // VERBENA_CC: the congestion control of the wire, by its name, to compare algorithms on a
  // network.
  const core::CongestionAlgorithm* congestion = &core::kDefaultCongestionAlgorithm;
  // VERBENA_POLL: "hybrid" or "hybrid:MICROSECONDS" busy-polls for this time before it sleeps on a
  // completion channel, for programs that get many events per second; "event" sleeps at once.
  Duration awake_before_sleep{0};
  // VERBENA_DATAPATH: shm uses shared memory where the peer supports it; udp forces UDP, for
  // measurements, captures and diagnosis.
  DatapathChoice datapath = DatapathChoice::SharedMemory;
  uint32_t lanes = 0;  // VERBENA_LANES: at most so many lanes per device; 0: one per processor
  // VERBENA_TOS: the traffic class of queue pairs and address handles that have none of their own,
  // so that switches put RoCE into its class. Only the DSCP bits count.
  uint8_t tos = 0;
  uint32_t receive_buffer = 4u << 20;  // VERBENA_RCVBUF: SO_RCVBUF; small values for tests

  // The traffic class of a path, for the one that the program asked for and an ECN field.
  uint8_t traffic_class(uint8_t requested, uint8_t ecn) const {
    const uint8_t dscp = wire::dscp_of(requested);
    return static_cast<uint8_t>((dscp != 0 ? dscp : wire::dscp_of(tos)) | ecn);
  }
};

// Reads the environment once per process; the child of a fork keeps the parent's values.
const Config& config();

}  // namespace verbena::runtime

// A RoCE echo: a question that every rdma_cm answers, whoever made it. Asked on queue pair 1 for a
// datagram service that nobody offers (SIDR_REQ), Verbena, the kernel's Soft-RoCE and hardware
// alike say that there is none, in a RoCEv2 packet back to UDP port 4791.
#pragma once

#include <string>

#include "base/time.h"
#include "runtime/devices.h"
#include "wire/identifiers.h"

namespace verbena::tool {

struct EchoResult {
  int asked = 0;
  int answered = 0;
  Duration fastest{INT64_MAX};
  std::string error;  // the device cannot be used: nothing was asked
};

EchoResult roce_echo(const runtime::DeviceInfo& device, const wire::Gid& from, const wire::Gid& to);

}  // namespace verbena::tool

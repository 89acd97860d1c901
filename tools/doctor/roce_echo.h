// RoCE echo: a request to which every rdma_cm implementation responds. It is a SIDR_REQ to queue
// pair 1 for a datagram service that does not exist. Verbena, the kernel's Soft-RoCE and hardware
// reject it by a RoCEv2 packet to UDP port 4791.
#pragma once

#include <string>

#include "base/time.h"
#include "runtime/devices.h"
#include "wire/identifiers.h"

namespace verbena::tool {

struct EchoResult {
  int requests = 0;
  int responses = 0;
  Duration fastest{INT64_MAX};
  std::string error;  // the device cannot be used; no request was sent
};

EchoResult roce_echo(const runtime::DeviceInfo& device, const wire::Gid& from, const wire::Gid& to);

}  // namespace verbena::tool

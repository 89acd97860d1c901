// Helpers for the measuring programs on plain verbs: the device, queue pairs connected by
// ibv_modify_qp, the socket between two processes, and error handling.
#pragma once

#include <infiniband/verbs.h>
#include <sched.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/programs/rc_by_hand.h"

namespace verbena::bench {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// `error` is an errno, or 0.
[[noreturn]] inline void fail(const char* what, int error = errno) {
  std::fprintf(stderr, "FAILED: %s%s%s\n", what, error ? ": " : "",
               error ? std::strerror(error) : "");
  std::_Exit(1);
}

inline void must(int error, const char* what) {
  if (error != 0) fail(what, error);
}

inline void pin_to_core(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(core), &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) fail("sched_setaffinity");
}

// Both end the program if the process at the other end of the socket has ended.
inline void write_all(int fd, const void* data, size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t n = write(fd, at, size);
    if (n <= 0) fail("the other process has ended");
    at += n;
    size -= static_cast<size_t>(n);
  }
}

inline void read_all(int fd, void* data, size_t size) {
  char* at = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t n = read(fd, at, size);
    if (n <= 0) fail("the other process has ended", 0);
    at += n;
    size -= static_cast<size_t>(n);
  }
}

// A device with the attributes that connections need.
struct Device {
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_gid gid{};
  ibv_mtu mtu{};
};

inline Device open_device(const std::string& name) {
  Device device;
  device.context = programs::open_device(name);
  if (!device.context) fail(("no device " + name + " (start this by: verbena run --)").c_str(), 0);
  device.pd = ibv_alloc_pd(device.context);
  if (!device.pd) fail("ibv_alloc_pd");
  ibv_port_attr port{};
  must(ibv_query_port(device.context, 1, &port), "ibv_query_port");
  device.mtu = port.active_mtu;
  if (ibv_query_gid(device.context, 1, 0, &device.gid) != 0) fail("ibv_query_gid");
  return device;
}

inline Device open_loopback_device() { return open_device("verbena_lo"); }

inline void close_device(const Device& device) {
  must(ibv_dealloc_pd(device.pd), "ibv_dealloc_pd");
  must(ibv_close_device(device.context), "ibv_close_device");
}

inline ibv_qp* create_rc_queue_pair(const Device& device, ibv_cq* cq, uint32_t send_depth,
                                    uint32_t receives = 1, uint32_t inline_bytes = 0) {
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = cq;
  wanted.cap = {.max_send_wr = send_depth,
                .max_recv_wr = receives,
                .max_send_sge = 1,
                .max_recv_sge = 1,
                .max_inline_data = inline_bytes};
  wanted.qp_type = IBV_QPT_RC;
  ibv_qp* qp = ibv_create_qp(device.pd, &wanted);
  if (!qp) fail("ibv_create_qp");
  return qp;
}

// Moves the queue pair from RESET to RTS. The peer is on this host and starts at PSN 0, too.
inline void connect_queue_pair(const Device& device, ibv_qp* qp, uint32_t peer,
                               unsigned access = IBV_ACCESS_REMOTE_WRITE, uint8_t reads = 1) {
  const programs::Connection to{
      .peer = peer, .gid = device.gid, .mtu = device.mtu, .access = access, .reads = reads};
  must(make_ready_for_receives(qp, to), "to INIT");
  must(programs::connect(qp, to), "to RTS");
}

}  // namespace verbena::bench

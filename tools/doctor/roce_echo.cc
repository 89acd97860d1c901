// Sends echo requests through a Nic, as a program does, so that responses reach this process.
#include "tools/doctor/roce_echo.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>

#include "cm/ip_addressing.h"
#include "runtime/connection_manager.h"
#include "runtime/nic.h"

namespace verbena::tool {
namespace {

constexpr int kRequests = 5;
constexpr int kRequestsIfSilent = 3;      // without any response the test ends after these
constexpr uint8_t kResponseTimeout = 17;  // 0.54 s

// Stores the last event of the connection manager until wait_for() reads it.
class ResponseSink final : public runtime::ConnectionManager::Sink {
 public:
  bool on_event(const cm::Event& event) noexcept override {
    const std::lock_guard lock(mutex_);
    last_ = {event.id, event.kind == cm::EventKind::SidrResponse};
    arrived_.notify_one();
    return true;
  }
  void on_removed() override {}

  // Whether the request with this id got a response. The connection manager's timeout is an event,
  // too.
  bool wait_for(uint32_t id) {
    std::unique_lock lock(mutex_);
    arrived_.wait_for(lock, std::chrono::seconds(2), [&] { return last_ && last_->first == id; });
    return last_ && last_->first == id && last_->second;
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::optional<std::pair<uint32_t, bool>> last_;
};

}  // namespace

EchoResult roce_echo(const runtime::DeviceInfo& device, const wire::Gid& from,
                     const wire::Gid& to) {
  EchoResult result;
  auto nic = runtime::Nic::open(device);
  if (!nic.ok()) {
    result.error = nic.error().why;
    return result;
  }
  runtime::ConnectionManager* const manager = nic.value()->connection_manager();
  ResponseSink sink;
  manager->set_sink(&sink);
  cm::SidrParameters request;
  request.addresses = {.local_gid = from, .peer_gid = to, .local_ip = from, .peer_ip = to};
  // Port 0 never has a listener.
  request.addresses.service_id = cm::service_id(cm::PortSpace::Udp, 0);
  request.response_timeout = kResponseTimeout;
  request.max_cm_retries = 0;
  while (result.requests < (result.responses == 0 ? kRequestsIfSilent : kRequests)) {
    const Instant sent_at = runtime::now();
    auto id = manager->resolve_sidr(request);
    if (!id.ok()) {
      result.error = id.error().why;
      break;
    }
    ++result.requests;
    if (!sink.wait_for(id.value())) continue;
    ++result.responses;
    result.fastest = std::min(result.fastest, runtime::now() - sent_at);
  }
  manager->set_sink(nullptr);
  return result;
}

}  // namespace verbena::tool

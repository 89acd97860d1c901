// Asks through a Nic as a program's would, so that answers find their way among other processes.
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

constexpr int kQuestions = 5;
constexpr int kSilentQuestions = 3;       // enough to give up
constexpr uint8_t kResponseTimeout = 17;  // 0.54 s

// Holds what the agent tells until somebody waits for it.
class Answers final : public runtime::ConnectionManager::Sink {
 public:
  bool on_event(const cm::Event& event) noexcept override {
    const std::lock_guard lock(mutex_);
    last_ = {event.id, event.kind == cm::EventKind::SidrResponse};
    arrived_.notify_one();
    return true;
  }
  void on_removed() override {}

  // Whether the question with this id was answered. The agent's own time-out is an event, too.
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
  Answers answers;
  manager->set_sink(&answers);
  cm::SidrParameters question;
  question.addresses = {.local_gid = from, .peer_gid = to, .local_ip = from, .peer_ip = to};
  // Nobody can be bound to port 0.
  question.addresses.service_id = cm::service_id(cm::PortSpace::Udp, 0);
  question.response_timeout = kResponseTimeout;
  question.max_cm_retries = 0;
  while (result.asked < (result.answered == 0 ? kSilentQuestions : kQuestions)) {
    const Instant asked_at = runtime::now();
    auto id = manager->resolve_sidr(question);
    if (!id.ok()) {
      result.error = id.error().why;
      break;
    }
    ++result.asked;
    if (!answers.wait_for(id.value())) continue;
    ++result.answered;
    result.fastest = std::min(result.fastest, runtime::now() - asked_at);
  }
  manager->set_sink(nullptr);
  return result;
}

}  // namespace verbena::tool

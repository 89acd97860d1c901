// A process that uses the connection manager: the test's own process, or another one that executes
// commands from a pipe.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "runtime/connection_manager.h"
#include "runtime/nic.h"

namespace verbena::runtime {

// The connection manager of the loopback device, and its events.
class CmHost final : public ConnectionManager::Sink {
 public:
  CmHost();
  ~CmHost();

  bool on_event(const cm::Event& event) noexcept override;
  void on_removed() override {}
  // The next event; none after the timeout.
  std::optional<cm::Event> next_event(Duration timeout = seconds(10));

  ConnectionManager& manager() { return *manager_; }
  Nic& nic() { return *nic_; }
  wire::Gid address() const { return address_; }
  cm::ConnectParameters to(uint64_t service) const;
  uint64_t counter(const std::string& name);

 private:
  std::shared_ptr<Nic> nic_;
  ConnectionManager* manager_ = nullptr;
  wire::Gid address_;
  std::mutex mutex_;
  std::condition_variable event_added_;
  std::deque<cm::Event> events_;
};

// Another process with a CmHost. Commands and replies are lines; serve() and execute() have the
// list.
class CmProcess {
 public:
  // `environment`: "NAME=value", or nothing.
  explicit CmProcess(const std::string& environment = "", bool own_namespace = false);
  ~CmProcess();
  CmProcess(const CmProcess&) = delete;
  CmProcess& operator=(const CmProcess&) = delete;

  std::string ask(const std::string& command);
  // The number behind "ok ".
  uint32_t number(const std::string& command);
  pid_t pid() const { return pid_; }
  void stop();
  void resume();
  void kill();

 private:
  pid_t pid_ = -1;
  int in_ = -1;
  int out_ = -1;
};

}  // namespace verbena::runtime

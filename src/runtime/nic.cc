// Opening and closing a Nic, its objects, and what it tells applications.
#include "runtime/nic.h"

#include <net/if.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "base/exhaustion.h"
#include "datapath/faulty_datapath.h"
#include "datapath/pcap_datapath.h"
#include "host/slot_holders.h"
#include "runtime/background_thread.h"
#include "runtime/failure_text.h"
#include "runtime/log.h"
#include "runtime/management.h"
#include "runtime/process.h"

namespace verbena::runtime {
namespace {

// ibv_event_type values for the device and its port.
constexpr int kDeviceFatal = 8;
constexpr int kPortActive = 9;
constexpr int kPortError = 10;
constexpr int kGidChange = 18;

uint64_t wall_clock_ns() {
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}

void log_slot_holders() {
  const std::string holders = host::describe(host::held_slots());
  log(LogLevel::Error,
      "process slots are held by %s. End some of these programs, or use a network namespace "
      "of your own (unshare -n)",
      holders.empty() ? "processes that the kernel does not name" : holders.c_str());
}

}  // namespace

Instant now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return {int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec};
}

Result<std::shared_ptr<Nic>> Nic::open(const DeviceInfo& device) {
  lock_process();
  struct Unlock {
    ~Unlock() { unlock_process(); }
  } unlock;
  if (auto nic = find_nic(device.interface_index)) return nic;
  std::shared_ptr<Nic> nic(new Nic(device), [](Nic* dying) {
    // A visitor may take its time, and others want to open and fork meanwhile.
    if (!dying->dead()) dying->stop();
    lock_process();  // until its sockets are closed: the child of a fork would keep them
    unregister_nic(dying);
    delete dying;
    unlock_process();
  });
  const Status started = nic->start();
  if (!started.ok()) {
    unlock_process();  // the deleter takes it
    nic.reset();
    lock_process();
    log(LogLevel::Error, "%s cannot be opened: %s", device.name.c_str(), started.error().why);
    return started.error();
  }
  register_nic(device.interface_index, nic);
  return nic;
}

Nic::Nic(const DeviceInfo& device) : device_(device), port_(device.port) {
  gids_.update(port_.addresses);
}

Status Nic::start() {
  // A slot of its own: two devices may have the same address, and must not have the same QPNs.
  auto slot = host::SlotDirectory::claim(
      [this] { return "device " + device_.name + "\n" + counters_text(); });
  if (!slot.ok()) {
    if (slot.error().code == EBUSY) log_slot_holders();
    return slot.error();
  }
  directory_ = std::move(slot.value());
  // The monitor is listening by now: what changed since the device was listed is not missed.
  refresh_port();

  datapath::UdpOptions options;
  options.receive_buffer_bytes = config().receive_buffer;
  options.steering = config().steering;
  auto udp = std::make_unique<datapath::UdpDatapath>(device_.interface_index, *directory_, options);
  udp_ = udp.get();
  add_shared_memory(std::move(udp));
  const Status decorated = decorate();
  if (!decorated.ok()) return decorated;
  engine_ = std::make_unique<core::Engine>(core::EngineConfig{
      .slot = directory_->slot(), .secret = random_secret(), .extensions = config().extensions});

  if (local_ != nullptr) engine_->expose_through(&local_->shared_memory().exposure());

  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  gate_fd_ = epoll_create1(EPOLL_CLOEXEC);
  if (wake_fd_ < 0 || gate_fd_ < 0) return Error{errno, "too many open files"};
  epoll_event event{EPOLLIN, {}};
  if (epoll_ctl(gate_fd_, EPOLL_CTL_ADD, datapath_->wait_fd(), &event) != 0) {
    return Error{errno, "cannot watch the datapath's descriptor"};
  }

  const int error = start_thread(thread_, &Nic::thread_main, this);
  if (error != 0) return Error{error, "cannot start the background thread"};
  thread_running_ = true;
  return {};
}

// Beside UDP, for peers on this host. What is captured or disturbed is the wire, so all goes there.
void Nic::add_shared_memory(std::unique_ptr<datapath::UdpDatapath> udp) {
  const Config& c = config();
  if (c.datapath == DatapathChoice::Udp || !c.faults.empty() || !c.pcap.empty()) {
    if (c.datapath != DatapathChoice::Udp) {
      log(LogLevel::Info, "%s: captures and faults are of the wire: no shared memory",
          device_.name.c_str());
    }
    datapath_ = std::move(udp);
    return;
  }
  auto shm = datapath::ShmDatapath::open(directory_->slot(), device_.interface_index);
  if (!shm.ok()) {
    log(LogLevel::Warning, "%s: no shared memory with processes of this host: %s",
        device_.name.c_str(), shm.error().why);
    datapath_ = std::move(udp);
    return;
  }
  auto both = std::make_unique<datapath::SelectingDatapath>(std::move(udp), std::move(shm.value()),
                                                            device_.interface_index);
  local_ = both.get();
  datapath_ = std::move(both);
}

// Puts around the datapath what the environment asks for.
Status Nic::decorate() {
  if (!config().faults.empty()) {
    auto faults = datapath::parse_faults(config().faults);
    if (!faults.ok()) {
      log(LogLevel::Error, "VERBENA_FAULTS=%s: %s", config().faults.c_str(), faults.error().why);
      return faults.error();
    }
    datapath_ = std::make_unique<datapath::FaultyDatapath>(std::move(datapath_), faults.value());
  }
  if (!config().pcap.empty()) {
    std::string file = config().pcap;
    if (const size_t at = file.find("%p"); at != std::string::npos) {
      file.replace(at, 2, std::to_string(getpid()));
    }
    // The program's first device begins the file anew; others, and those of forked children,
    // append.
    static std::atomic<bool> begun{false};
    const bool append = config().pcap == file && begun.exchange(true);
    auto pcap = datapath::PcapDatapath::open(
        std::move(datapath_), file.c_str(), append, wall_clock_ns, [file](int error) {
          log(LogLevel::Warning, "VERBENA_PCAP: the capture %s ends here: %s", file.c_str(),
              std::strerror(error));
        });
    if (!pcap.ok()) {
      log(LogLevel::Error, "VERBENA_PCAP=%s: %s", config().pcap.c_str(), pcap.error().why);
      return pcap.error();
    }
    datapath_ = std::move(pcap.value());
  }
  return {};
}

// No thread, and no peer at work in our memory.
void Nic::stop() {
  if (!thread_running_) return;  // there is no engine, or no datapath
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    eventfd_write(wake_fd_, 1);
  }
  pthread_join(thread_, nullptr);
  if (local_ == nullptr) return;
  Visits visits;
  {
    const Guard guard(*this);
    local_->shared_memory().withdraw();
    local_->shared_memory().revoke_visits(datapath::kAllMemory, visits);
  }
  await_end_of(visits);
}

Nic::~Nic() {
  if (thread_running_) pass_on_what_is_left();
  if (wake_fd_ >= 0) close(wake_fd_);
  if (gate_fd_ >= 0) close(gate_fd_);
}

void Nic::abandon_in_child() {
  dead_.store(true, std::memory_order_relaxed);
  thread_running_ = false;  // threads do not survive a fork
  // The table of exposed memory is the parent's: what the child registers is not shown there.
  if (engine_ != nullptr) engine_->expose_through(nullptr);
  // Closes the copies of sockets and epoll sets; the parent's stay as they are. Destructors only
  // close.
  datapath_.reset();
  udp_ = nullptr;
  local_ = nullptr;
  directory_.reset();
  monitor_.abandon();
  for (int* fd : {&wake_fd_, &gate_fd_}) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
  }
  if (management_ != nullptr) management_->abandon();
  for (EventChannel* channel : listeners_) channel->abandon();
}

Result<core::QueuePair*> Nic::create_qp(const core::QpConfig& config, Owner* owner) {
  Guard guard(*this);
  auto qp = engine_->create_qp(config);
  if (qp.ok()) qp.value()->owner = owner;
  return qp;
}

Result<core::QueuePair*> Nic::open_qp(wire::Qpn qpn, uint32_t xrc_domain, Owner* owner) {
  Guard guard(*this);
  core::QueuePair* qp = engine_->find(qpn);
  if (qp == nullptr || qp->config().type != core::QpType::XrcReceive ||
      qp->config().xrc_domain != xrc_domain) {
    return Error{EINVAL, "no XRC receive queue pair of this number in the XRC domain"};
  }
  owner->next = static_cast<Owner*>(qp->owner);
  qp->owner = owner;
  return qp;
}

Status Nic::destroy_qp(core::QueuePair* qp, Owner* owner) {
  Visits visits;
  Status destroyed = end_qp(qp, owner, visits);
  await_end_of(visits);
  return destroyed;
}

Status Nic::end_qp(core::QueuePair* qp, Owner* owner, Visits& visits) {
  Guard guard(*this);
  if (!engine_->groups_of(*qp).empty()) {
    return Error{EBUSY, "the queue pair is attached to a multicast group: ibv_detach_mcast first"};
  }
  auto* first = static_cast<Owner*>(qp->owner);
  for (Owner** link = &first; *link != nullptr; link = &(*link)->next) {
    if (*link != owner) continue;
    *link = owner->next;
    break;
  }
  qp->owner = first;
  if (first != nullptr) return {};
  const bool has_path = qp->peer() != nullptr;
  const wire::PathId path = qp->attributes().path;
  const wire::Qpn qpn = qp->qpn();
  const wire::Qpn peer = qp->attributes().dest_qpn;
  answer_what_came();
  engine_->destroy_qp(qp, clock_.now());
  revoke_visits_through(qpn, peer, visits);
  if (has_path && datapath_ != nullptr) datapath_->close_path(path);
  return {};
}

Result<wire::Gid> Nic::source_for(const core::AddressVector& address) const {
  const wire::Gid source = gids_.at(address.sgid_index);
  if (source.is_zero()) {
    return Error{EINVAL, "sgid_index names an empty entry of the GID table (see: verbena devices)"};
  }
  if (address.destination.is_zero()) {
    return Error{EINVAL, "the destination GID is not an address of a host"};
  }
  if (source.is_ipv4() != address.destination.is_ipv4()) {
    return Error{EINVAL, "source and destination GID differ in IP version: pick another GID index"};
  }
  return source;
}

Result<wire::PathId> Nic::open_path(const core::AddressVector& address, const wire::Gid& source,
                                    wire::Qpn peer) {
  auto path =
      datapath_->open_path({.source = source,
                            .destination = address.destination,
                            .peer = peer,
                            .traffic_class = address.traffic_class,
                            .hop_limit = address.hop_limit != 0 ? address.hop_limit : uint8_t{64},
                            .flow_label = address.flow_label});
  if (!path.ok()) log(LogLevel::Error, "%s: %s", device_.name.c_str(), path.error().why);
  return path;
}

Result<SharedAddress> Nic::open_address(uint32_t pd, const core::AddressVector& address) {
  auto handle = std::make_unique<core::AddressHandle>();
  handle->pd = pd;
  handle->address = address;
  const Status filled = fill_address(*handle);
  if (!filled.ok()) return filled.error();
  return SharedAddress(handle.release(), [this](const core::AddressHandle* last) {
    if (!dead()) close_address(*last);
    delete last;
  });
}

Status Nic::fill_address(core::AddressHandle& handle) {
  Guard guard(*this);
  const core::AddressVector& address = handle.address;
  if (!address.is_global) {
    return Error{EINVAL, "RoCE needs a GRH: set ah_attr.is_global and grh.sgid_index"};
  }
  if (address.port != 1) return Error{EINVAL, "port_num must be 1"};
  auto source = source_for(address);
  if (!source.ok()) return source.error();
  // Which process it will be, each datagram's QPN says.
  auto path = open_path(address, source.value(), wire::Qpn());
  if (!path.ok()) return path.error();
  if (!try_allocating([&] { engine_->state().paths.open(path.value()); })) {
    datapath_->close_path(path.value());
    return Error{ENOMEM, "out of memory"};
  }
  handle.path = path.value();
  handle.source_gid = source.value();
  handle.mtu = port_.active_mtu;
  return {};
}

void Nic::close_address(const core::AddressHandle& handle) {
  Guard guard(*this);
  engine_->state().paths.release(handle.path);
}

Status Nic::attach(core::QueuePair& qp, const wire::Gid& group) {
  Guard guard(*this);
  const bool joined = engine_->has_members(group);
  Status attached = engine_->attach(qp, group);
  if (!attached.ok() || joined) return attached;
  attached = udp_->join(group);
  if (!attached.ok()) {
    const Status undone = engine_->detach(qp, group);
    VERBENA_CHECK(undone.ok());
  }
  return attached;
}

Status Nic::detach(core::QueuePair& qp, const wire::Gid& group) {
  Guard guard(*this);
  Status detached = engine_->detach(qp, group);
  if (detached.ok() && !engine_->has_members(group)) udp_->leave(group);
  return detached;
}

// A datagram may come to any address of the device before anything was sent from it.
Status Nic::listen_everywhere() {
  Status first;
  bool any = false;
  for (size_t i = 0; i < gids_.size(); ++i) {
    if (gids_.at(i).is_zero()) continue;
    Status listening = udp_->listen(gids_.at(i));
    any |= listening.ok();
    if (!listening.ok() && first.ok()) first = listening;
  }
  return any ? Status{} : first;
}

Status Nic::modify_qp(core::QueuePair& qp, core::QpAttributes attr, uint32_t mask) {
  if ((mask & core::qp_attr::kAddressVector) != 0) reach_peer(qp, attr, mask);
  Visits visits;
  Status changed = change_qp(qp, attr, mask, visits);
  await_end_of(visits);
  const bool to_rtr = (mask & core::qp_attr::kState) != 0 && attr.state == core::QpState::Rtr;
  if (changed.ok() && to_rtr && !shares_memory(qp)) await_settled();
  return changed;
}

// Shares memory with the peer before a path to it is opened, if it is on this host and willing:
// then all of the connection goes through memory, from the first packet on.
void Nic::reach_peer(const core::QueuePair& qp, const core::QpAttributes& attr, uint32_t mask) {
  constexpr Duration kPatience = milliseconds(200);  // with one that takes calls and hangs up
  const wire::Gid& destination = attr.address.destination;
  const Instant until = runtime::now() + kPatience;
  for (bool reached = false; !reached && runtime::now() < until;) {
    {
      Guard guard(*this);
      const wire::Qpn peer =
          (mask & core::qp_attr::kDestQpn) != 0 ? attr.dest_qpn : qp.attributes().dest_qpn;
      if (dead() || local_ == nullptr) return;
      reached = local_->reach(destination, peer, runtime::now());
      turn(Owe::Nothing);
      if (!reached) local_->attend();
      log_notice();
    }
    const timespec pause{0, 20'000};
    if (!reached) nanosleep(&pause, nullptr);
  }
}

bool Nic::shares_memory(const core::QueuePair& qp) {
  Guard guard(*this);
  return !dead() && local_ != nullptr && local_->packet_bytes(qp.attributes().path) != 0;
}

// What comes through another process is late, may be overtaken, and is lost when that process ends:
// to UC a packet out of order is a message lost, to RC a lost acknowledgement is a timeout. So the
// peer does not hear that we are ready before the kernel knows the way to us.
void Nic::await_settled() {
  constexpr Duration kSettlingPatience = milliseconds(200);
  const Instant until = runtime::now() + kSettlingPatience;
  while (runtime::now() < until) {
    {
      Guard guard(*this);
      if (dead() || udp_->settled()) return;
      turn(Owe::Nothing);
      udp_->poll_directory();
    }
    const timespec pause{0, 100'000};
    nanosleep(&pause, nullptr);
  }
}

Status Nic::change_qp(core::QueuePair& qp, core::QpAttributes attr, uint32_t mask, Visits& visits) {
  Guard guard(*this);
  Status checked = qp.check_modify(attr, mask);
  if (!checked.ok()) return checked;
  const bool had_path = qp.peer() != nullptr;
  const wire::PathId old_path = qp.attributes().path;
  const bool sets_address = (mask & core::qp_attr::kAddressVector) != 0;
  if (sets_address) {
    auto source = source_for(attr.address);
    if (!source.ok()) return source.error();
    if (attr.address.destination.is_multicast()) {
      return Error{EINVAL, "the destination GID is not an address of a host"};
    }
    const wire::Qpn peer =
        (mask & core::qp_attr::kDestQpn) != 0 ? attr.dest_qpn : qp.attributes().dest_qpn;
    auto path = open_path(attr.address, source.value(), peer);
    if (!path.ok()) return path.error();
    attr.path = path.value();
    attr.source_gid = source.value();
    attr.path_packet_bytes = datapath_->packet_bytes(path.value());
  }
  const bool to_rtr = (mask & core::qp_attr::kState) != 0 && attr.state == core::QpState::Rtr;
  if (to_rtr && qp.type() == core::QpType::Ud) {
    if (!takes_datagrams_) datapath_->report_ip_headers();
    takes_datagrams_ = true;
    Status listening = listen_everywhere();
    if (!listening.ok()) return listening;
  }
  const bool ends = (mask & core::qp_attr::kState) != 0 &&
                    (attr.state == core::QpState::Reset || attr.state == core::QpState::Error);
  if (ends) answer_what_came();
  const wire::Qpn peer_before = qp.attributes().dest_qpn;
  if (!try_allocating([&] { engine_->modify_qp(qp, attr, mask, clock_.now()); })) {
    if (sets_address) datapath_->close_path(attr.path);
    return Error{ENOMEM, "out of memory"};
  }
  revoke_visits_through(qp.qpn(), peer_before, visits);
  const bool to_reset = qp.state() == core::QpState::Reset;
  if (had_path && (sets_address || to_reset)) datapath_->close_path(old_path);
  transmit(clock_.now());
  return {};
}

core::SharedReceiveQueue* Nic::create_srq(const core::SrqConfig& config, Owner* owner) {
  Guard guard(*this);
  core::SharedReceiveQueue* srq = engine_->create_srq(config);
  srq->owner = owner;
  return srq;
}

Status Nic::modify_srq(core::SharedReceiveQueue& srq, std::optional<uint32_t> max_wr,
                       std::optional<uint32_t> limit) {
  Guard guard(*this);
  const Status modified = srq.modify(max_wr, limit);
  deliver();
  return modified;
}

void Nic::destroy_srq(core::SharedReceiveQueue* srq) {
  Guard guard(*this);
  engine_->destroy_srq(srq);
}

void Nic::forget_cq(core::CompletionQueue* cq) {
  Guard guard(*this);
  late_events_.forget(cq);
  std::erase(engine_->state().notified, cq);
  std::erase_if(engine_->state().events, [&](const core::AsyncEvent& e) { return e.cq == cq; });
}

Management& Nic::management() {
  if (management_ == nullptr) {
    management_ = std::make_unique<Management>(
        *this, cm::AgentConfig{.slot = directory_->slot(),
                               .secret = {random_secret(), random_secret()},
                               .ca_guid = device_.guid});
    eventfd_write(wake_fd_, 1);  // the thread has one more descriptor to sleep on
  }
  return *management_;
}

ConnectionManager* Nic::connection_manager() {
  if (dead()) return nullptr;
  Guard guard(*this);
  return &management();
}

bool Nic::has_address(const wire::Gid& gid) const {
  for (size_t i = 0; i < gids_.size(); ++i) {
    if (gids_.at(i) == gid) return true;
  }
  return false;
}

// Hands on what the engine has to tell. Called with the lock held, after every turn.
void Nic::tell_applications() {
  const os::NoCancel no_cancel;
  if (management_ != nullptr) management_->deliver_events();
  core::EngineState& state = engine_->state();
  // Events for which there is no memory stay, and are told later.
  std::erase_if(state.notified, [](const core::CompletionQueue* cq) {
    const auto* owner = static_cast<const Owner*>(cq->owner);
    return owner == nullptr || owner->completion_channel == nullptr ||
           owner->completion_channel->push({0, owner->object});
  });
  std::erase_if(state.events, [](const core::AsyncEvent& e) {
    void* first = e.qp != nullptr ? e.qp->owner : e.srq != nullptr ? e.srq->owner : e.cq->owner;
    return push_to_all(static_cast<const Owner*>(first), static_cast<int>(e.kind));
  });
  if (!state.notified.empty() || !state.events.empty()) [[unlikely]]
    on_exhaustion();
  for (const core::QpFailure& failure : state.failures) {
    (void)try_allocating(
        [&] { log(LogLevel::Info, "%s: %s", device_.name.c_str(), describe(failure).c_str()); });
  }
  state.failures.clear();
  for (const wire::PathId path : state.paths.idle()) datapath_->close_path(path);
  state.paths.idle().clear();
}

PortState Nic::port() {
  const std::lock_guard lock(mutex_);
  return port_;
}

wire::Gid Nic::gid(size_t index) {
  const std::lock_guard lock(mutex_);
  return gids_.at(index);
}

size_t Nic::gid_table_size() {
  const std::lock_guard lock(mutex_);
  return gids_.size();
}

// Nothing comes or goes any more, so whoever waits for a completion gets an error. The kernel must
// say that there is no such interface: that it could not be read may pass.
void Nic::end_if_removed() {
  char name[IF_NAMESIZE];
  if (removed_ || if_indextoname(device_.interface_index, name) != nullptr || errno != ENXIO) {
    return;
  }
  removed_ = true;
  log(LogLevel::Warning, "%s: its network interface is gone", device_.name.c_str());
  if (engine_ != nullptr) engine_->fail_all(clock_.now());
  for (EventChannel* channel : listeners_) channel->push({kDeviceFatal, nullptr});
  if (management_ != nullptr) management_->tell_removed();
}

void Nic::refresh_port() {
  const auto fresh = read_port_state(device_.interface_index);
  const PortState before = port_;
  port_ = fresh.value_or(PortState{});
  const bool gids_changed = gids_.update(port_.addresses);
  const bool takes_requests = management_ != nullptr && management_->listens_everywhere();
  if (gids_changed && (takes_datagrams_ || takes_requests) && !listen_everywhere().ok()) {
    log(LogLevel::Warning, "%s: cannot receive datagrams on any address", device_.name.c_str());
  }
  for (EventChannel* channel : listeners_) {
    if (before.up != port_.up) channel->push({port_.up ? kPortActive : kPortError, nullptr});
    if (gids_changed) channel->push({kGidChange, nullptr});
  }
  if (!fresh) end_if_removed();
}

void Nic::add_listener(EventChannel* channel) {
  const std::lock_guard lock(mutex_);
  listeners_.push_back(channel);
}

void Nic::remove_listener(EventChannel* channel) {
  const std::lock_guard lock(mutex_);
  std::erase(listeners_, channel);
}

std::string Nic::counters_text() {
  // The asker's question may have been read inside our own turn, or inside another Nic's: never
  // wait.
  const bool mine = turning_thread_.load(std::memory_order_relaxed) == pthread_self();
  std::unique_lock lock(mutex_, std::defer_lock);
  if (!mine && !lock.try_lock()) return "  (busy, ask again)\n";
  std::string text;
  const auto line = [&](const char* name, uint64_t value) {
    text += std::string(name) + " " + std::to_string(value) + "\n";
  };
  line("queue_pairs", engine_->qp_count());
  line("memory_keys", engine_->memory().live());
  for (size_t i = 0; i < static_cast<size_t>(core::CounterId::kCount); ++i) {
    const auto id = static_cast<core::CounterId>(i);
    line(core::name_of(id), engine_->state().counters[id]);
  }
  for (size_t i = 0; management_ != nullptr && i < static_cast<size_t>(cm::CounterId::kCount);
       ++i) {
    const auto id = static_cast<cm::CounterId>(i);
    line((std::string("cm_") + cm::name_of(id)).c_str(), management_->counters()[id]);
  }
  std::vector<datapath::Counter> more;
  if (datapath_ != nullptr) datapath_->append_counters(more);
  for (const datapath::Counter& c : more) line(c.name, c.value);
  return text;
}

}  // namespace verbena::runtime

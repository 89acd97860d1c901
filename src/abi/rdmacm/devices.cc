// The devices of librdmacm. They are opened at their first use, found by address, and kept open
// while their interfaces exist.
#include <fcntl.h>
#include <net/if.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "abi/rdmacm/errors.h"
#include "abi/rdmacm/id.h"
#include "os/unique_fd.h"
#include "runtime/log.h"

namespace verbena::rdmacm {
namespace {

constexpr Error kNoDevices{ENODEV,
                           "this machine has no RDMA device (verbena devices explains why)"};
constexpr Error kNoDevice{ENODEV, "no RDMA device has this address (verbena devices lists them)"};
constexpr Error kNoSlot{EBUSY,
                        "all slots for processes and devices of this host are taken (verbena "
                        "counters lists their holders)"};

// Frees the list of ibv_get_device_list.
struct DeviceList {
  int count = 0;
  ibv_device** devices = ibv_get_device_list(&count);
  DeviceList() = default;
  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;
  ~DeviceList() {
    if (devices != nullptr) ibv_free_device_list(devices);
  }
};

runtime::ConnectionManager* manager_of(ibv_context* verbs) {
  runtime::ConnectionManager* manager =
      verbena_connection_manager(verbs, runtime::kConnectionManagerVersion);
  if (manager == nullptr && errno == ENOSYS) {
    runtime::log(
        runtime::LogLevel::Error,
        "librdmacm.so.1 and libibverbs.so.1 come from different builds of Verbena: install "
        "both anew");
  }
  return manager;
}

uint8_t as_byte(int number) { return static_cast<uint8_t>(std::clamp(number, 0, 255)); }

}  // namespace

ibv_gid to_public(const wire::Gid& gid) {
  ibv_gid to{};
  std::memcpy(to.raw, gid.bytes.data(), sizeof to.raw);
  return to;
}

Status Library::check_devices() {
  if (checked_) return {};
  const DeviceList list;
  if (list.count == 0) return kNoDevices;
  checked_ = true;
  return {};
}

void Library::lock_for_fork() {
  wildcards_mutex_.lock();
  opening_.lock();
  devices_mutex_.lock();
  ports.lock();
}

void Library::unlock_after_fork() {
  ports.unlock();
  devices_mutex_.unlock();
  opening_.unlock();
  wildcards_mutex_.unlock();
}

// Runs in the child of a fork, which keeps nothing of its parent: neither ports, which become free
// when the parent ends, nor the netlink socket. The child never uses this object again.
void Library::abandon() {
  os::UniqueFd::close_all_in_child();
  if (const int fd = follow_fd_.exchange(-1); fd >= 0) ::close(fd);
}

Status Library::open_devices() {
  Status status;
  {
    const DeviceList list;
    const std::lock_guard lock(opening_);
    for (int i = 0; i < list.count; ++i) {
      const Status opened = open(list.devices[i]);
      if (!opened.ok()) status = opened;
    }
  }
  if (!devices().empty()) return {};
  return status.ok() ? Status(kNoDevices) : status;
}

std::vector<std::shared_ptr<Device>> Library::devices() {
  std::vector<std::shared_ptr<Device>> gone;  // destroyed after the locks are released
  const std::lock_guard lock(devices_mutex_);
  std::erase_if(devices_, [&](std::shared_ptr<Device>& device) {
    if (device->removed) gone.push_back(std::move(device));
    return device == nullptr;
  });
  return devices_;
}

void Library::keep_open(const std::vector<std::shared_ptr<Device>>& devices) {
  const std::lock_guard lock(devices_mutex_);
  for (const auto& device : devices) {
    if (std::ranges::find(kept_open_, device) == kept_open_.end()) kept_open_.push_back(device);
  }
}

Status Library::open(ibv_device* device) {
  for (const auto& known : devices()) {
    if (known->device == device) return {};
  }
  ibv_context* verbs = ibv_open_device(device);
  if (verbs == nullptr) {
    const Error error = errno == EBUSY ? kNoSlot : Error{errno, "cannot open a device"};
    if (refused_.insert(device).second) {
      runtime::log(runtime::LogLevel::Warning,
                   "%s cannot be used, so this process cannot be reached on its addresses: %s",
                   ibv_get_device_name(device), error.why);
    }
    return error;
  }
  opened_ = true;
  refused_.erase(device);
  ibv_device_attr attributes{};
  runtime::ConnectionManager* manager = manager_of(verbs);
  const int code = manager == nullptr ? errno : ibv_query_device(verbs, &attributes);
  if (code != 0) {
    ibv_close_device(verbs);
    return Error{code, "cannot manage connections on a device"};
  }
  if (const auto renamed = find(*manager)) {
    ibv_close_device(verbs);
    renamed->device = device;
    return {};
  }
  auto added = std::make_shared<Device>(*this, device, verbs, *manager, attributes);
  {
    const std::lock_guard lock(devices_mutex_);
    devices_.push_back(added);
  }
  manager->set_sink(added.get());
  return {};
}

// Each open device occupies one of the host's slots, so only the needed ones are opened.
Status Library::open_interface(const std::string& name) {
  const DeviceList list;
  const std::string wanted = "verbena_" + name;
  const std::lock_guard lock(opening_);
  for (int i = 0; i < list.count; ++i) {
    if (ibv_get_device_name(list.devices[i]) == wanted) return open(list.devices[i]);
  }
  return kNoDevice;
}

Result<Library::Local> Library::find(const wire::Gid& gid, uint32_t scope) {
  if (auto found = find_among_open(gid, scope)) return *found;
  Error why = kNoDevice;
  for (const LocalAddress& local : local_addresses()) {
    if (local.address.gid != gid) continue;
    if (scope != 0 && if_nametoindex(local.interface.c_str()) != scope) continue;
    const Status opened = open_interface(local.interface);
    if (!opened.ok() && opened.error().code != ENODEV) why = opened.error();
  }
  if (auto found = find_among_open(gid, scope)) return *found;
  return why;
}

std::optional<Library::Local> Library::find_among_open(const wire::Gid& gid, uint32_t scope) {
  for (const auto& device : devices()) {
    const auto index = device->gid_index(gid);
    if (index && (scope == 0 || scope == device->interface_index)) return Local{device, *index};
  }
  return std::nullopt;
}

std::shared_ptr<Device> Library::find(const runtime::ConnectionManager& manager) {
  for (const auto& device : devices()) {
    if (device->manager == &manager) return device;
  }
  return nullptr;
}

Device::Device(Library& in, ibv_device* of, ibv_context* opened, runtime::ConnectionManager& cm,
               const ibv_device_attr& attributes)
    : library(&in),
      device(of),
      verbs(opened),
      manager(&cm),
      interface_index(cm.interface_index()),
      max_initiator_depth(as_byte(attributes.max_qp_init_rd_atom)),
      max_responder_resources(as_byte(attributes.max_qp_rd_atom)) {}

Device::~Device() {
  manager->set_sink(nullptr);
  ibv_close_device(verbs);
}

std::optional<uint8_t> Device::gid_index(const wire::Gid& gid) {
  const ibv_gid wanted = to_public(gid);
  const auto same = [&](const ibv_gid& other) {
    return std::memcmp(other.raw, wanted.raw, sizeof wanted.raw) == 0;
  };
  // The index of the last lookup, if it is still valid.
  std::optional<uint32_t> before;
  {
    const std::lock_guard lock(users_mutex);
    for (const ibv_gid_entry& entry : gids) {
      if (same(entry.gid)) before = entry.gid_index;
    }
  }
  ibv_gid now{};
  if (before && ibv_query_gid(verbs, kPort, static_cast<int>(*before), &now) == 0 && same(now)) {
    return static_cast<uint8_t>(*before);
  }
  std::vector<ibv_gid_entry> table(256);
  const ssize_t count = ibv_query_gid_table(verbs, table.data(), table.size(), 0);
  table.resize(static_cast<size_t>(std::max<ssize_t>(count, 0)));
  const std::lock_guard lock(users_mutex);
  gids = std::move(table);
  for (const ibv_gid_entry& entry : gids) {
    if (same(entry.gid)) return static_cast<uint8_t>(entry.gid_index);
  }
  return std::nullopt;
}

Result<ibv_pd*> Device::add_user() {
  const std::lock_guard lock(users_mutex);
  if (pd == nullptr) pd = ibv_alloc_pd(verbs);
  if (pd == nullptr) return Error{errno, "cannot create the default protection domain"};
  ++users;
  return pd;
}

void Device::drop_user() {
  const std::lock_guard lock(users_mutex);
  if (--users != 0) return;
  // Fails while the program has memory registered on it; then it is kept for the next identifier.
  if (xrcd != nullptr && ibv_close_xrcd(xrcd) == 0) xrcd = nullptr;
  if (ibv_dealloc_pd(pd) == 0) pd = nullptr;
}

Result<ibv_xrcd*> Device::xrc_domain() {
  const std::lock_guard lock(users_mutex);
  if (xrcd == nullptr) {
    ibv_xrcd_init_attr attr{};
    attr.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    attr.fd = -1;
    attr.oflags = O_CREAT;
    xrcd = ibv_open_xrcd(verbs, &attr);
  }
  if (xrcd == nullptr) return Error{errno, "cannot create the default XRC domain"};
  return xrcd;
}

}  // namespace verbena::rdmacm

using namespace verbena;
using namespace verbena::rdmacm;

extern "C" {

// The number is always stored: programs check it rather than the pointer.
VERBENA_EXPORT ibv_context** rdma_get_devices(int* num_devices) {
  if (num_devices != nullptr) *num_devices = 0;
  return object_of<ibv_context*>("rdma_get_devices", [&]() -> Result<ibv_context**> {
    const Status opened = library().open_devices();
    if (!opened.ok()) return opened.error();
    const auto found = library().devices();
    auto** list = static_cast<ibv_context**>(std::calloc(found.size() + 1, sizeof(void*)));
    if (list == nullptr) return verbena::abi::kNoMemory;
    library().keep_open(found);
    std::ranges::transform(found, list, [](const auto& device) { return device->verbs; });
    if (num_devices != nullptr) *num_devices = static_cast<int>(found.size());
    return list;
  });
}

VERBENA_EXPORT void rdma_free_devices(ibv_context** list) { std::free(list); }

}  // extern "C"

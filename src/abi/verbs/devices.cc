// The list of devices. A device object is created when its interface is first seen and stays: the
// same interface has the same pointer, and contexts may outlive the list.
#include <endian.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>

#include "abi/verbs/device_table.h"
#include "abi/verbs/errors.h"
#include "abi/verbs/objects.h"
#include "runtime/config.h"

namespace verbena::abi {
namespace {

// Never destroyed: threads of the program may use it during exit.
struct DeviceTable {
  std::mutex mutex;
  std::vector<std::unique_ptr<Device>> devices;
};

DeviceTable& table() {
  static auto& instance = *new DeviceTable;
  return instance;
}

template <size_t kSize>
void set_text(char (&field)[kSize], const std::string& text) {
  std::snprintf(field, kSize, "%s", text.c_str());
}

Device* find_or_add(const runtime::DeviceInfo& info) {
  DeviceTable& t = table();
  for (auto& known : t.devices) {
    if (known->info.name != info.name) continue;
    known->info = info;
    return known.get();
  }
  auto device = std::make_unique<Device>();
  device->info = info;
  ibv_device& d = device->device;
  d.node_type = IBV_NODE_CA;
  d.transport_type = IBV_TRANSPORT_IB;
  const std::string uverbs = runtime::uverbs_name(info);
  set_text(d.name, info.name);
  set_text(d.dev_name, uverbs);
  set_text(d.dev_path, "/sys/class/infiniband_verbs/" + uverbs);
  set_text(d.ibdev_path, "/sys/class/infiniband/" + info.name);
  t.devices.push_back(std::move(device));
  return t.devices.back().get();
}

// A null-terminated array from malloc, which ibv_free_device_list frees.
Result<ibv_device**> list_devices(int* count) {
  const runtime::Discovery found = runtime::discover_devices(runtime::config().devices);
  for (const auto& interface : found.unusable) {
    runtime::log(found.devices.empty() ? runtime::LogLevel::Warning : runtime::LogLevel::Debug,
                 "no RDMA device on %s: %s", interface.interface.c_str(), interface.why.c_str());
  }
  const std::lock_guard lock(table().mutex);
  auto** list = static_cast<ibv_device**>(std::calloc(found.devices.size() + 1, sizeof(void*)));
  if (list == nullptr) return kNoMemory;
  size_t n = 0;
  for (const auto& info : found.devices) list[n++] = &find_or_add(info)->device;
  *count = static_cast<int>(n);
  return list;
}

}  // namespace

runtime::DeviceInfo current_info(Device* device) {
  const std::lock_guard lock(table().mutex);
  return device->info;
}

void lock_device_table() { table().mutex.lock(); }
void unlock_device_table() { table().mutex.unlock(); }

}  // namespace verbena::abi

using namespace verbena;
using namespace verbena::abi;

extern "C" {

VERBENA_EXPORT ibv_device** ibv_get_device_list(int* num_devices) {
  int count = 0;
  ibv_device** list =
      object_of<ibv_device*>("ibv_get_device_list", [&] { return list_devices(&count); });
  if (num_devices != nullptr) *num_devices = count;
  return list;
}

VERBENA_EXPORT void ibv_free_device_list(ibv_device** list) { std::free(list); }

VERBENA_EXPORT const char* ibv_get_device_name(ibv_device* device) { return device->name; }

// The kernel's index of an RDMA device. There is no kernel device here.
VERBENA_EXPORT int ibv_get_device_index(ibv_device*) { return -1; }

VERBENA_EXPORT __be64 ibv_get_device_guid(ibv_device* device) {
  return htobe64(from(device)->info.guid);
}

}  // extern "C"

// Finds the library and computes the environment variables that make a program use it.
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/core.h>

#include "tools/tool.h"

namespace verbena::tool {
namespace {

namespace fs = std::filesystem;

// The loader uses the first folder of LD_LIBRARY_PATH that has a libibverbs.so.1.
std::string library_path(const std::string& ours) {
  const char* const before = std::getenv("LD_LIBRARY_PATH");
  if (before == nullptr || *before == '\0') return ours;
  std::string rest = before;
  if (rest == ours || rest.starts_with(ours + ":")) return rest;
  return ours + ":" + rest;
}

// Appends: some libraries (the address sanitizer) must be first. The loader treats colons and
// spaces as separators.
std::string preloads(const std::string& ours) {
  const char* const before = std::getenv("LD_PRELOAD");
  if (before == nullptr || *before == '\0') return ours;
  const std::string list = before;
  return (":" + list + ":").find(":" + ours + ":") != std::string::npos ? list : list + ":" + ours;
}

// Quotes for a POSIX shell.
std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) {
    if (c == '\'') {
      result += "'\\''";
    } else {
      result += c;
    }
  }
  return result + "'";
}

}  // namespace

std::optional<std::string> library_folder() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  if (error) return std::nullopt;
  for (const char* relative : {VERBENA_LIBDIR_REL, "lib"}) {
    const fs::path folder = (self.parent_path() / relative).lexically_normal();
    if (fs::exists(folder / "libibverbs.so.1", error)) return folder.string();
  }
  return std::nullopt;
}

std::optional<std::vector<Variable>> environment_for(const Settings& settings) {
  const auto folder = library_folder();
  if (!folder) {
    print_error("Verbena's libibverbs.so.1 is neither in " VERBENA_LIBDIR_REL
                " nor in lib, seen from this program; install or build it");
    return std::nullopt;
  }
  if (folder->find(':') != std::string::npos) {
    print_error(
        fmt::format("the library's folder {} has a colon in its name, which LD_LIBRARY_PATH "
                    "cannot express",
                    *folder));
    return std::nullopt;
  }
  std::vector<Variable> all = {{"LD_LIBRARY_PATH", library_path(*folder)}};
  const std::string view = *folder + "/libverbena-view.so";
  if (std::error_code error; settings.no_view || !fs::exists(view, error)) {
    // Programs that search /sys/class/infiniband themselves find no device.
  } else if (view.find(' ') != std::string::npos) {
    print_warning(
        fmt::format("the library's folder {} has a space in its name, which LD_PRELOAD cannot "
                    "express: there will be no /sys/class/infiniband",
                    *folder));
  } else {
    all.push_back({"LD_PRELOAD", preloads(view)});
    // NCCL 2.28.9 crashes with every NIC except mlx5 if it chooses how GPUs start transfers. Type 2
    // works with all NICs.
    if (std::getenv("NCCL_GIN_TYPE") == nullptr) all.push_back({"NCCL_GIN_TYPE", "2"});
  }
  std::string devices;
  for (const std::string& device : settings.devices) {
    devices += (devices.empty() ? "" : ",") + device;
  }
  for (const auto& [name, value] : {Variable{"VERBENA_DEVICES", devices},
                                    {"VERBENA_LOG", settings.log},
                                    {"VERBENA_LOG_FILE", settings.log_file},
                                    {"VERBENA_PCAP", settings.pcap},
                                    {"VERBENA_FAULTS", settings.faults}}) {
    if (!value.empty()) all.push_back({name, value});
  }
  return all;
}

int print_environment(const Settings& settings) {
  const auto variables = environment_for(settings);
  if (!variables) return kNotThere;
  for (const Variable& v : *variables) fmt::print("export {}={}\n", v.name, quoted(v.value));
  return kDone;
}

}  // namespace verbena::tool

// verbena run: sets the environment and executes the program.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include <fmt/core.h>

#include "runtime/devices.h"
#include "tools/program_file.h"
#include "tools/tool.h"

namespace verbena::tool {
namespace {

// This is only a warning, because an interface may get its address later.
void warn_about_devices(const std::vector<std::string>& wanted) {
  if (wanted.empty() || wanted == std::vector<std::string>{"none"}) return;
  std::string selection;
  for (const std::string& name : wanted) selection += name + ",";
  const runtime::Discovery found = runtime::discover_devices(selection);
  for (const std::string& name : wanted) {
    const auto is_it = [&](const std::string& interface) {
      return name == interface || name == "verbena_" + interface;
    };
    for (const runtime::UnusableInterface& u : found.unusable) {
      if (is_it(u.interface))
        print_warning(fmt::format("--device {}: {} {}", name, u.interface, u.why));
    }
  }
}

}  // namespace

int run_program(const Settings& settings, const std::vector<std::string>& command) {
  if (command.empty()) {
    print_error("run: the program is missing. Example: verbena run -- ibv_devinfo");
    return kRunFailed;
  }
  const auto variables = environment_for(settings);
  if (!variables) return kRunFailed;

  const std::string& name = command.front();
  const ProgramFile program = find_program(name);
  if (program.path.empty()) {
    const bool has_slash = name.find('/') != std::string::npos;
    print_error(
        fmt::format("{}: {}", name, has_slash ? "there is no such file" : "not found in PATH"));
    return kNotFound;
  }
  if (!program.executable) {
    print_error(fmt::format("{} exists but cannot be executed (a folder, or no x permission)",
                            program.path));
    return kNotExecutable;
  }
  const std::string folder = library_folder().value_or("");
  if (const std::string why = why_not_loaded(program.path, folder); !why.empty()) {
    print_warning(fmt::format("{} {}", program.path, why));
  }
  warn_about_devices(settings.devices);

  for (const Variable& v : *variables) ::setenv(v.name.c_str(), v.value.c_str(), 1);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  ::execvp(arguments.front(), arguments.data());
  const int error = errno;
  print_error(fmt::format("{} cannot be executed: {}{}", program.path, std::strerror(error),
                          error == ENOENT ? " (its interpreter is missing)" : ""));
  return error == ENOENT ? kNotFound : kNotExecutable;
}

}  // namespace verbena::tool

// The program behind `verbena fpga`, `recv`, `send` and `daq-sweep`: an ordinary RDMA program,
// which works with any libibverbs. The verbena command makes it load Verbena's.
#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <map>
#include <string>

#include "tools/daq/options.h"
#include "tools/daq/udp.h"
#include "tools/standard_output.h"

namespace verbena::daqtool {
namespace {

using Command = int (*)(int, char**);

int status_of(const std::string& name, Command command, int argc, char** argv) {
  try {
    return command(argc, argv);
  } catch (const CLI::ParseError& error) {
    print_line(stderr, fmt::format("{}: {}\nTry: {} --help", name, error.what(), name));
    return kUsage;
  } catch (const CommandExit& ended) {
    return ended.status;
  } catch (const ToolError& error) {
    print_line(stderr, name + ": " + error.what());
    return kNotGood;
  }
}

int main(int argc, char** argv) {
  // Reserve closed standard descriptors, so that no file or socket gets one of these numbers.
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) < 0) (void)!::open("/dev/null", O_RDWR);
  }
  const std::map<std::string, Command> commands{{"fpga", fpga_command},
                                                {"recv", recv_command},
                                                {"send", send_command},
                                                {"daq-sweep", sweep_command}};
  const auto command = commands.find(argc > 1 ? argv[1] : "");
  if (command == commands.end()) {
    print_line(stderr, "Usage: verbena-daq fpga|recv|send|daq-sweep [OPTIONS]");
    return kUsage;
  }
  const std::string name = "verbena " + command->first;
  return checking_standard_output(
      name, [&] { return status_of(name, command->second, argc - 1, argv + 1); });
}

}  // namespace
}  // namespace verbena::daqtool

int main(int argc, char** argv) { return verbena::daqtool::main(argc, argv); }

// The verbena command: what its subcommands share.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::tool {

// Exit statuses, as man/verbena.1 documents them. `run` uses those of env(1) and timeout(1), which
// leave the small numbers to the program it becomes.
inline constexpr int kDone = 0;
inline constexpr int kNotThere = 1;     // no usable device; no such process; something to change
inline constexpr int kUsage = 2;        // the command line was wrong
inline constexpr int kRunFailed = 125;  // run: the tool itself failed, nothing was started
inline constexpr int kNotExecutable = 126;
inline constexpr int kNotFound = 127;

// What `run` and `env` put into the environment; empty means "leave as it is".
struct Settings {
  std::vector<std::string> devices;
  std::string log;
  std::string log_file;
  std::string pcap;
  std::string faults;
  bool no_view = false;  // do not preload what shows /sys/class/infiniband and /dev/infiniband
};

struct Variable {
  std::string name;
  std::string value;
};

// The variables that make a program use Verbena. nullopt: the library was not found, which has been
// said on standard error.
std::optional<std::vector<Variable>> environment_for(const Settings& settings);

// The folder of libibverbs.so.1: where it was installed relative to this program, or the build
// tree's; nullopt if it is in neither.
std::optional<std::string> library_folder();

// Lines on standard error.
void say_error(std::string_view text);
void say_warning(std::string_view text);

int run_program(const Settings& settings, const std::vector<std::string>& command);
int print_environment(const Settings& settings);
int run_perf(const std::vector<std::string>& arguments);
int run_daq(const std::string& command, const std::vector<std::string>& arguments);

struct DevicesOptions {
  bool verbose = false;
  bool json = false;
};
int list_devices(const DevicesOptions& options);

struct CountersOptions {
  int pid = 0;  // 0: every process
  bool all = false;
};
int print_counters(const CountersOptions& options);

struct DoctorOptions {
  std::vector<std::string> hosts;
  bool json = false;
};
int run_doctor(const DoctorOptions& options);

// As JSON writes it, with its quotes.
std::string json_string(std::string_view text);

}  // namespace verbena::tool

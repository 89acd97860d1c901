// Declarations that the subcommands of the verbena command share.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::tool {

// Exit statuses, as man/verbena.1 documents them. `run` uses those of env(1) and timeout(1),
// because the small numbers belong to the program that it executes.
inline constexpr int kDone = 0;
inline constexpr int kNotThere = 1;     // no usable device; no such process; doctor found a problem
inline constexpr int kUsage = 2;        // the command line was wrong
inline constexpr int kRunFailed = 125;  // run: verbena itself failed and started no program
inline constexpr int kNotExecutable = 126;
inline constexpr int kNotFound = 127;

// Settings that `run` and `env` put into the environment; an empty one stays unset.
struct Settings {
  std::vector<std::string> devices;
  std::string log;
  std::string log_file;
  std::string pcap;
  std::string faults;
  bool no_view = false;  // do not preload the view of /sys/class/infiniband and /dev/infiniband
};

struct Variable {
  std::string name;
  std::string value;
};

// The variables that make a program use Verbena. nullopt: the library was not found; an error has
// been printed.
std::optional<std::vector<Variable>> environment_for(const Settings& settings);

// The folder of libibverbs.so.1: the installed one, relative to this program, or that of the build
// tree; nullopt if neither has the library.
std::optional<std::string> library_folder();

// Print one line on standard error.
void print_error(std::string_view text);
void print_warning(std::string_view text);

int run_program(const Settings& settings, const std::vector<std::string>& command);
int print_environment(const Settings& settings);
int run_perf(const std::vector<std::string>& arguments);
int run_explain(const std::vector<std::string>& arguments);
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

// `text` as a JSON string, with quotes.
std::string json_string(std::string_view text);

}  // namespace verbena::tool

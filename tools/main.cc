// The command line of the verbena command.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include "datapath/faulty_datapath.h"
#include "tools/standard_output.h"
#include "tools/tool.h"

namespace verbena::tool {

// These do not use fmt::print, which throws if it cannot write.
void print_error(std::string_view text) {
  std::fputs(fmt::format("verbena: {}\n", text).c_str(), stderr);
}
void print_warning(std::string_view text) { print_error(fmt::format("warning: {}", text)); }

namespace {

std::string faults_error(const std::string& text) {
  const auto faults = datapath::parse_faults(text);
  return faults.ok() ? "" : faults.error().why;
}

// Options that `run` and `env` share.
void add_settings(CLI::App& command, Settings& to) {
  command
      .add_option("-d,--device", to.devices,
                  "Use only this device or interface; repeat to list several in order")
      ->type_name("NAME")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command.add_option("-l,--log", to.log, "Log level: silent, error, warning, info or debug")
      ->type_name("LEVEL")
      ->check(CLI::IsMember({"silent", "error", "warning", "info", "debug"}));
  command.add_option("--log-file", to.log_file, "Log to this file instead of standard error")
      ->type_name("FILE");
  command
      .add_option(
          "--pcap", to.pcap,
          "Capture all packets, also through shared memory, to this file; %p is the process id")
      ->type_name("FILE");
  command.add_option("--faults", to.faults, "Inject faults, e.g. loss=0.01,seed=7")
      ->type_name("SPEC")
      ->check(CLI::Validator(faults_error, ""));
  command.add_flag("--no-view", to.no_view,
                   "Do not show devices in /sys/class/infiniband and /dev/infiniband");
}

struct Line {
  Settings run_settings;
  Settings env_settings;
  DevicesOptions devices;
  CountersOptions counters;
  DoctorOptions doctor;
};

// CLI11 does not know that the remaining words are a program and its arguments.
class RunFormatter : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App* /*app*/, std::string /*name*/) const override {
    return "Usage: verbena run [OPTIONS] [--] PROGRAM [ARGUMENTS]\n";
  }
};

CLI::App* add_run(CLI::App& app, Line& line) {
  CLI::App* run = app.add_subcommand("run", "Run a program on Verbena's RDMA devices");
  run->formatter(std::make_shared<RunFormatter>());
  run->footer(
      "\nThe first word that is not an option is the program; all further words are its "
      "arguments.\n"
      "\nExamples:\n"
      "  verbena run -- ibv_devinfo -v\n"
      "  verbena run -- ib_write_bw -d verbena_lo            (server)\n"
      "  verbena run -- ib_write_bw -d verbena_lo 127.0.0.1  (client)\n"
      "  verbena run --device eth0 --log info -- ibv_rc_pingpong -g 0\n"
      "  verbena run --pcap /tmp/%p.pcap --faults loss=0.01,seed=7 -- ib_send_lat 127.0.0.1\n"
      "\nExit status: that of the program; 125 if verbena failed, 126 if the program cannot be\n"
      "executed, 127 if the program was not found.");
  add_settings(*run, line.run_settings);
  run->prefix_command();
  return run;
}

CLI::App* add_env(CLI::App& app, Line& line) {
  CLI::App* env =
      app.add_subcommand("env", "Print the environment that makes programs use Verbena");
  env->footer(
      "\nExamples:\n"
      "  eval \"$(verbena env)\"                 programs of this shell use Verbena from now on\n"
      "  eval \"$(verbena env --device eth0)\"   and see only verbena_eth0");
  add_settings(*env, line.env_settings);
  return env;
}

CLI::App* add_devices(CLI::App& app, Line& line) {
  CLI::App* devices = app.add_subcommand(
      "devices", "List the RDMA devices of this machine, and problems with them");
  devices->footer(
      "\nThe list is what a program would see, so VERBENA_DEVICES applies.\n"
      "\nExamples:\n"
      "  verbena devices\n"
      "  verbena devices -v\n"
      "  VERBENA_DEVICES=eth0 verbena devices\n"
      "\nExit status: 0 if there is a usable device, 1 if there is none.");
  devices->add_flag("-v,--verbose", line.devices.verbose, "Print more about each device");
  devices->add_flag("--json", line.devices.json, "Print JSON, for programs");
  return devices;
}

CLI::App* add_counters(CLI::App& app, Line& line) {
  CLI::App* counters = app.add_subcommand("counters", "Show the counters of running processes");
  counters->footer(
      "\nThe processes must be your own and in this network namespace.\n"
      "\nExamples:\n"
      "  verbena counters                  every process, counters above zero\n"
      "  verbena counters --all 4711       all counters of process 4711\n"
      "\nExit status: 1 if PID is not a Verbena process of yours.");
  counters->add_option("PID", line.counters.pid, "Process to query (default: all)")
      ->type_name("")
      ->check(CLI::Range(1, 1 << 22));
  counters->add_flag("-a,--all", line.counters.all, "Show zero counters, too");
  return counters;
}

CLI::App* add_doctor(CLI::App& app, Line& line) {
  CLI::App* doctor = app.add_subcommand(
      "doctor", "Check this machine and the path to other hosts; report what to change");
  doctor->footer(
      "\nNeeds no privileges and changes nothing.\n"
      "\nExamples:\n"
      "  verbena doctor                    this machine\n"
      "  verbena doctor 192.0.2.2 node3    this machine and the paths to two hosts\n"
      "\nExit status: 0 if there is no problem (hints are not problems), 1 otherwise.");
  doctor->add_option("HOST", line.doctor.hosts, "Hosts to check: names or addresses")
      ->type_name("");
  doctor->add_flag("--json", line.doctor.json, "Print JSON, for programs");
  return doctor;
}

// verbena-perf (tools/perf) parses the options itself, --help included.
CLI::App* add_perf(CLI::App& app) {
  CLI::App* perf = app.add_subcommand("perf", "Measure bandwidth and latency between two hosts");
  perf->set_help_flag();
  perf->prefix_command();
  return perf;
}

CLI::App* add_explain(CLI::App& app) {
  CLI::App* explain = app.add_subcommand("explain", "Tell what happens in a packet capture");
  explain->set_help_flag();
  explain->prefix_command();
  return explain;
}

// verbena-daq (tools/daq) does, too.
std::vector<CLI::App*> add_daq(CLI::App& app) {
  std::vector<CLI::App*> commands{
      app.add_subcommand("fpga", "Emulate an FPGA board that streams data by RoCEv2"),
      app.add_subcommand("recv", "Receive data from such boards"),
      app.add_subcommand("send", "Send data to verbena recv, as a board does"),
      app.add_subcommand("daq-sweep", "Plot throughput over message size, from an emulated board")};
  for (CLI::App* command : commands) {
    command->set_help_flag();
    command->prefix_command();
  }
  return commands;
}

int main(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  // The parser does not see "--" and the words behind it: they belong to the program.
  std::vector<std::string> behind_dashes;
  const bool is_run = !words.empty() && words.front() == "run";
  if (const auto dashes = std::ranges::find(words, "--"); is_run && dashes != words.end()) {
    behind_dashes.assign(dashes, words.end());
    words.erase(dashes, words.end());
  }

  CLI::App app("Verbena: an RDMA NIC in user space.", "verbena");
  app.set_version_flag("--version", std::string("verbena ") + VERBENA_VERSION);
  app.require_subcommand(1);
  app.footer(
      "\nExamples:\n"
      "  verbena devices\n"
      "  verbena run -- ib_write_bw -d verbena_lo\n"
      "  verbena COMMAND --help\n"
      "\nMore: man verbena, man 7 verbena.");
  Line line;
  const CLI::App* const run = add_run(app, line);
  const CLI::App* const devices = add_devices(app, line);
  const CLI::App* const doctor = add_doctor(app, line);
  const CLI::App* const counters = add_counters(app, line);
  const CLI::App* const perf = add_perf(app);
  const CLI::App* const explain = add_explain(app);
  const std::vector<CLI::App*> daq = add_daq(app);
  const CLI::App* const env = add_env(app, line);

  try {
    std::vector<std::string> reversed(words.rbegin(), words.rend());  // CLI11 pops from the back
    app.parse(reversed);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    if (words.empty()) {
      std::fputs(app.help().c_str(), stderr);
      return kUsage;
    }
    const std::vector<CLI::App*> matching = app.get_subcommands(
        [&](const CLI::App* command) { return command->check_name(words.front()); });
    const bool unknown = !words.front().starts_with('-') && matching.empty();
    print_error(unknown ? "there is no command '" + words.front() + "'" : error.what());
    std::fputs(is_run ? "Try: verbena run --help\n" : "Try: verbena --help\n", stderr);
    return is_run ? kRunFailed : kUsage;
  }

  if (*run) {
    std::vector<std::string> command = run->remaining();
    if (!command.empty() && command.front().starts_with('-')) {
      print_error("run: there is no option " + command.front());
      return kRunFailed;
    }
    // The first "--" ends verbena's options; a later one is an argument of the program.
    if (!behind_dashes.empty() && command.empty()) behind_dashes.erase(behind_dashes.begin());
    command.insert(command.end(), behind_dashes.begin(), behind_dashes.end());
    return run_program(line.run_settings, command);
  }
  if (*devices) return list_devices(line.devices);
  if (*doctor) return run_doctor(line.doctor);
  if (*counters) return print_counters(line.counters);
  if (*perf) return run_perf(perf->remaining());
  if (*explain) return run_explain(explain->remaining());
  for (const CLI::App* command : daq) {
    if (*command) return run_daq(command->get_name(), command->remaining());
  }
  if (*env) return print_environment(line.env_settings);
  return kUsage;
}

}  // namespace
}  // namespace verbena::tool

int main(int argc, char** argv) {
  return verbena::checking_standard_output("verbena",
                                           [&] { return verbena::tool::main(argc, argv); });
}

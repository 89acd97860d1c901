// Helpers for the command lines of the detector readout commands.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "daq/message.h"
#include "tools/finite_range.h"

namespace verbena::daqtool {

constexpr int kDone = 0;
constexpr int kNotGood = 1;
constexpr int kUsage = 2;

// The commands. `argv[0]` is the command's name; the result is the exit status.
int fpga_command(int argc, char** argv);
int recv_command(int argc, char** argv);
int send_command(int argc, char** argv);
int sweep_command(int argc, char** argv);

const CLI::Validator kTime = finite_range(0.0, 1e9);  // seconds
const CLI::Validator kGap =
    // Microseconds. The limit follows from the board's 32-bit count of cycles.
    finite_range(0.0, 1e7);
const CLI::Range kPort(1, 65535);
const CLI::Range kCount(uint64_t{1}, uint64_t{UINT32_MAX});

struct Addresses {  // as text, until all options are read
  std::string own, peer;
  std::vector<std::string> boards;
};
// Throws CLI::ValidationError if `text` is not an IPv4 address.
uint32_t parse_ip(const std::string& text);

// Adds an option with its target variable, the name of its value and its description.
template <typename T>
CLI::Option* add(CLI::App& app, const std::string& name, T& to, const std::string& value,
                 const std::string& meaning) {
  return app.add_option(name, to, meaning)->type_name(value);
}
void add_op(CLI::App& app, daq::TransferKind& op);
CLI::Option* add_message_size(CLI::App& app, uint32_t& bytes);
void add_wrap(CLI::App& app, uint64_t& wrap);
void add_mtu(CLI::App& app, uint32_t& mtu);

// Thrown when the command line is complete in itself, as --help is.
struct CommandExit {
  int status;
};
void parse(CLI::App& app, int argc, char** argv);

// Converts a gap between messages to cycles of the board's clock.
uint32_t cycles_of(double microseconds);

}  // namespace verbena::daqtool

// Options that several commands share.
#include "tools/daq/options.h"

#include <arpa/inet.h>

#include "daq/board_queue_pair.h"

namespace verbena::daqtool {

void add_op(CLI::App& app, daq::TransferKind& op) {
  app.add_option_function<std::string>(
         "--op",
         [&op](const std::string& name) {
           op = name == "send" ? daq::TransferKind::Send : daq::TransferKind::Write;
         },
         "Operation: write (with immediate data) or send")
      ->type_name("OP")
      ->check(CLI::IsMember({"write", "send"}));
}

CLI::Option* add_message_size(CLI::App& app, uint32_t& bytes) {
  return add(app, "--msg-size", bytes, "BYTES", "Message size, a multiple of 4 (default 5120)")
      ->check(CLI::Range(4u, 1u << 30))
      ->check([](const std::string& text) {
        if (text.find_first_not_of("0123456789") != std::string::npos)
          return "it must be a decimal number";
        return std::stoull(text) % 4 == 0 ? "" : "it must be a multiple of 4";
      });
}

void add_wrap(CLI::App& app, uint64_t& wrap) {
  add(app, "--wrap", wrap, "BYTES",
      "Where offsets of WRITEs wrap, on both ends (default 16777216; firmware: 65536)")
      ->check(CLI::Range(uint64_t{4096}, uint64_t{1} << 34));
}

void add_mtu(CLI::App& app, uint32_t& mtu) {
  add(app, "--mtu", mtu, "BYTES", "Path MTU, the same on both ends")
      ->check(CLI::IsMember({256, 512, 1024, 2048, 4096}));
}

void parse(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) throw CommandExit{app.exit(error)};
    throw;
  }
}

uint32_t parse_ip(const std::string& text) {
  in_addr a{};
  if (::inet_pton(AF_INET, text.c_str(), &a) != 1) {
    throw CLI::ValidationError("'" + text +
                               "' is not an IPv4 address; boards have only IPv4 addresses");
  }
  return ntohl(a.s_addr);
}

uint32_t cycles_of(double microseconds) {
  return static_cast<uint32_t>(microseconds * daq::BoardQpConfig{}.clock_hz / 1e6);
}

}  // namespace verbena::daqtool

// rc_check's command line.
#pragma once

#include <getopt.h>

#include <cerrno>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace rc_check {

struct Options {
  std::string device;  // empty: the first
  int gid_index = -1;  // -1: the first IPv4 address, otherwise the first
  uint16_t port = 18515;
  unsigned mtu = 0;  // 0: the port's
  uint32_t iterations = 1;
  uint64_t seed = 1;
  unsigned limit_s = 120;
  bool events = false;
  bool lossy = false;
  bool list = false;
  std::string server;  // empty: this is the server
};

[[noreturn]] inline void usage(int status) {
  fprintf(
      status == 0 ? stdout : stderr,
      "Usage: rc_check [options]                  wait for the other side\n"
      "       rc_check [options] server_address   connect to it\n"
      "Does every RC operation in both directions and checks every byte.\n\n"
      "  -d, --device=NAME     RDMA device (default: the first)\n"
      "  -g, --gid-index=N     GID index (default: the first IPv4 address, else 0)\n"
      "  -p, --port=N          TCP port of the server (default 18515)\n"
      "  -m, --mtu=N           path MTU, 256 to 4096 (default: the port's; the lower of the two)\n"
      "  -n, --iterations=N    how often (default 1; the client's counts)\n"
      "  -s, --seed=N          seed of the data (default 1; the client's counts)\n"
      "  -t, --time-limit=N    give up after N seconds (default 120)\n"
      "  -e, --events          sleep on completion events instead of polling\n"
      "  -L, --lossy           packets may get lost: a refusal may show as exhausted retries\n"
      "  -l, --list            print device, GID index and GID of all there are, and end\n"
      "  -h, --help            this text\n"
      "Exit status: 0 all good, 1 a check failed, 2 wrong usage, 3 out of time.\n");
  exit(status);
}

inline uint64_t number(const char* option, const char* text, uint64_t lowest, uint64_t highest) {
  char* end = nullptr;
  errno = 0;
  const uint64_t value = strtoull(text, &end, 0);
  if (errno != 0 || end == text || *end != '\0' || value < lowest || value > highest) {
    fprintf(stderr, "rc_check: %s takes a number from %" PRIu64 " to %" PRIu64 ", not \"%s\"\n",
            option, lowest, highest, text);
    exit(2);
  }
  return value;
}

inline Options parse_options(int count, char** arguments) {
  static const option kLong[] = {{"device", required_argument, nullptr, 'd'},
                                 {"gid-index", required_argument, nullptr, 'g'},
                                 {"port", required_argument, nullptr, 'p'},
                                 {"mtu", required_argument, nullptr, 'm'},
                                 {"iterations", required_argument, nullptr, 'n'},
                                 {"seed", required_argument, nullptr, 's'},
                                 {"time-limit", required_argument, nullptr, 't'},
                                 {"events", no_argument, nullptr, 'e'},
                                 {"lossy", no_argument, nullptr, 'L'},
                                 {"list", no_argument, nullptr, 'l'},
                                 {"help", no_argument, nullptr, 'h'},
                                 {}};
  Options options;
  int letter;
  while ((letter = getopt_long(count, arguments, "d:g:p:m:n:s:t:eLlh", kLong, nullptr)) != -1) {
    // clang-format off
    switch (letter) {
      case 'd': options.device = optarg; break;
      case 'g': options.gid_index = static_cast<int>(number("-g", optarg, 0, 65535)); break;
      case 'p': options.port = static_cast<uint16_t>(number("-p", optarg, 1, 65535)); break;
      case 'm': options.mtu = static_cast<unsigned>(number("-m", optarg, 256, 4096)); break;
      case 'n': options.iterations = static_cast<uint32_t>(number("-n", optarg, 1, 1000000)); break;
      case 's': options.seed = number("-s", optarg, 0, UINT64_MAX); break;
      case 't': options.limit_s = static_cast<unsigned>(number("-t", optarg, 1, 86400)); break;
      case 'e': options.events = true; break;
      case 'L': options.lossy = true; break;
      case 'l': options.list = true; break;
      case 'h': usage(0);
      default: usage(2);
    }
    // clang-format on
  }
  if (count - optind > 1) usage(2);
  if (optind < count) options.server = arguments[optind];
  return options;
}

}  // namespace rc_check

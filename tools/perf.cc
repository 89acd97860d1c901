// verbena perf: becomes the program beside the libraries that does it (tools/perf), on Verbena.
#include "tools/tool.h"

namespace verbena::tool {

int run_perf(const std::vector<std::string>& arguments) {
  // Where the libraries are missing, run_program says so.
  std::vector<std::string> command{library_folder().value_or(".") + "/verbena-perf"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return run_program({}, command);
}

}  // namespace verbena::tool

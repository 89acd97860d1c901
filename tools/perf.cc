// Commands that are separate programs beside the libraries (tools/perf, tools/daq, tools/explain).
// verbena executes them with Verbena's libraries.
#include "tools/tool.h"

namespace verbena::tool {

namespace {

int become(const std::string& program, std::vector<std::string> arguments) {
  // If the libraries are missing, run_program reports it.
  arguments.insert(arguments.begin(), library_folder().value_or(".") + "/" + program);
  return run_program({}, arguments);
}

}  // namespace

int run_perf(const std::vector<std::string>& arguments) {
  return become("verbena-perf", arguments);
}

int run_explain(const std::vector<std::string>& arguments) {
  return become("verbena-explain", arguments);
}

int run_daq(const std::string& command, const std::vector<std::string>& arguments) {
  std::vector<std::string> words{command};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return become("verbena-daq", words);
}

}  // namespace verbena::tool

// Makes a command fail if its output cannot be written.
#pragma once

#include <cstdio>
#include <string>
#include <system_error>

namespace verbena {

// Returns the exit status of `command`, but 1 instead of 0 if standard output cannot be written.
template <typename Command>
int checking_standard_output(const std::string& name, const Command& command) {
  int status = 0;
  std::string trouble;
  try {
    status = command();
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
    trouble = "standard output cannot be written";
  } catch (const std::system_error& error) {  // thrown by fmt::print
    trouble = error.what();
  }
  std::fputs((name + ": " + trouble + '\n').c_str(), stderr);
  return status == 0 ? 1 : status;
}

}  // namespace verbena

// Facts about a program file, examined before it is started.
#pragma once

#include <string>

namespace verbena::tool {

struct ProgramFile {
  std::string path;  // empty: not found
  bool executable = false;
};

// Searches as execvp() does: a name with a slash is a path, any other name is searched in PATH.
ProgramFile find_program(const std::string& name);

// The reason why the dynamic loader would not load Verbena into this program; empty if it would, or
// if that is unknown (a script). `folder` holds Verbena's libraries.
std::string why_not_loaded(const std::string& path, const std::string& folder);

}  // namespace verbena::tool

// What can be told about a program before it is started.
#pragma once

#include <string>

namespace verbena::tool {

struct ProgramFile {
  std::string path;  // empty: not found
  bool executable = false;
};

// Where execvp() would find it: as it is if it has a slash, else along PATH.
ProgramFile find_program(const std::string& name);

// Why the dynamic loader would not load Verbena into this program; empty if it would, or if that
// cannot be told (a script). `folder` has Verbena's libraries.
std::string why_not_loaded(const std::string& path, const std::string& folder);

}  // namespace verbena::tool

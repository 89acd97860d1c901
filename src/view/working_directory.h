// The process's working directory, where it is a directory of the tree.
#pragma once

#include <optional>
#include <string>

namespace verbena::view {

// nullopt: the working directory is the kernel's.
std::optional<std::string> shown_working_directory();
bool in_shown_directory() noexcept;

}  // namespace verbena::view

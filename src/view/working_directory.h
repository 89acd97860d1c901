// The process's working directory, if it is a directory of the view.
#pragma once

#include <optional>
#include <string>

namespace verbena::view {

// nullopt: the working directory is the kernel's.
std::optional<std::string> shown_working_directory();
bool in_shown_directory() noexcept;

}  // namespace verbena::view

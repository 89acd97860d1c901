// Maps the program's paths and descriptors to the view. The interposed functions use it.
#pragma once

#include <optional>
#include <string>

#include "view/tree.h"

namespace verbena::view {

// Looks up a path as the program gave it. nullopt: not in the view, use the kernel. Never throws;
// keeps errno.
std::optional<Node> shown_at(int folder, const char* path, LastLink last) noexcept;

// Returns the path of a directory descriptor that open_shown() returned, also after dup().
std::optional<std::string> directory_of(int fd) noexcept;

// Returns a descriptor for a node: a file's text in memory; a directory by its name only. On
// failure returns -1 and sets errno.
int open_shown(const Node& node, int flags) noexcept;

// As in sysfs, a read from the beginning of a counter returns its current value, however long it
// has been open: refresh_counter() replaces the file behind the descriptor.
bool may_be_counter(int fd) noexcept;
void refresh_counter(int fd) noexcept;

}  // namespace verbena::view

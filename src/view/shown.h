// Between the interposed functions and the tree: what a path or descriptor of the program's means.
#pragma once

#include <optional>
#include <string>

#include "view/tree.h"

namespace verbena::view {

// What the tree has for a path as the program gave it; nullopt: not of the tree, ask the kernel.
// Never throws; leaves errno alone.
std::optional<Node> shown_at(int folder, const char* path, LastLink last) noexcept;

// The tree's path of a descriptor that open_shown() gave for a directory, also if it was
// duplicated.
std::optional<std::string> directory_of(int fd) noexcept;

// A descriptor for a node: a file's text in memory, a directory by its name alone. -1 and errno.
int open_shown(const Node& node, int flags) noexcept;

// A counter that is read from its beginning says what it is then, as in sysfs, however long ago it
// was opened: count_again() puts a new file in the old one's place.
bool may_be_counter(int fd) noexcept;
void count_again(int fd) noexcept;

}  // namespace verbena::view

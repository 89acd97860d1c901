// Examines a program file: PATH, permissions and ELF headers.
#include "tools/program_file.h"

#include <elf.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

namespace verbena::tool {
namespace {

bool is_file(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && !S_ISDIR(status.st_mode);
}

ProgramFile look_at(const std::string& path) {
  return {path, is_file(path) && ::access(path.c_str(), X_OK) == 0};
}

// The loader ignores LD_LIBRARY_PATH for a program that gains privileges.
bool gains_rights(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return false;
  if ((status.st_mode & S_ISUID) != 0 && status.st_uid != ::getuid()) return true;
  const bool set_gid = (status.st_mode & S_ISGID) != 0 && (status.st_mode & S_IXGRP) != 0;
  if (set_gid && status.st_gid != ::getgid()) return true;
  return ::getuid() != 0 && ::getxattr(path.c_str(), "security.capability", nullptr, 0) > 0;
}

template <typename T>
bool read_at(std::ifstream& file, uint64_t offset, T& to) {
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(reinterpret_cast<char*>(&to), sizeof to);
  return file.good();
}

// The path of the dynamic loader in the program headers; empty: none.
std::string interpreter_of(std::ifstream& file, const Elf64_Ehdr& header) {
  for (uint32_t i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr program{};
    if (!read_at(file, header.e_phoff + uint64_t{i} * header.e_phentsize, program)) break;
    if (program.p_type != PT_INTERP) continue;
    std::string path;
    file.seekg(static_cast<std::streamoff>(program.p_offset));
    std::getline(file, path, '\0');
    return path;
  }
  return {};
}

// Quotes for /bin/sh.
std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

// The libibverbs or librdmacm outside `folder` that the loader uses for the program or one of its
// libraries; empty if none. The loader itself lists the libraries, without starting the program.
// Only glibc's loader is known to support this.
std::string other_library(const std::string& loader, const std::string& path,
                          const std::string& folder) {
  const size_t slash = loader.rfind('/');
  if (slash == std::string::npos || loader.compare(slash + 1, 8, "ld-linux") != 0) return {};
  const char* const rest = std::getenv("LD_LIBRARY_PATH");
  const std::string query = quoted(loader) + " --library-path " +
                            quoted(folder + (rest != nullptr ? ":" + std::string(rest) : "")) +
                            " --list " + quoted(path) + " 2>/dev/null";
  std::FILE* const reply = ::popen(query.c_str(), "re");
  if (reply == nullptr) return {};
  std::string other;
  char line[4096];
  while (std::fgets(line, sizeof line, reply) != nullptr) {
    std::istringstream words(line);  // "libibverbs.so.1 => /usr/lib/libibverbs.so.1 (0x...)"
    std::string name, arrow, file;
    words >> name >> arrow >> file;
    const bool is_ours = name == "libibverbs.so.1" || name == "librdmacm.so.1";
    if (is_ours && file.starts_with('/') && file != folder + "/" + name) other = file;
  }
  ::pclose(reply);
  return other;
}

}  // namespace

ProgramFile find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) {
    struct stat status {};
    return ::stat(name.c_str(), &status) == 0 ? look_at(name) : ProgramFile{};
  }
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "/bin:/usr/bin");
  ProgramFile refused;
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string candidate = (folder.empty() ? "." : folder) + "/" + name;
    if (!is_file(candidate)) continue;
    ProgramFile found = look_at(candidate);
    if (found.executable) return found;
    if (refused.path.empty()) refused = std::move(found);
  }
  return refused;
}

std::string why_not_loaded(const std::string& path, const std::string& folder) {
  if (gains_rights(path)) {
    return "is set-uid, set-gid or has capabilities: the loader ignores LD_LIBRARY_PATH for it, so "
           "it will not use Verbena";
  }
  std::ifstream file(path, std::ios::binary);
  Elf64_Ehdr header{};
  if (!read_at(file, 0, header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return {};
  if (header.e_ident[EI_CLASS] != ELFCLASS64) {
    return "is a 32-bit program: Verbena is a 64-bit library, so it will not use it";
  }
  const std::string loader = interpreter_of(file, header);
  if (loader.empty()) {
    return "is statically linked: it loads no libibverbs.so.1, so it will not use Verbena";
  }
  if (const std::string other = other_library(loader, path, folder); !other.empty()) {
    return "loads " + other +
           " by an RPATH, its own or that of a library, which the loader prefers to "
           "LD_LIBRARY_PATH: it will not use Verbena. Remove the RPATH (patchelf --remove-rpath), "
           "or "
           "set LD_PRELOAD=" +
           folder + other.substr(other.rfind('/'));
  }
  return {};
}

}  // namespace verbena::tool

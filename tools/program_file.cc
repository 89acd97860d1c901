// PATH, permissions and ELF headers of a program.
#include "tools/program_file.h"

#include <elf.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

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

// The loader ignores LD_LIBRARY_PATH where a program gets rights that its caller lacks.
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

// Whether any program header asks for a dynamic loader.
bool has_interpreter(std::ifstream& file, const Elf64_Ehdr& header) {
  for (uint32_t i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr program{};
    if (!read_at(file, header.e_phoff + uint64_t{i} * header.e_phentsize, program)) break;
    if (program.p_type == PT_INTERP) return true;
  }
  return false;
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

std::string why_not_loaded(const std::string& path) {
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
  if (!has_interpreter(file, header)) {
    return "is statically linked: it loads no libibverbs.so.1, so it will not use Verbena";
  }
  return {};
}

}  // namespace verbena::tool

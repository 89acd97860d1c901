// A main() for fuzz targets where libFuzzer is not available (g++): replays a corpus, then feeds
// seeded random inputs and mutations of the corpus. Deterministic: the same arguments give the
// same inputs, and a failure names the input it happened on.
//
//   packet_fuzz [--random N] [--seed S] [--only I] [--max-len L] [FILE | DIRECTORY]...

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
// Present in sanitized builds only: sanitizers end the process without raising a signal.
extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));

namespace {

using Bytes = std::vector<uint8_t>;

// Describes the current input; can be written from a signal handler.
char g_current[4352] = "before the first input\n";

void print_current() {
  const char prefix[] = "replay: crashed on ";
  (void)!write(STDERR_FILENO, prefix, sizeof prefix - 1);
  (void)!write(STDERR_FILENO, g_current, strlen(g_current));
}

void on_signal(int signal) {
  print_current();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

// SplitMix64: small, seedable, the same everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  size_t below(size_t bound) { return static_cast<size_t>(next() % bound); }
  uint8_t byte() { return static_cast<uint8_t>(next()); }

 private:
  uint64_t state_;
};

void feed(const Bytes& input) {
  // A heap block of exactly this size, so that the address sanitizer sees the first byte past it.
  const Bytes exact(input.begin(), input.end());
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

Bytes make_input(Random& random, const std::vector<Bytes>& corpus, size_t max_len) {
  Bytes input;
  if (!corpus.empty() && random.below(4) != 0) {
    input = corpus[random.below(corpus.size())];
    for (size_t edits = 1 + random.below(8); edits > 0; --edits) {
      if (input.empty() || random.below(8) == 0) {
        input.resize(random.below(max_len + 1), random.byte());  // truncate or extend
      } else if (random.below(2) == 0) {
        input[random.below(input.size())] ^= static_cast<uint8_t>(1U << random.below(8));
      } else {
        input[random.below(input.size())] = random.byte();
      }
    }
    return input;
  }
  // Half of them are as short as headers.
  input.resize(random.below((random.below(2) == 0 ? std::min<size_t>(max_len, 64) : max_len) + 1));
  std::generate(input.begin(), input.end(), [&] { return random.byte(); });
  return input;
}

Bytes read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::fprintf(stderr, "replay: cannot read %s\n", path.c_str());
    std::exit(2);
  }
  return Bytes(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

std::vector<std::filesystem::path> files_of(const std::vector<std::string>& arguments) {
  std::vector<std::filesystem::path> files;
  for (const std::string& argument : arguments) {
    if (!std::filesystem::is_directory(argument)) {
      files.emplace_back(argument);
      continue;
    }
    for (const auto& entry : std::filesystem::recursive_directory_iterator(argument)) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());  // directory order differs between machines
  return files;
}

struct Options {
  uint64_t random_inputs = 0;
  uint64_t seed = 1;
  std::optional<uint64_t> only;  // feed only this one of the random inputs
  size_t max_len = 4096 + 256;   // larger than the largest RoCE packet
  std::vector<std::string> paths;
};

Options parse_arguments(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name.rfind("--", 0) != 0) {
      options.paths.push_back(name);
      continue;
    }
    char* end = nullptr;
    const uint64_t value = i + 1 < argc ? std::strtoull(argv[i + 1], &end, 0) : 0;
    const bool known =
        name == "--random" || name == "--seed" || name == "--only" || name == "--max-len";
    if (!known || end == nullptr || end == argv[i + 1] || *end != '\0') {
      std::fprintf(stderr,
                   "usage: %s [--random N] [--seed S] [--only I] [--max-len L] [FILE | DIR]...\n",
                   argv[0]);
      std::exit(2);
    }
    if (name == "--random") options.random_inputs = value;
    if (name == "--seed") options.seed = value;
    if (name == "--only") options.only = value;
    if (name == "--max-len") options.max_len = static_cast<size_t>(value);
    ++i;
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse_arguments(argc, argv);
  if (__sanitizer_set_death_callback != nullptr) {
    __sanitizer_set_death_callback(print_current);
  }
  std::signal(SIGABRT, on_signal);
  if (__sanitizer_set_death_callback == nullptr) {
    for (const int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE}) std::signal(signal, on_signal);
  }

  std::vector<Bytes> corpus;
  for (const std::filesystem::path& path : files_of(options.paths)) {
    std::snprintf(g_current, sizeof g_current, "%s\n", path.c_str());
    corpus.push_back(read_file(path));
    feed(corpus.back());
  }

  for (uint64_t i = 0; i < options.random_inputs; ++i) {
    if (options.only && *options.only != i) continue;
    std::snprintf(
        g_current, sizeof g_current,
        "random input %llu; again: --random %llu --seed %llu --only %llu (same corpus)\n",
        static_cast<unsigned long long>(i), static_cast<unsigned long long>(options.random_inputs),
        static_cast<unsigned long long>(options.seed), static_cast<unsigned long long>(i));
    // Each input from a generator of its own, so that --only needs none of the others.
    Random random((options.seed << 32) ^ i);
    feed(make_input(random, corpus, options.max_len));
  }
  std::printf("replayed %zu files and %llu random inputs (seed %llu)\n", corpus.size(),
              static_cast<unsigned long long>(options.random_inputs),
              static_cast<unsigned long long>(options.seed));
  return 0;
}

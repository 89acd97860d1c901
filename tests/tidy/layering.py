#!/usr/bin/env python3
"""Checks the layering and the house rules of the source tree.

  layering.py ROOT         check the tree; exit 1 and name file:line of each violation
  layering.py --self-test  break every rule once in a temporary tree and see it reported
"""

import pathlib
import re
import sys
import tempfile

# Folder under src/ -> the folders it may include besides itself. docs: the picture in ARCHITECTURE.md.
ARROWS = {
    "base": set(),
    "wire": {"base"},
    "core": {"wire", "base"},
    "cm": {"wire", "base"},
    "daq": {"wire", "base"},
    "os": {"base"},
    "host": {"os", "wire", "base"},
    "datapath": {"host", "os", "wire", "base"},
    "runtime": {"core", "cm", "datapath", "host", "os", "wire", "base"},
    "abi": {"runtime", "core", "cm", "datapath", "host", "os", "wire", "base"},
    "view": {"runtime", "datapath", "host", "os", "wire", "base"},
    "rsocket": {"os", "base"},  # on the public API of both libraries
    "sim": {"core", "cm", "wire", "base"},
}

# These folders never read a clock, open a socket, start a thread, take a lock, draw random numbers or read
# the environment. Time and packets are arguments, so that the simulator can run them.
PURE = {"base", "wire", "core", "cm", "daq"}

PURE_HEADERS = re.compile(
    r"^(chrono|ctime|time\.h|sys/time\.h|sys/timerfd\.h|sys/times\.h"  # clocks
    r"|sys/socket\.h|sys/un\.h|netinet/.*|arpa/.*|net/.*|netdb\.h|ifaddrs\.h|linux/.*"  # sockets
    r"|poll\.h|sys/(poll|epoll|select|eventfd|ioctl|uio)\.h"
    r"|thread|stop_token|future|pthread\.h|threads\.h|sched\.h"  # threads
    r"|mutex|shared_mutex|condition_variable|semaphore|semaphore\.h|latch|barrier"  # locks
    r"|random|sys/random\.h|unistd\.h)$")  # random numbers; unistd.h: sleep, read, write

# Objects that several engines share have this lock, and no other.
EXCEPTIONS = {("base/spin_lock.h", "sched.h")}

PURE_NAMES = [
    ("a clock", re.compile(
        r"\bstd::chrono\b|\bclock_gettime\b|\bgettimeofday\b|\bclock_nanosleep\b|\bnanosleep\b"
        r"|\b(?:std::)?time\s*\(\s*(?:NULL|nullptr|0|&\s*\w+)\s*\)|\b__?rdtscp?\b|_rdtsc\b"
        r"|\bstd::clock\s*\(|\b(?:u|std::this_thread::)?sleep(?:_for|_until)?\s*\(")),
    ("a socket", re.compile(
        r"(?<![\w.>])(?:::)?(?:socket|recvmsg|sendmsg|recvmmsg|sendmmsg|recvfrom|sendto|setsockopt"
        r"|epoll_\w+|eventfd)\s*\(")),
    ("a thread", re.compile(
        r"\bstd::j?thread\b|\bstd::this_thread\b|\bstd::async\b|\bpthread_\w+|\bthread_local\b")),
    ("a lock", re.compile(
        r"\bstd::\w*mutex\b|\bstd::(?:lock_guard|unique_lock|scoped_lock|shared_lock)\b"
        r"|\bstd::condition_variable\w*|\bstd::call_once\b")),
    ("random numbers", re.compile(
        r"(?<![\w.>])(?:std::)?s?rand(?:om)?(?:_r)?\s*\(\s*(?:\)|\w+\s*\))|\bstd::random_device\b"
        r"|\bstd::mt19937\w*|\bgetrandom\b|\bgetentropy\b|\barc4random\w*|\b[dlm]rand48\b")),
    ("the environment", re.compile(r"\b(?:secure_)?getenv\b|\bsetenv\b|\benviron\b")),
]

# A class that needs the private members of another lacks an interface. Hidden friends (operators) are fine.
FRIEND = re.compile(r"^\s*friend\s+(?:class\b|struct\b|[\w:]+\s*;)")

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
NOISE = re.compile(  # comments, raw strings, strings, characters
    r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\'',
    re.S)
MAX_LINES = 700
CODE = {".cc", ".h"}
TEXT = CODE | {".sh", ".py", ".map", ".txt", ".cmake", ".json", ".md"}
FOLDERS = ("src", "tools", "tests", "bench", "scripts", ".ci", "docs")


def blank(match):
    """Keeps the line numbers of what is cut out."""
    return "".join(c if c == "\n" else " " for c in match.group())


def check_include(rel, where, quote, target, errors):
    layer = rel.parts[1]
    first = target.split("/")[0]
    if first in ARROWS and "/" in target:
        if first != layer and first not in ARROWS[layer]:
            errors.append(f"{where}: {layer} must not include {first} ({target})")
    elif quote == '"':
        errors.append(f'{where}: "{target}" is not written from src/ (as in "wire/psn.h")')
    excepted = ("/".join(rel.parts[1:]), target) in EXCEPTIONS
    if layer in PURE and PURE_HEADERS.match(target) and not excepted:
        errors.append(f"{where}: {layer} is pure and must not include <{target}>")


def check_layers(rel, text, errors):
    if len(rel.parts) < 3 or rel.parts[1] not in ARROWS:
        errors.append(f"{rel}: not in a known folder of src/; add it to ARROWS in layering.py")
        return
    for number, line in enumerate(text.split("\n"), 1):
        include = INCLUDE.match(line)
        if include:
            check_include(rel, f"{rel}:{number}", include[1], include[2], errors)
    code = NOISE.sub(blank, text).split("\n")
    for number, line in enumerate(code, 1):
        if FRIEND.match(line):
            errors.append(f"{rel}:{number}: a friend; give the class an interface instead")
    if rel.parts[1] in PURE:
        for number, line in enumerate(code, 1):
            for what, pattern in PURE_NAMES:
                found = not INCLUDE.match(line) and pattern.search(line)
                if found:
                    errors.append(f"{rel}:{number}: {rel.parts[1]} is pure and must not use {what}"
                                  f" ({found.group().strip()})")


def check_tidiness(rel, text, errors, warnings):
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if "\t" in line:
            errors.append(f"{rel}:{number}: tab")
        if line != line.rstrip():
            errors.append(f"{rel}:{number}: trailing whitespace")
    if text and not text.endswith("\n"):
        errors.append(f"{rel}:{len(lines)}: no newline at the end")
    if rel.suffix in CODE:
        if not text.lstrip().startswith(("//", "/*")):
            errors.append(f"{rel}:1: does not begin with a comment on its place")
        if len(lines) - 1 > MAX_LINES:
            warnings.append(f"{rel}: {len(lines) - 1} lines, more than {MAX_LINES}")


def check_unit_test_name(root, rel, errors):
    """tests/unit/core/requester_read_test.cc tests src/core/requester_read.h or src/core/requester.cc."""
    folder = root.joinpath("src", *rel.parts[2:-1])
    words = rel.name.removesuffix("_test.cc").split("_")
    names = ["_".join(words[:count]) for count in range(len(words), 0, -1)]
    if not any((folder / (name + suffix)).is_file() for name in names for suffix in CODE):
        errors.append(f"{rel}: not named after a file of src/{'/'.join(rel.parts[2:-1])}")


def check_tree(root):
    errors, warnings, count = [], [], 0
    files = [path for folder in FOLDERS for path in sorted((root / folder).rglob("*"))]
    for path in files:
        rel = path.relative_to(root)
        if not path.is_file() or "corpus" in rel.parts:
            continue
        if path.suffix not in TEXT and path.parent.name != ".ci":
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            errors.append(f"{rel}: not UTF-8")
            continue
        count += 1
        if rel.parts[0] == "src" and path.suffix in CODE:
            check_layers(rel, text, errors)
        if rel.parts[:2] == ("tests", "unit") and rel.name.endswith("_test.cc"):
            check_unit_test_name(root, rel, errors)
        check_tidiness(rel, text, errors, warnings)
    return errors, warnings, count


GOOD = {
    "src/base/ok.h": "// std::mutex, getenv( and rand() in a comment are fine.\n"
                     "inline int brand(int x) { return x; }\n"
                     "inline int uptime(int runtime) { return brand(runtime); }\n"
                     "inline const char* text() { return \"getenv(\"; }\n"
                     "constexpr int kBig = 1'000'000;\n",
    "src/wire/friend.h": "// Operators may be friends.\nstruct A { friend bool operator==(A, A); };\n",
    "src/wire/ok.h": '// A header.\n#include <cstdint>\n#include "base/ok.h"\n',
    "src/core/ok.h": '/* A header. */\n#include "wire/ok.h"\n#include "core/other.h"\n',
    "src/runtime/ok.cc": '// Runtime.\n#include <mutex>\n#include "datapath/udp/x.h"\n',
    "src/abi/verbs/ok.cc": '// ABI.\n#include "runtime/nic.h"\n#include <infiniband/verbs.h>\n',
    "tests/unit/core/ok_twice_test.cc": "// Tests.\n",
    "tests/unit/core/ok_test.cc": '// Tests.\n#include "sim/world.h"\n#include <chrono>\n',
}

BAD = [  # (path, contents, text that the message must contain)
    ("src/base/x.h", '// x\n#include "wire/psn.h"\n', "base must not include wire"),
    ("src/wire/x.h", '// x\n#include "core/engine.h"\n', "wire must not include core"),
    ("src/core/x.cc", '// x\n#include "datapath/datapath.h"\n', "core must not include datapath"),
    ("src/core/x.cc", '// x\n#include "cm/agent.h"\n', "core must not include cm"),
    ("src/cm/x.cc", '// x\n#include "core/engine.h"\n', "cm must not include core"),
    ("src/daq/x.cc", '// x\n#include "core/engine.h"\n', "daq must not include core"),
    ("src/core/x.cc", '// x\n#  include <runtime/nic.h>\n', "core must not include runtime"),
    ("src/datapath/udp/x.cc", '// x\n#include "core/engine.h"\n', "datapath must not include core"),
    ("src/os/x.h", '// x\n#include "wire/identifiers.h"\n', "os must not include wire"),
    ("src/host/x.cc", '// x\n#include "datapath/datapath.h"\n', "host must not include datapath"),
    ("src/core/x.cc", '// x\n#include "os/unique_fd.h"\n', "core must not include os"),
    ("src/runtime/x.cc", '// x\n#include "sim/world.h"\n', "runtime must not include sim"),
    ("src/runtime/x.cc", '// x\n#include "abi/verbs/x.h"\n', "runtime must not include abi"),
    ("src/abi/verbs/x.cc", '// x\n#include "sim/world.h"\n', "abi must not include sim"),
    ("src/sim/x.cc", '// x\n#include "runtime/nic.h"\n', "sim must not include runtime"),
    ("src/wire/x.cc", '// x\n#include "psn.h"\n', "not written from src/"),
    ("src/odd/x.cc", "// x\n", "not in a known folder"),
    ("src/core/x.cc", "// x\n#include <chrono>\n", "<chrono>"),
    ("src/core/x.cc", "// x\n#include <sys/socket.h>\n", "<sys/socket.h>"),
    ("src/cm/x.cc", "// x\n#include <mutex>\n", "<mutex>"),
    ("src/daq/x.cc", "// x\n#include <sys/socket.h>\n", "<sys/socket.h>"),
    ("src/base/x.cc", "// x\n#include <thread>\n", "<thread>"),
    ("src/base/x.cc", "// x\n#include <random>\n", "<random>"),
    ("src/wire/x.cc", "// x\n#include <ctime>\n", "<ctime>"),
    ("src/core/x.cc", "// x\nauto t = time(nullptr);\n", "a clock"),
    ("src/core/x.cc", "// x\nclock_gettime(CLOCK_MONOTONIC, &t);\n", "a clock"),
    ("src/core/x.cc", "// x\nint fd = ::socket(1, 2, 3);\n", "a socket"),
    ("src/core/x.cc", "// x\nstd::thread t;\n", "a thread"),
    ("src/core/x.cc", "// x\npthread_create(&t);\n", "a thread"),
    ("src/core/x.cc", "// x\nstd::mutex m;\n", "a lock"),
    ("src/core/x.cc", "// x\nint x = rand();\n", "random numbers"),
    ("src/core/x.cc", "// x\nauto x = std::getenv(\"X\");\n", "the environment"),
    ("src/host/x.h", "// x\nclass A {\n  friend class B;\n};\n", "a friend"),
    ("src/host/x.h", "// x\nclass A {\n  friend B;\n};\n", "a friend"),
    ("src/core/x.cc", "// x\n\tint x;\n", "tab"),
    ("src/core/x.cc", "// x\nint x; \n", "trailing whitespace"),
    ("tests/unit/x.cc", "int x;\n", "begin with a comment"),
    ("tests/unit/core/okay_test.cc", "// x\n", "not named after a file of src/core"),
    ("tests/unit/abi/ok_test.cc", "// x\n", "not named after a file of src/abi"),
    ("tools/x.h", "#pragma once\n// late\n", "begin with a comment"),
]


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def self_test():
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        write(root, GOOD)
        errors, _, count = check_tree(root)
        if errors or count != len(GOOD):
            failures.append(f"the good tree: {count} files, {errors}")
        for name, text, expected in BAD:
            write(root, {name: text})
            errors, _, _ = check_tree(root)
            if len(errors) != 1 or expected not in errors[0]:
                failures.append(f"{name} {text!r}: expected one '{expected}', got {errors}")
            (root / name).unlink()
        write(root, {"src/core/x.cc": "// x\n" * (MAX_LINES + 1)})
        errors, warnings, _ = check_tree(root)
        if errors or len(warnings) != 1:
            failures.append(f"a long file: {errors} {warnings}")
    for failure in failures:
        print(f"layering self-test: {failure}", file=sys.stderr)
    return 1 if failures else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    root = pathlib.Path(sys.argv[1]).resolve()
    errors, warnings, count = check_tree(root)
    for warning in warnings:
        print(f"warning: {warning}")
    for error in errors:
        print(error, file=sys.stderr)
    print(f"layering: {count} files, {len(errors)} violations, {len(warnings)} warnings")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())

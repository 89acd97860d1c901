#!/usr/bin/env python3
"""Runs clang-tidy on the files that standard input lists.

  tidy.py BUILD JOBS < FILES

BUILD/tidy records the clean files, also those of an interrupted run. A clean file is checked again
only if it changes, or one of the project's headers that it includes, its compiler flags, the checks,
or clang-tidy. Files of a unity build are checked one by one, with the flags of the unity file.
"""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys

INCLUDE = re.compile(rb'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
ROOT = pathlib.Path(__file__).resolve().parent.parent
GNU_ONLY = re.compile(r" --param=\S+")  # clang has no such flag
SCRIPTS_FLAGS = ["-std=c++20", f"-I{ROOT}"]  # of programs that tests/**/*.sh compile


def commands_of(build):
    """The compile command of each file, and the folder with the compile_commands.json that clang-tidy reads."""
    commands = []
    for entry in json.loads((build / "compile_commands.json").read_text()):
        whole, names = entry["file"], [entry["file"]]
        if pathlib.Path(whole).name.startswith("unity_"):
            names = map(os.fsdecode, INCLUDE.findall(pathlib.Path(whole).read_bytes()))
        command = GNU_ONLY.sub("", entry["command"])
        commands += [{**entry, "file": name, "command": command.replace(whole, name)} for name in names]
    folder = build / "tidy"
    folder.mkdir(exist_ok=True)
    (folder / "compile_commands.json").write_text(json.dumps(commands))
    return commands, folder


class Fingerprints:
    """A hash of everything on which the result for a file depends."""

    def __init__(self, commands):
        self.digests = {}  # file: (hash of its text, headers that it includes)
        self.flags = {entry["file"]: entry["command"] for entry in commands}
        self.tool = subprocess.run(["clang-tidy", "--version"], capture_output=True, check=True).stdout

    def of(self, file):
        everything = hashlib.sha256(self.tool)
        everything.update(self.flags.get(str(file), str(SCRIPTS_FLAGS)).encode())
        for folder in reversed(file.parents):
            if (folder / ".clang-tidy").is_file():
                everything.update((folder / ".clang-tidy").read_bytes())
        for path in sorted(self.closure(file)):
            everything.update(self.read(path)[0])
        return everything.hexdigest()

    def closure(self, file):
        found, new = set(), {file}
        while new:
            found |= new
            new = {header for path in new for header in self.read(path)[1]} - found
        return found

    def read(self, path):
        if path not in self.digests:
            text = path.read_bytes()
            candidates = [[base / name for base in (path.parent, ROOT / "src", ROOT)]
                          for name in map(os.fsdecode, INCLUDE.findall(text))]
            ours = {next((c for c in each if c.is_file()), None) for each in candidates} - {None}
            self.digests[path] = (hashlib.sha256(text).digest(), {pathlib.Path(os.path.normpath(p)) for p in ours})
        return self.digests[path]


def check(file, folder, is_built):
    command = ["clang-tidy", "--quiet", file] + (["-p", folder] if is_built else ["--", *SCRIPTS_FLAGS])
    return subprocess.run(command, capture_output=True, text=True, check=False)


def main():
    build, jobs = pathlib.Path(sys.argv[1]).resolve(), int(sys.argv[2])
    files = [ROOT / line for line in sys.stdin.read().split()]
    commands, folder = commands_of(build)
    fingerprints = Fingerprints(commands)
    recorded = {file: folder / file.relative_to(ROOT) for file in files}
    wanted = {file: fingerprints.of(file) for file in files}
    todo = [file for file in files
            if not recorded[file].is_file() or recorded[file].read_text() != wanted[file]]
    wrong = []
    print(f"clang-tidy: {len(files) - len(todo)} of {len(files)} files were clean and are unchanged", flush=True)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        checks = {pool.submit(check, file, folder, str(file) in fingerprints.flags): file for file in todo}
        try:
            for done, future in enumerate(concurrent.futures.as_completed(checks), 1):
                file, result = checks[future], future.result()
                name = file.relative_to(ROOT)
                print(f"[{done}/{len(todo)}] {name}", flush=True)
                if result.returncode == 0:
                    recorded[file].parent.mkdir(parents=True, exist_ok=True)
                    recorded[file].write_text(wanted[file])
                else:
                    wrong.append(name)
                    print(result.stdout or result.stderr, flush=True)
        except KeyboardInterrupt:
            print("clang-tidy: interrupted; the clean files are recorded", flush=True)
            os._exit(130)  # the running clang-tidy processes are interrupted, too
    if wrong:
        sys.exit(f"clang-tidy: {len(wrong)} files have warnings: " + " ".join(map(str, wrong)))
    print(f"clang-tidy: {len(files)} files are clean")


main()

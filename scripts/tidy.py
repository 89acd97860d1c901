#!/usr/bin/env python3
"""Runs clang-tidy on the files that are named on standard input.

  tidy.py BUILD JOBS < FILES

BUILD/tidy remembers which were clean: such a file is not looked at again before it changes, or a
header of ours that it includes, its compiler's flags, the checks, or clang-tidy. That includes the
files that were done when a run was interrupted. Files that are compiled as one are looked at one by
one, with the flags of the whole.
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
SCRIPTS_FLAGS = ["-std=c++20", f"-I{ROOT}"]  # of programs that tests/**/*.sh compile by themselves


def commands_of(build):
    """How each file is compiled, in the folder that is returned with it: clang-tidy reads it there."""
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
    """What the verdict on a file depends on, as a number."""

    def __init__(self, commands):
        self.digests = {}  # of each file by itself, with what it includes
        self.flags = {entry["file"]: entry["command"] for entry in commands}
        self.tool = subprocess.run(["clang-tidy", "--version"], capture_output=True, check=True).stdout

    def of(self, file):
        everything = hashlib.sha256(self.tool)
        everything.update(self.flags.get(str(file), str(SCRIPTS_FLAGS)).encode())
        for folder in reversed(file.parents):
            if (folder / ".clang-tidy").is_file():
                everything.update((folder / ".clang-tidy").read_bytes())
        for path in sorted(self.closure(file)):
            everything.update(self.look(path)[0])
        return everything.hexdigest()

    def closure(self, file):
        found, new = set(), {file}
        while new:
            found |= new
            new = {header for path in new for header in self.look(path)[1]} - found
        return found

    def look(self, path):
        if path not in self.digests:
            text = path.read_bytes()
            candidates = [[base / name for base in (path.parent, ROOT / "src", ROOT)]
                          for name in map(os.fsdecode, INCLUDE.findall(text))]
            ours = {next((c for c in each if c.is_file()), None) for each in candidates} - {None}
            self.digests[path] = (hashlib.sha256(text).digest(), {pathlib.Path(os.path.normpath(p)) for p in ours})
        return self.digests[path]


def look_at(file, folder, is_built):
    command = ["clang-tidy", "--quiet", file] + (["-p", folder] if is_built else ["--", *SCRIPTS_FLAGS])
    return subprocess.run(command, capture_output=True, text=True, check=False)


def main():
    build, jobs = pathlib.Path(sys.argv[1]).resolve(), int(sys.argv[2])
    files = [ROOT / line for line in sys.stdin.read().split()]
    commands, folder = commands_of(build)
    fingerprints = Fingerprints(commands)
    remembered = {file: folder / file.relative_to(ROOT) for file in files}
    wanted = {file: fingerprints.of(file) for file in files}
    todo = [file for file in files
            if not remembered[file].is_file() or remembered[file].read_text() != wanted[file]]
    wrong = []
    print(f"clang-tidy: {len(files) - len(todo)} of {len(files)} files were clean and are unchanged", flush=True)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        looks = {pool.submit(look_at, file, folder, str(file) in fingerprints.flags): file for file in todo}
        try:
            for done, look in enumerate(concurrent.futures.as_completed(looks), 1):
                file, result = looks[look], look.result()
                name = file.relative_to(ROOT)
                print(f"[{done}/{len(todo)}] {name}", flush=True)
                if result.returncode == 0:
                    remembered[file].parent.mkdir(parents=True, exist_ok=True)
                    remembered[file].write_text(wanted[file])
                else:
                    wrong.append(name)
                    print(result.stdout or result.stderr, flush=True)
        except KeyboardInterrupt:
            print("clang-tidy: interrupted; what was clean is remembered", flush=True)
            os._exit(130)  # those that run were interrupted as well
    if wrong:
        sys.exit(f"clang-tidy: {len(wrong)} files to mend: " + " ".join(map(str, wrong)))
    print(f"clang-tidy: {len(files)} files are clean")


main()

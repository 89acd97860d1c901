"""The environment of measurements: a separate network namespace, one core per side, and bounded processes."""

import contextlib
import fcntl
import os
import pathlib
import platform
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

INSIDE = "VERBENA_BENCH_NAMESPACE"
LISTENING = "0A"  # in /proc/net/tcp
GET_INTERFACE_FLAGS, SET_INTERFACE_FLAGS, UP = 0x8913, 0x8914, 1  # linux/sockios.h, linux/if.h
INTERFACE_REQUEST = struct.Struct("16sH22x")  # struct ifreq: name, flags
ERROR_LINE = re.compile(r"fail|error|cannot|could not|couldn't|unable|refused", re.IGNORECASE)


class Failure(Exception):
    """The reason why a measurement gave no number."""


def enter_namespace():
    """Continues in a new network namespace, without other traffic or ports, if that is permitted."""
    if INSIDE not in os.environ:
        permitted = _is_new_namespace_permitted()
        os.environ[INSIDE] = "own" if permitted else "host"
        if permitted:
            os.execvp("unshare", ["unshare", "-rn", sys.executable, *sys.argv])
    if os.environ[INSIDE] == "own":
        _set_loopback_up()


def _is_new_namespace_permitted():
    try:
        return subprocess.run(["unshare", "-rn", "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0
    except FileNotFoundError:
        return False


def _set_loopback_up():
    """As `ip link set lo up`, which not every machine has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = fcntl.ioctl(any_socket, GET_INTERFACE_FLAGS, INTERFACE_REQUEST.pack(b"lo", 0))
        name, flags = INTERFACE_REQUEST.unpack(request)
        fcntl.ioctl(any_socket, SET_INTERFACE_FLAGS, INTERFACE_REQUEST.pack(name, flags | UP))


def cores():
    """The cores of client and server; the same core if there is only one."""
    available = sorted(os.sched_getaffinity(0))
    return available[0], available[min(1, len(available) - 1)]


def both_cores():
    """The cores for programs that pin their own processes, in the format of taskset."""
    return ",".join(map(str, sorted(set(cores()))))


def most_threads():
    """The number of threads per side up to which scaling is measured: each thread and its peer have a core, two cores
    remain for the rest. Two at least, even if they must share."""
    return max(2, min(7, (len(os.sched_getaffinity(0)) - 2) // 2))


def describe():
    model = next((line.split(":", 1)[1].strip()
                  for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
                  if line.startswith("model name")), platform.machine())
    return {"processor": model, "cores": len(os.sched_getaffinity(0)), "kernel": platform.release()}


class Process:
    """A program in its own process group, with its output in a file. `cores_`, in the format of taskset; None: all."""

    def __init__(self, command, cores_, environment=None, stdin=subprocess.DEVNULL):
        self.command = [str(word) for word in command]
        self.output = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        self.child = subprocess.Popen(
            [*([] if cores_ is None else ["taskset", "-c", str(cores_)]), *self.command],
            stdin=stdin, stdout=self.output, stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})}, start_new_session=True)

    def text(self):
        self.output.seek(0)
        return self.output.read()

    def await_text(self, text, limit=30):
        """Waits until the output contains the text."""
        deadline = time.monotonic() + limit
        while text not in self.text():
            if self.child.poll() is not None:
                raise self.failure(f"ended without printing '{text}'")
            if time.monotonic() > deadline:
                raise self.failure(f"no '{text}' after {limit} s")
            time.sleep(0.02)

    def failure(self, what):
        output_lines = [line.strip() for line in self.text().splitlines() if line.strip()]
        lines = [line for line in output_lines if ERROR_LINE.search(line)] or output_lines
        command = " ".join(os.path.basename(word) if word.startswith("/") else word for word in self.command)
        return Failure(f"{command}: {what}" + (f": {lines[-1]}" if lines else ""))

    def finish(self, limit):
        """Waits until the program ends successfully, at most `limit` seconds. Returns its output."""
        try:
            status = self.child.wait(limit)
        except subprocess.TimeoutExpired:
            raise self.failure(f"not done after {limit} s") from None
        if status != 0:
            raise self.failure(f"exit status {status}")
        return self.text()

    def end(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()
        self.output.close()


@contextlib.contextmanager
def running(*arguments, **keywords):
    """A process that ends with the block at the latest."""
    process = Process(*arguments, **keywords)
    try:
        yield process
    finally:
        process.end()


def _listens(port):
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(table, encoding="ascii") as lines:
            for line in lines:
                words = line.split()
                if words[3] == LISTENING and words[1].endswith(f":{port:04X}"):
                    return True
    return False


def await_listener(port, server, limit=10):
    deadline = time.monotonic() + limit
    while not _listens(port):
        if server.child.poll() is not None:
            raise server.failure("ended before it listened")
        if time.monotonic() > deadline:
            raise server.failure(f"does not listen on port {port}")
        time.sleep(0.01)


def run_program(command, environment=None, limit=30):
    """Runs a program that pins its own processes. Returns its output."""
    with running(command, both_cores(), environment) as process:
        return process.finish(limit)


def run_client(client, core, environment, limit, attempts):
    """Runs the client, and again up to `attempts` times while its server may not listen yet. Returns its output."""
    for attempt in range(attempts):
        try:
            with running(client, core, environment) as process:
                return process.finish(limit)
        except Failure:
            if attempt == attempts - 1:
                raise
            time.sleep(0.1)


def run_pair(server, client, port, environment=None, limit=30, server_ends=True, seen_listening=True):
    """Runs a server and its client. Returns the client's output. The client starts when `server` listens on TCP `port`;
    without `seen_listening` it starts at once and retries."""
    client_core, server_core = cores()
    with running(server, server_core, environment) as serving:
        if seen_listening:
            await_listener(port, serving)
        output = run_client(client, client_core, environment, limit, 1 if seen_listening else 20)
        if server_ends:
            serving.finish(limit)
        return output

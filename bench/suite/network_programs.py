"""The measuring programs across two network namespaces (links.py). As in programs.py, each is a value with a command for
documentation and a measure() that returns its numbers by name."""

import contextlib
import dataclasses
import itertools
import json
import re

import machine
import programs
from links import NEAR
from machine import Failure

_ports = itertools.count(27100)
LIMIT = 30  # seconds


def _tool():
    return programs.BUILD / "verbena"


def _across(joined, server, client, port, cores=(None, None)):
    """Runs the server here and its client on the far side. Returns the client's output."""
    client_core, server_core = cores
    with machine.running(server, server_core) as serving:
        machine.await_listener(port, serving)
        with machine.running([*joined.there, *client], client_core) as process:
            return process.finish(LIMIT)


def _perftest_words(joined, program, size, length):
    words = [program, "-d", joined.device, "-x", 0, "-F", "-s", size, *length]
    return [_tool(), "run", "--", *words]


def _result_line(output, command):
    found = re.findall(r"^ *[0-9]+ +[0-9]+ .*$", output, re.MULTILINE)
    if not found:
        raise Failure(f"{command}: no result in its output")
    return found[-1].split()


@dataclasses.dataclass(frozen=True)
class Write:
    """ib_write_bw. It measures the middle half of its time."""
    link: object
    size: int = 64 * 1024
    seconds: int = 4
    pinned: bool = False  # one core for each side

    @property
    def command(self):
        return f"{self.link.command}; ib_write_bw -s {self.size} -D {self.seconds}"

    def measure(self):
        port = next(_ports)
        with self.link.joined() as joined:
            words = _perftest_words(joined, "ib_write_bw", self.size, ["-D", self.seconds, "--report_gbits", "-p", port])
            output = _across(joined, words, [*words, NEAR], port, machine.cores() if self.pinned else (None, None))
        return {"gbps": float(_result_line(output, self.command)[3])}


@dataclasses.dataclass(frozen=True)
class Tcp:
    """One TCP stream with CUBIC, after its slow start."""
    link: object
    seconds: int = 3
    pinned: bool = False

    @property
    def words(self):
        return ["iperf3", "-c", NEAR, "-C", "cubic", "-O", 1, "-t", self.seconds]

    @property
    def command(self):
        return f"{self.link.command}; " + " ".join(map(str, self.words))

    def measure(self):
        port = next(_ports)
        with self.link.joined() as joined:
            output = _across(joined, ["iperf3", "-s", "-1", "-p", port], [*self.words, "-p", port, "-J"], port,
                             machine.cores() if self.pinned else (None, None))
        return {"gbps": json.loads(output)["end"]["sum_received"]["bits_per_second"] / 1e9}


@dataclasses.dataclass(frozen=True)
class UdpStream:
    """Plain UDP in GSO batches, without a protocol on top."""
    link: object
    size: int

    @property
    def command(self):
        return f"{self.link.command}; udp_reference stream {self.size}"

    def measure(self):
        with self.link.joined() as joined:
            words = [programs.BUILD / "udp_reference", "stream", self.size, 0, NEAR, joined.far]
            return {"gbps": float(machine.run_program(words))}


@contextlib.contextmanager
def _incast(joined, senders, seconds, warm_up, depth):
    words = [_tool(), "run", "--", programs.BUILD / "incast", "-f", joined.far, "-n", senders, "-t", seconds, "-w", warm_up,
             "-d", depth]
    with machine.running(words, None) as process:
        yield process


def _finished(process):
    """The numbers of incast."""
    process.await_text("}", LIMIT)
    return json.loads(process.text()[process.text().index("{"):])


@dataclasses.dataclass(frozen=True)
class Incast:
    """Many senders, each a process, into one process. Numbers are of the measured time only."""
    link: object
    senders: int
    seconds: float = 3

    DEPTH = 16

    @property
    def command(self):
        return f"{self.link.command}; incast -n {self.senders} -d {self.DEPTH} -t {self.seconds:g}"

    def measure(self):
        with self.link.joined() as joined, _incast(joined, self.senders, self.seconds, 1, self.DEPTH) as process:
            process.await_text("measuring", LIMIT)
            joined.report()
            found = _finished(process)
            counted = joined.report()["to_near"]
        arrived = counted["packets"] + counted["dropped"]
        return {"used": found["gbps"] * 1000 / self.link.rate_mbit, "jain": found["jain"], "gave_up": found["gave_up"],
                "drops": 100 * counted["dropped"] / max(arrived, 1), "queue": counted["queue_bytes"]["median"] / 1000}


@dataclasses.dataclass(frozen=True)
class BesideTcp:
    """One sender beside one TCP stream (CUBIC). The shares are of the link's rate, with all headers."""
    link: object
    seconds: float = 4

    WARM_UP = 2

    @property
    def command(self):
        return f"{self.link.command}; incast -n 1 -t {self.seconds:g} & iperf3 -c {NEAR} -C cubic"

    def measure(self):
        port = next(_ports)
        client = ["iperf3", "-c", NEAR, "-C", "cubic", "-t", 30, "-p", port]
        with (self.link.joined() as joined, machine.running(["iperf3", "-s", "-1", "-p", port], None) as serving):
            machine.await_listener(port, serving)
            with (_incast(joined, 1, self.seconds, self.WARM_UP, 64) as process,
                  machine.running([*joined.there, *client], None)):
                process.await_text("measuring", LIMIT)
                joined.report()
                if _finished(process)["gave_up"]:
                    raise Failure(f"{self.command}: the queue pair gave up")
                report = joined.report()
        bits = {"udp": 0, "tcp": 0}
        for flow in report["to_near"]["flows"]:
            if flow["protocol"] in bits:
                bits[flow["protocol"]] += flow["bytes"] * 8
        return {name: sent / (report["seconds"] * self.link.rate_mbit * 1e6) for name, sent in bits.items()}


@dataclasses.dataclass(frozen=True)
class WriteLatency:
    """ib_write_lat, the median of half a round trip, on an idle link or while another process fills it."""
    link: object
    loaded: bool
    iterations: int = 1000

    @property
    def command(self):
        return f"{self.link.command}; {'incast -n 1 & ' if self.loaded else ''}ib_write_lat -s 8 -n {self.iterations}"

    def measure(self):
        port = next(_ports)
        with self.link.joined() as joined, contextlib.ExitStack() as load:
            if self.loaded:
                process = load.enter_context(_incast(joined, 1, 60, 1, 64))
                process.await_text("measuring", LIMIT)
            words = _perftest_words(joined, "ib_write_lat", 8, ["-n", self.iterations, "-p", port])
            output = _across(joined, words, [*words, NEAR], port)
        return {"us": float(_result_line(output, self.command)[4])}

"""The measuring programs. Each is a value: equal values are the same measurement. measure() runs the program once,
with both ends on this machine, and returns its numbers by name; `command` is the command line for documentation."""

import dataclasses
import itertools
import json
import re
import subprocess

import machine
from machine import Failure

BUILD = None  # the build folder, set once by the main program
_ports = itertools.count(24100)


def settings_for(datapath=None, loss=0.0, receive_buffer=None):
    """Verbena's settings for one program, as (variable, value) pairs."""
    chosen = {"VERBENA_DATAPATH": datapath, "VERBENA_RCVBUF": receive_buffer,
              "VERBENA_FAULTS": f"loss={loss},seed=7" if loss else None}
    return tuple((name, str(value)) for name, value in chosen.items() if value)


HOST = settings_for()
WIRE = settings_for(datapath="udp")


def _prefix(settings):
    return "".join(f"{name}={value} " for name, value in settings)


def _tool():
    return BUILD / "verbena"


def _find(pattern, text, what):
    found = re.findall(pattern, text, re.MULTILINE)
    if not found:
        raise Failure(f"{what}: no result in its output")
    return found[-1]


@dataclasses.dataclass(frozen=True)
class Perftest:
    """Debian's perftest on Verbena. A bandwidth test runs for `seconds`, a latency test for `iterations`."""
    program: str
    size: int
    settings: tuple = HOST
    seconds: int = 1
    iterations: int = 0

    @property
    def words(self):
        length = ["-n", self.iterations] if self.iterations else ["-D", self.seconds]
        report = [] if self.program.endswith("_lat") else ["--report_gbits"]
        return [self.program, "-d", "verbena_lo", "-x", 0, "-F", "-s", self.size, *length, *report]

    @property
    def command(self):
        return _prefix(self.settings) + " ".join(map(str, self.words))

    def measure(self):
        port = next(_ports)
        server = [_tool(), "run", "--", *self.words, "-p", port]
        output = machine.run_pair(server, [*server, "127.0.0.1"], port, dict(self.settings))
        line = _find(r"^ *[0-9]+ +[0-9]+ .*$", output, self.command).split()
        if self.program.endswith("_lat"):
            return {"us": float(line[4])}  # typical, that is the median
        return {"gbps": float(line[3])}  # average


@dataclasses.dataclass(frozen=True)
class Iperf3:
    """One TCP stream."""
    block: int = 128 * 1024
    seconds: int = 1

    @property
    def command(self):
        return f"iperf3 -c 127.0.0.1 -t {self.seconds} -l {self.block}"

    def measure(self):
        port = next(_ports)
        output = machine.run_pair(["iperf3", "-s", "-1", "-p", port],
                                  [*self.command.split(), "-p", port, "-J"], port)
        return {"gbps": json.loads(output)["end"]["sum_received"]["bits_per_second"] / 1e9}


@dataclasses.dataclass(frozen=True)
class Ucx:
    """ucx_perftest, over shared memory (posix and cma) or TCP."""
    test: str
    size: int
    transports: str = "posix,cma,self"
    iterations: int = 20000

    @property
    def words(self):
        return ["ucx_perftest", "-t", self.test, "-s", self.size, "-n", self.iterations, "-f", "-v"]

    @property
    def command(self):
        return f"UCX_TLS={self.transports} " + " ".join(map(str, self.words))

    def measure(self):
        port = next(_ports)
        environment = {"UCX_TLS": self.transports, "UCX_NET_DEVICES": "lo", "UCX_WARN_UNUSED_ENV_VARS": "n"}
        output = machine.run_pair(["ucx_perftest", "-p", port],
                                  [*self.words, "127.0.0.1", "-p", port], port, environment)
        # iterations, 50th percentile, average and overall latency, average and overall MiB/s, ...
        line = _find(r"^ *[0-9]+,[0-9.,]+$", output, self.command).split(",")
        return {"us": float(line[1]), "gbps": float(line[5]) * 1024 * 1024 * 8 / 1e9}


@dataclasses.dataclass(frozen=True)
class Libfabric:
    """fi_pingpong of one provider: half a round trip."""
    provider: str
    endpoint: str
    size: int
    iterations: int = 5000

    @property
    def command(self):
        return (f"fi_pingpong -p {self.provider} -e {self.endpoint} -S {self.size} -I {self.iterations}")

    def measure(self):
        port = next(_ports)
        words = self.command.split()
        output = machine.run_pair([*words, "-B", port], [*words, "-P", port, "127.0.0.1"], port)
        return {"us": float(_find(r"^[0-9.]+[kmg]? .*$", output, self.command).split()[6])}


@dataclasses.dataclass(frozen=True)
class Qperf:
    """qperf over TCP. Bandwidth is in one direction; latency is half a round trip."""
    test: str
    size: int
    seconds: int = 1

    @property
    def command(self):
        return f"qperf -t {self.seconds} -m {self.size} 127.0.0.1 {self.test}"

    def measure(self):
        port = next(_ports)
        client = ["qperf", "-lp", port, "-uu", *self.command.split()[1:]]
        output = machine.run_pair(["qperf", "-lp", port], client, port, server_ends=False)
        value, unit = _find(r"= +([0-9.,e+-]+) (\S+)", output, self.command)
        number = float(value.replace(",", ""))
        if unit == "bytes/sec":
            return {"gbps": number * 8 / 1e9}
        if unit == "ns":
            return {"us": number / 1e3}
        raise Failure(f"{self.command}: unknown unit {unit}")


@dataclasses.dataclass(frozen=True)
class Rstream:
    """librdmacm's test of rsockets, blocking: `transfers` transfers in one direction, then as many back. With `tcp`, the
    same program over plain TCP, for comparison."""
    size: int
    settings: tuple = HOST
    tcp: bool = False
    transfers: int = 20_000

    @property
    def words(self):
        return ["rstream", "-T", "s" if self.tcp else "b", "-S", self.size, "-C", self.transfers, "-I", 1]

    @property
    def command(self):
        return _prefix(self.settings) + " ".join(map(str, self.words)) + " -s 127.0.0.1"

    def measure(self):
        port = next(_ports)
        words = [*([] if self.tcp else [_tool(), "run", "--"]), *self.words, "-p", port]
        output = machine.run_pair([*words, "-b", "127.0.0.1"], [*words, "-s", "127.0.0.1"], port, dict(self.settings),
                                  seen_listening=self.tcp)
        return {"gbps": float(_find(r"^custom .*$", output, self.command).split()[6])}


@dataclasses.dataclass(frozen=True)
class RawUdp:
    """Plain UDP without a protocol on top."""
    mode: str
    sizes: tuple

    @property
    def command(self):
        return f"udp_reference {self.mode} " + " ".join(map(str, self.sizes))

    def measure(self):
        output = machine.run_program([BUILD / "udp_reference", self.mode, *self.sizes])
        return {"us" if self.mode == "pingpong" else "gbps": float(output)}


@dataclasses.dataclass(frozen=True)
class Readout:
    """An emulated board that sends WRITEs to `verbena recv` over the wire. `cpu` is the receiver's mean number of processors
    in use."""
    size: int
    poll: str
    gbps: float = 0  # of the board's link; 0: no limit
    seconds: float = 1

    BOARD = "127.0.0.2"

    @property
    def board_words(self):
        return ["fpga", "--listen", self.BOARD, *(["--gbps", self.gbps] if self.gbps else [])]

    @property
    def words(self):
        return ["recv", "--board", self.BOARD, "--msg-size", self.size, "--poll", self.poll,
                "--messages", 4_000_000_000, "--seconds", self.seconds, "--json"]

    @property
    def command(self):
        board, receiver = (" ".join(["verbena", *map(str, words)]) for words in (self.board_words, self.words))
        return f"{board} & {_prefix(WIRE)}{receiver}"

    def measure(self):
        receiver_core, board_core = machine.cores()
        with machine.running([_tool(), *self.board_words], board_core) as board:
            board.await_text("listens")
            with machine.running([_tool(), *self.words], receiver_core, dict(WIRE)) as receiver:
                receiver.child.wait(30)  # the exit status is 1: more messages are requested than can arrive
                output = receiver.text()
        result = json.loads(output[output.index("\n{"):])
        stream = result["streams"][0]
        if stream["messages"] == 0 or stream["wrong"] or stream["trouble"]:
            raise Failure(f"{self.command}: {stream['messages']} messages, {stream['wrong']} wrong; {stream['trouble']}")
        return {"gbps": result["gbps"], "cpu": result["cpu_seconds"] / result["seconds"]}


@dataclasses.dataclass(frozen=True)
class QpLoad:
    """WRITEs over many queue pairs. Also counts, on both sides together, lost and retransmitted packets and
    shared-memory links."""
    size: int
    queue_pairs: int
    depth: int
    list: int
    settings: tuple = HOST
    seconds: float = 1

    LOSSES = ("udp_kernel_rx_drops", "udp_send_drops", "retransmitted_packets", "timeouts",
              "naks_sequence_received", "out_of_sequence")

    @property
    def words(self):
        return ["qp_load", "-s", self.size, "-q", self.queue_pairs, "-d", self.depth, "-l", self.list,
                "-t", self.seconds]

    @property
    def command(self):
        return _prefix(self.settings) + " ".join(map(str, self.words))

    def measure(self):
        words = [_tool(), "run", "--", BUILD / "qp_load", *self.words[1:], "-w"]
        with machine.running(words, machine.both_cores(), dict(self.settings), subprocess.PIPE) as process:
            process.await_text("}")
            result = json.loads(_find(r"^\{.*\}$", process.text(), self.command))
            counters = machine.run_program([_tool(), "counters", "--all"])
            process.child.stdin.close()
            process.finish(30)
        counted = [(name, int(value)) for name, value in re.findall(r"^ +(\w+) +([0-9]+) ", counters, re.MULTILINE)]
        if not counted:
            raise Failure(f"{self.command}: its counters are not available")
        return {"mps": result["messages_per_second"] / 1e6, "gbps": result["gbps"],
                "losses": sum(value for name, value in counted if name in self.LOSSES),
                "links": sum(value for name, value in counted if name == "shm_links_opened")}


@dataclasses.dataclass(frozen=True)
class ThreadLoad:
    """WRITEs by several threads of one process, or by several processes with one thread each; with `tcp`, one TCP stream
    per thread. It needs only its file and the library."""
    size: int
    threads: int = 1
    processes: int = 1
    settings: tuple = HOST
    tcp: bool = False
    seconds: float = 0.5

    @property
    def words(self):
        return ["thread_load", "-t", self.threads, "-p", self.processes, "-s", self.size, "-d", self.seconds,
                *(["-c"] if self.tcp else [])]

    @property
    def command(self):
        return _prefix(self.settings) + " ".join(map(str, self.words))

    def measure(self):
        environment = {**dict(self.settings), "LD_LIBRARY_PATH": str(BUILD / "lib")}
        with machine.running([BUILD / "thread_load", *self.words[1:]], None, environment) as process:
            result = json.loads(_find(r"^\{.*\}$", process.finish(30), self.command))
        return {"mps": result["messages_per_second"] / 1e6, "gbps": result["gbps"]}


@dataclasses.dataclass(frozen=True)
class QpCensus:
    """The cost of idle queue pairs."""
    queue_pairs: int = 10000

    @property
    def command(self):
        return f"qp_census -n {self.queue_pairs}"

    def measure(self):
        words = [_tool(), "run", "--", BUILD / "qp_census", "-n", self.queue_pairs]
        return json.loads(_find(r"^\{.*\}$", machine.run_program(words), self.command))


@dataclasses.dataclass(frozen=True)
class CmFlood:
    """rdma_cm connections, opened and closed by many threads; fails if they leak resources."""
    connections: int = 5000
    threads: int = 32
    open: int = 1000

    @property
    def command(self):
        return f"cm_flood -c {self.connections} -t {self.threads} -o {self.open}"

    def measure(self):
        words = [_tool(), "run", "--", BUILD / "cm_flood", *self.command.split()[1:], "-v", _tool()]
        output = machine.run_program(words, limit=300)
        return {"per_second": float(_find(r"^connections per second: ([0-9.]+)$", output, self.command))}


def micro_benchmarks():
    """Runs the microbenchmarks. Returns [{"name", "ns", "gbps" or None}]."""
    output = machine.run_program([BUILD / "verbena_bench", "--benchmark_min_time=0.2", "--benchmark_format=json"],
                               limit=120)
    found = json.loads(output[output.index("{"):])["benchmarks"]
    return [{"name": each["name"], "ns": each["cpu_time"],
             "gbps": each["bytes_per_second"] * 8 / 1e9 if "bytes_per_second" in each else None}
            for each in found]

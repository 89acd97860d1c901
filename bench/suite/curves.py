"""The curves of the pictures, declared as data: each has some lines over the same points."""

import dataclasses
from collections.abc import Callable

from programs import HOST, WIRE, Iperf3, Libfabric, Perftest, Qperf, QpLoad, Readout, Ucx, settings_for

KIB, MIB = 1024, 1024 * 1024
UCX_SHM, UCX_TCP = "posix,cma,self", "tcp,self"

# One colour per transport, the same in every picture.
GREEN, LIGHT_GREEN = "#1b5e20", "#7cb342"  # Verbena: same host, wire
BLUE, LIGHT_BLUE = "#0d47a1", "#42a5f5"  # UCX: shared memory, TCP
PURPLE, LIGHT_PURPLE = "#6a1b9a", "#ba68c8"  # libfabric: shared memory, TCP
RED, ORANGE = "#b71c1c", "#ef6c00"  # plain TCP


@dataclasses.dataclass(frozen=True)
class Line:
    """`program_at(x)` measures the point at x; None: the program does not support it."""
    name: str
    colour: str
    program_at: Callable
    dashed: bool = False


@dataclasses.dataclass(frozen=True)
class Curve:
    file: str
    title: str
    x_label: str
    y_label: str
    key: str  # selects one of the program's numbers
    points: tuple
    lines: tuple
    sizes: bool = False  # x is in bytes, shown as 4K
    logarithmic: str = ""  # axes: "x", "xy"


def iterations(size, megabytes):
    """Enough iterations for a stable result, but at most `megabytes` in total (and 200 at least)."""
    return max(200, min(20_000, megabytes * MIB // size))


def write_bandwidth(settings):
    return lambda size: Perftest("ib_write_bw", size, settings, iterations=iterations(size, 1024))


def send_latency(settings):
    return lambda size: Perftest("ib_send_lat", size, settings, iterations=iterations(size, 128))


def write_latency(settings):
    return lambda size: Perftest("ib_write_lat", size, settings, iterations=iterations(size, 128))


def ucx(test, transports, megabytes):
    return lambda size: Ucx(test, size, transports, iterations(size, megabytes))


CURVES = [
    Curve("bandwidth", "Bandwidth over message size", "message size, bytes", "Gb/s", "gbps",
          (64, 512, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB),
          (Line("Verbena, same host (ib_write_bw)", GREEN, write_bandwidth(HOST)),
           Line("Verbena, wire (ib_write_bw)", LIGHT_GREEN, write_bandwidth(WIRE)),
           Line("UCX, shared memory (tag_bw)", BLUE, ucx("tag_bw", UCX_SHM, 1024)),
           Line("UCX, TCP (tag_bw)", LIGHT_BLUE, ucx("tag_bw", UCX_TCP, 1024)),
           Line("TCP (qperf)", RED, lambda size: Qperf("tcp_bw", size)),
           Line("TCP (iperf3)", ORANGE, lambda size: Iperf3(block=size) if size <= MIB else None)),
          sizes=True, logarithmic="x"),
    Curve("latency", "Latency over message size: half a round trip", "message size, bytes", "us", "us",
          (8, 64, 512, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB),
          (Line("Verbena, same host (ib_send_lat)", GREEN, send_latency(HOST)),
           Line("Verbena, same host (ib_write_lat)", GREEN, write_latency(HOST), dashed=True),
           Line("Verbena, wire (ib_send_lat)", LIGHT_GREEN, send_latency(WIRE)),
           Line("Verbena, wire (ib_write_lat)", LIGHT_GREEN, write_latency(WIRE), dashed=True),
           Line("UCX, shared memory (tag_lat)", BLUE, ucx("tag_lat", UCX_SHM, 128)),
           Line("UCX, TCP (tag_lat)", LIGHT_BLUE, ucx("tag_lat", UCX_TCP, 128)),
           Line("libfabric, shared memory (fi_pingpong)", PURPLE, lambda size: Libfabric("shm", "rdm", size)),
           Line("libfabric, TCP (fi_pingpong)", LIGHT_PURPLE, lambda size: Libfabric("tcp", "msg", size)),
           Line("TCP (qperf)", RED, lambda size: Qperf("tcp_lat", size))),
          sizes=True, logarithmic="xy"),
    Curve("rate", "Rate of 64 B WRITEs over the number of queue pairs", "queue pairs", "millions a second", "mps",
          (1, 4, 16, 64, 256, 1000),
          (Line("Verbena, same host", GREEN, lambda count: QpLoad(64, count, 64, 16, HOST, 0.5)),
           Line("Verbena, wire", LIGHT_GREEN, lambda count: QpLoad(64, count, 64, 16, WIRE, 0.5))),
          logarithmic="x"),
    Curve("loss", "Goodput over packet loss: ib_write_bw 1 MiB, wire", "packets lost, %", "Gb/s", "gbps",
          (0, 0.1, 0.5, 1, 2, 3),
          (Line("Verbena, wire", LIGHT_GREEN,
                lambda percent: Perftest("ib_write_bw", MIB, settings_for("udp", loss=percent / 100))),)),
    Curve("readout", "Detector readout over message size: an emulated board to verbena recv, wire", "message size, bytes",
          "Gb/s", "gbps", (64, KIB, 5 * KIB, 64 * KIB, MIB, 4 * MIB),
          tuple(Line(f"{poll} polling", colour, lambda size, poll=poll: Readout(size, poll, seconds=0.4))
                for poll, colour in (("busy", GREEN), ("event", ORANGE), ("hybrid", LIGHT_GREEN))),
          sizes=True, logarithmic="x"),
]

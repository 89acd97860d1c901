"""The measures and the goals, declared as data: a new row is a new line here."""

import dataclasses

import machine
from programs import (HOST, WIRE, CmFlood, Iperf3, Perftest, QpCensus, QpLoad, RawUdp, Readout, Rstream, ThreadLoad, Ucx,
                      settings_for)

THREADS = machine.most_threads()
HAS_MANY_CORES = machine.describe()["cores"] >= 16  # with fewer, threads only must not slow each other down
KIB, MIB = 1024, 1024 * 1024
SMALL_BUFFER = settings_for(datapath="udp", receive_buffer=212992)


@dataclasses.dataclass(frozen=True)
class Measure:
    """One number. The median of several runs counts, or with `worst` the largest. A measure that takes long and has no
    comparison is measured `once`."""
    name: str
    unit: str
    program: object
    key: str
    worst: bool = False
    once: bool = False


def bandwidth(name, program):
    return Measure(name, "Gb/s", program, "gbps")


def latency(name, program):
    return Measure(name, "us", program, "us")


def rate(name, settings):
    return Measure(name, "M/s", QpLoad(64, 1, 512, 32, settings), "mps")


def load(name, queue_pairs, depth, settings):
    return bandwidth(name, QpLoad(64 * KIB, queue_pairs, depth, 1, settings))


def losses(name, queue_pairs, depth):
    return Measure(name, "", QpLoad(64 * KIB, queue_pairs, depth, 1, SMALL_BUFFER), "losses", worst=True)


def small_by_threads(threads, place, settings):
    return Measure(f"64 B WRITEs, {counted(threads, 'thread')}, {place}", "M/s", ThreadLoad(64, threads, 1, settings), "mps")


def large_by_threads(threads, place, settings):
    return bandwidth(f"64 KiB WRITEs, {counted(threads, 'thread')}, {place}", ThreadLoad(64 * KIB, threads, 1, settings))


def large_by_processes(processes, place, settings):
    return bandwidth(f"64 KiB WRITEs, {processes} processes, {place}", ThreadLoad(64 * KIB, 1, processes, settings))


def counted(number, noun):
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def readout(name, poll):
    return bandwidth(name, Readout(5 * KIB, poll, gbps=1))


def readout_cpu(name, poll):
    return Measure(name, "CPU", Readout(5 * KIB, poll, gbps=1), "cpu")


MEASURES = {
    # other programs
    "tcp": bandwidth("iperf3 TCP, one stream", Iperf3()),
    "ucx.64k": bandwidth("UCX shared memory, tag_bw 64 KiB", Ucx("tag_bw", 64 * KIB, iterations=100_000)),
    "ucx.1m": bandwidth("UCX shared memory, tag_bw 1 MiB", Ucx("tag_bw", MIB, iterations=6_000)),
    "ucx.lat": latency("UCX shared memory, tag_lat 8 B", Ucx("tag_lat", 8, iterations=3_000_000)),
    "udp": bandwidth("raw UDP, GSO/GRO batches of 4136 B", RawUdp("stream", (4136,))),
    "udp.5k": bandwidth("raw UDP, pairs of 4128 and 1040 B", RawUdp("stream", (4128, 5168))),
    "udp.readout": bandwidth("raw UDP, pairs of 4128 and 1044 B", RawUdp("stream", (4128, 5172))),
    "udp.lat": latency("raw UDP ping-pong, half round trip", RawUdp("pingpong", (64,))),
    # Verbena, same host
    "host.write.64k": bandwidth("ib_write_bw 64 KiB, same host", Perftest("ib_write_bw", 64 * KIB)),
    "host.write.1m": bandwidth("ib_write_bw 1 MiB, same host", Perftest("ib_write_bw", MIB)),
    "host.read.64k": bandwidth("ib_read_bw 64 KiB, same host", Perftest("ib_read_bw", 64 * KIB)),
    "host.send.64k": bandwidth("ib_send_bw 64 KiB, same host", Perftest("ib_send_bw", 64 * KIB)),
    "host.send.lat": latency("ib_send_lat 8 B, same host", Perftest("ib_send_lat", 8, iterations=1_000_000)),
    "host.write.lat": latency("ib_write_lat 8 B, same host", Perftest("ib_write_lat", 8, iterations=1_000_000)),
    "host.rate": rate("64 B WRITEs, one QP, same host", HOST),
    "host.qp1": load("qp_load 64 KiB, one QP, same host", 1, 64, HOST),
    "host.links": Measure("shared-memory links, same host", "", QpLoad(64 * KIB, 1, 64, 1), "links"),
    "host.qp1000": load("qp_load 64 KiB, 1,000 QPs, same host", 1000, 2, HOST),
    # Verbena, wire
    "wire.write.64k": bandwidth("ib_write_bw 64 KiB, wire", Perftest("ib_write_bw", 64 * KIB, WIRE)),
    "wire.write.1m": bandwidth("ib_write_bw 1 MiB, wire", Perftest("ib_write_bw", MIB, WIRE)),
    "wire.send.lat": latency("ib_send_lat 8 B, wire", Perftest("ib_send_lat", 8, WIRE, iterations=100_000)),
    "wire.write.lat": latency("ib_write_lat 8 B, wire", Perftest("ib_write_lat", 8, WIRE, iterations=100_000)),
    "wire.rate": rate("64 B WRITEs, one QP, wire", WIRE),
    "wire.write.5k": bandwidth("ib_write_bw 5 KiB, wire", Perftest("ib_write_bw", 5 * KIB, WIRE)),
    "wire.qp1": load("qp_load 64 KiB, one QP, wire", 1, 64, WIRE),
    "wire.qp1000": load("qp_load 64 KiB, 1,000 QPs, wire", 1000, 2, WIRE),
    "wire.loss.0.1": bandwidth("ib_write_bw 1 MiB, wire, 0.1 % loss",
                               Perftest("ib_write_bw", MIB, settings_for("udp", loss=0.001))),
    "wire.loss.1": bandwidth("ib_write_bw 1 MiB, wire, 1 % loss",
                             Perftest("ib_write_bw", MIB, settings_for("udp", loss=0.01))),
    "drops.1": losses("packets dropped or retransmitted, one QP", 1, 64),
    "drops.1000": losses("packets dropped or retransmitted, 1,000 QPs", 1000, 2),
    # sockets over RDMA
    "rstream.tcp": bandwidth("rstream 64 KiB, TCP", Rstream(64 * KIB, tcp=True)),
    "rstream.host": bandwidth("rstream 64 KiB, rsockets, same host", Rstream(64 * KIB)),
    "rstream.wire": bandwidth("rstream 64 KiB, rsockets, wire", Rstream(64 * KIB, WIRE)),
    # detector readout: an emulated board sends, verbena recv checks every byte
    "readout": bandwidth("readout, 5 KiB WRITEs, wire", Readout(5 * KIB, "busy")),
    "readout.busy": readout("readout at 1 Gb/s, busy polling", "busy"),
    "readout.hybrid": readout("readout at 1 Gb/s, hybrid polling", "hybrid"),
    "readout.busy.cpu": readout_cpu("CPU of readout at 1 Gb/s, busy polling", "busy"),
    "readout.hybrid.cpu": readout_cpu("CPU of readout at 1 Gb/s, hybrid polling", "hybrid"),
    # cost of queue pairs
    "qp.memory": Measure("memory of an idle QP", "KiB", QpCensus(), "kib_per_queue_pair"),
    "qp.time": Measure("10,000 QPs created, connected, destroyed", "s", QpCensus(), "seconds"),
    "idle": Measure("CPU time of an idle process with 10,000 QPs", "us/s", QpCensus(), "idle_cpu_us_per_s",
                    worst=True),
    "connections": Measure("rdma_cm connections, 1,000 open at once", "/s", CmFlood(), "per_second", once=True),
    # many threads, with a queue pair and a completion queue each
    "host.thread.64": small_by_threads(1, "same host", HOST),
    "host.threads.64": small_by_threads(THREADS, "same host", HOST),
    "wire.thread.64": small_by_threads(1, "wire", WIRE),
    "wire.threads.64": small_by_threads(THREADS, "wire", WIRE),
    "host.thread.64k": large_by_threads(1, "same host", HOST),
    "host.threads.64k": large_by_threads(THREADS, "same host", HOST),
    "wire.thread.64k": large_by_threads(1, "wire", WIRE),
    "wire.threads.64k": large_by_threads(THREADS, "wire", WIRE),
}


@dataclasses.dataclass(frozen=True)
class Row:
    """A goal: `measured`, divided by `against` if there is one, must be at least or at most `goal`."""
    measured: str
    against: str | None
    goal: float
    at_most: bool = False
    aim: float | None = None


def at_least(measured, against, goal, aim=None):
    return Row(measured, against, goal, aim=aim)


def at_most(measured, against, goal, aim=None):
    return Row(measured, against, goal, at_most=True, aim=aim)


ROWS = [
    at_least("host.links", None, 1),  # proves that the next rows measure shared memory
    at_least("host.write.64k", "tcp", 3.5),
    at_least("host.write.1m", "tcp", 3.5),
    at_least("host.write.64k", "ucx.64k", 0.9),
    at_least("host.write.1m", "ucx.1m", 1.0),
    at_least("host.read.64k", "host.write.64k", 0.8),
    at_least("host.send.64k", "host.write.64k", 0.8),
    at_most("host.send.lat", "ucx.lat", 1.5, aim=1.2),
    at_most("host.write.lat", "ucx.lat", 2.5),
    at_least("wire.write.64k", "udp", 0.65, aim=0.75),
    at_least("wire.write.1m", "udp", 0.65, aim=0.75),
    at_least("wire.write.64k", "tcp", 2),
    at_least("wire.write.1m", "tcp", 2),
    at_most("wire.send.lat", "udp.lat", 1.3),
    at_most("wire.write.lat", "udp.lat", 4),
    at_least("host.rate", None, 4),
    at_least("wire.rate", None, 3),
    at_least("wire.write.5k", "udp.5k", 0.8, aim=2),
    at_least("rstream.host", "rstream.tcp", 1),
    at_least("rstream.wire", "rstream.tcp", 1),
    at_least("readout", "udp.readout", 0.8),
    at_least("readout.hybrid", "readout.busy", 0.95),
    at_most("readout.hybrid.cpu", "readout.busy.cpu", 0.5),
    at_least("host.qp1000", "host.qp1", 0.8),
    at_least("wire.qp1000", "wire.qp1", 0.8),
    at_most("qp.memory", None, 4),
    at_most("qp.time", None, 2),
    at_least("wire.loss.0.1", "wire.write.1m", 0.9),
    at_least("wire.loss.1", "wire.write.1m", 0.5),
    at_most("drops.1", None, 0),
    at_most("drops.1000", None, 0),
    at_most("idle", None, 200),
    at_least("connections", None, 5000),
    at_least("host.threads.64", "host.thread.64", 5.5 if HAS_MANY_CORES else 1),
    at_least("wire.threads.64", "wire.thread.64", 5 if HAS_MANY_CORES else 1),
    at_least("host.threads.64k", "host.thread.64k", 1),
    at_least("wire.threads.64k", "wire.thread.64k", 1),
]
if HAS_MANY_CORES:
    MEASURES |= {
        "host.processes.64k": large_by_processes(THREADS, "same host", HOST),
        "wire.processes.64k": large_by_processes(THREADS, "wire", WIRE),
    }
    ROWS += [
        at_least("host.threads.64k", "host.processes.64k", 0.9),
        at_least("wire.threads.64k", "wire.processes.64k", 0.9),
    ]

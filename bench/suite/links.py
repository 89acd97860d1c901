"""Two network namespaces and what connects them: a slow link (build/bottleneck) or a veth pair. This process is on the
near side, 192.0.2.1; the far side has 192.0.2.2."""

import contextlib
import dataclasses
import json
import os
import signal
import time

import machine
import programs
from machine import Failure

NEAR = "192.0.2.1"


class Joined:
    """Both sides while they are connected. `there` is the prefix of a command for the far side."""

    def __init__(self, far_pid, interface, router=None):
        self.far = f"/proc/{far_pid}/ns/net"
        self.there = ["nsenter", f"--net={self.far}"]
        self.device = f"verbena_{interface}"
        self.router = router

    def report(self):
        """What the slow link has counted since the last report."""
        printed = self.router.text().count("\n")
        self.router.child.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + 10
        while self.router.text().count("\n") == printed:
            if time.monotonic() > deadline:
                raise self.router.failure("no report")
            time.sleep(0.005)
        return json.loads(self.router.text().splitlines()[-1])


def _ip(*words, there=()):
    machine.run_program([*there, "ip", *words])


@contextlib.contextmanager
def _second_namespace():
    """The process id of a process in a network namespace of its own."""
    with machine.running(["unshare", "-n", "sleep", "600"], None) as process:
        own = os.readlink("/proc/self/ns/net")
        deadline = time.monotonic() + 5
        while os.readlink(f"/proc/{process.child.pid}/ns/net") == own:
            if process.child.poll() is not None or time.monotonic() > deadline:
                raise Failure("this system does not permit this user to create network namespaces")
            time.sleep(0.01)
        _ip("link", "set", "lo", "up", there=["nsenter", f"--net=/proc/{process.child.pid}/ns/net"])
        yield process.child.pid


@dataclasses.dataclass(frozen=True)
class SlowLink:
    rate_mbit: float
    delay_ms: float  # one way
    queue_kb: float
    ecn_kb: float = 0
    loss_percent: float = 0

    @property
    def options(self):
        chosen = {"--rate-mbit": self.rate_mbit, "--delay-ms": self.delay_ms, "--queue-bytes": int(self.queue_kb * 1000),
                  "--ecn-bytes": int(self.ecn_kb * 1000), "--loss-percent": self.loss_percent}
        return [word for name, value in chosen.items() if value for word in (name, f"{value:g}" if value < 1e5 else value)]

    @property
    def command(self):
        return " ".join(map(str, ["bottleneck", *self.options]))

    @contextlib.contextmanager
    def joined(self):
        with _second_namespace() as far_pid:
            joined = Joined(far_pid, "tun0")
            with machine.running([programs.BUILD / "bottleneck", "--far", joined.far, *self.options], None) as router:
                router.await_text("ready\n")
                joined.router = router
                yield joined


@dataclasses.dataclass(frozen=True)
class VethPair:
    mtu: int

    @property
    def command(self):
        return f"ip link add veth0 mtu {self.mtu} type veth"

    @contextlib.contextmanager
    def joined(self):
        with _second_namespace() as far_pid:
            joined = Joined(far_pid, "veth0")
            _ip("link", "add", "veth0", "mtu", self.mtu, "type", "veth", "peer", "name", "veth0", "mtu", self.mtu,
                "netns", far_pid)
            try:
                for address, there in ((NEAR, ()), ("192.0.2.2", joined.there)):
                    _ip("address", "add", f"{address}/24", "dev", "veth0", there=there)
                    _ip("link", "set", "veth0", "up", there=there)
                yield joined
            finally:
                _ip("link", "delete", "veth0")

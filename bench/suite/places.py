"""Where the two cores are. A virtual machine's may move while it runs: between cores that share a cache and cores
that do not, latencies and bandwidths differ by a third and more. So each value is kept with its place, and
compared with values of the same place alone."""

import machine
import programs

NEAR, FAR = "near", "far"
NEAR_NS = 150  # there and back; in one cache about 50, from one to another above 300
ATTEMPTS = 3


def place_of(nanoseconds):
    return NEAR if nanoseconds < NEAR_NS else FAR


def distance():
    """Nanoseconds that a cache line takes from the client's core to the server's and back."""
    return float(machine.run_alone([programs.BUILD / "core_distance", *machine.cores()]))


def measure(program):
    """Its numbers, and where the cores were. Again, a few times, if they moved meanwhile; None if they moved each time."""
    before = distance()
    for _ in range(ATTEMPTS):
        numbers = program.measure()
        after = distance()
        if place_of(before) == place_of(after):
            return numbers, place_of(after)
        before = after
    return numbers, None

"""Whether the two cores share a cache. A hypervisor may move virtual cores during a run, and latencies and bandwidths
of the two states differ by a third and more. So each value is kept with its state ("place") and compared only with
values of the same state."""

import machine
import programs

SHARED_CACHE, SEPARATE_CACHES = "shared cache", "separate caches"
SHARED_CACHE_NS = 150  # round trip; about 50 within one cache, above 300 between two
ATTEMPTS = 3


def place_of(nanoseconds):
    return SHARED_CACHE if nanoseconds < SHARED_CACHE_NS else SEPARATE_CACHES


def distance():
    """Nanoseconds that a cache line takes from the client's core to the server's and back."""
    return float(machine.run_program([programs.BUILD / "core_distance", *machine.cores()]))


def measure(program):
    """The numbers and the cache state. Retries a few times if the cores moved; the state is None if they moved each time."""
    before = distance()
    for _ in range(ATTEMPTS):
        numbers = program.measure()
        after = distance()
        if place_of(before) == place_of(after):
            return numbers, place_of(after)
        before = after
    return numbers, None

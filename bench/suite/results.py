"""Numbers as they come in, and what they say about each row."""

import dataclasses
import statistics

from table import MEASURES, Row


@dataclasses.dataclass
class Results:
    """Values of each measure, one for each run, and why the others are missing."""
    values: dict = dataclasses.field(default_factory=dict)
    failures: dict = dataclasses.field(default_factory=dict)

    def add(self, name, value):
        self.values.setdefault(name, []).append(value)

    def fail(self, name, why):
        self.failures[name] = why

    def of(self, name):
        """The number that counts, or None. One failed run among several is a failure."""
        values = self.values.get(name)
        if not values or name in self.failures:
            return None
        return max(values) if MEASURES[name].worst else statistics.median(values)


@dataclasses.dataclass(frozen=True)
class Judged:
    """A row with its numbers, as text for people and as data."""
    row: Row
    measured: float | None
    against: float | None
    result: float | None  # the ratio, or what was measured where there is nothing to compare with
    reached: bool

    @property
    def verdict(self):
        if self.result is None:
            return "not measured"
        if not self.reached:
            return "not reached"
        return "reached, and the aim" if self.row.aim is not None and self._holds(self.row.aim) else "reached"

    def _holds(self, goal):
        return self.result <= goal if self.row.at_most else self.result >= goal


def judge(row, results):
    measured = results.of(row.measured)
    against = results.of(row.against) if row.against else None
    result = measured
    if row.against:
        result = measured / against if measured is not None and against else None
    reached = result is not None and (result <= row.goal if row.at_most else result >= row.goal)
    return Judged(row, measured, against, result, reached)

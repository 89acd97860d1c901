"""Collects the measured numbers and judges each row of the table by them."""

import collections
import dataclasses
import statistics

from table import MEASURES, Row


@dataclasses.dataclass(frozen=True)
class Value:
    """The number of one run and the cache state of the cores during it; None: the state changed."""
    number: float
    place: str | None


@dataclasses.dataclass
class Results:
    """The values of each measure, one per run, and the reasons for missing values."""
    measures: dict = dataclasses.field(default_factory=lambda: MEASURES)
    values: dict = dataclasses.field(default_factory=dict)
    failures: dict = dataclasses.field(default_factory=dict)

    def add(self, name, number, place):
        self.values.setdefault(name, []).append(Value(number, place))

    def fail(self, name, why):
        self.failures[name] = why

    def places(self):
        """The cache states of the cores, most frequent first."""
        counted = collections.Counter(value.place for values in self.values.values() for value in values
                                      if value.place is not None)
        return [place for place, _ in counted.most_common()]

    def at(self, place):
        """The numbers of each measure in one cache state. Measures with `worst` or `once` count in every state."""
        return AtPlace({name: [value.number for value in values
                               if value.place == place or self.measures[name].worst or self.measures[name].once]
                        for name, values in self.values.items()}, self.failures, self.measures)


@dataclasses.dataclass(frozen=True)
class AtPlace:
    """The numbers of one cache state of the cores."""
    numbers: dict
    failures: dict
    measures: dict

    def of(self, name):
        """The number of a measure, or None. One failed run among several is a failure."""
        numbers = self.numbers.get(name)
        if not numbers or name in self.failures:
            return None
        return max(numbers) if self.measures[name].worst else statistics.median(numbers)

    def runs(self, row):
        """The number of runs behind a row."""
        return min(len(self.numbers.get(name, [])) for name in (row.measured, row.against) if name)


@dataclasses.dataclass(frozen=True)
class Judged:
    """A row with its numbers and its verdict."""
    row: Row
    measured: float | None
    against: float | None
    result: float | None  # the ratio, or the measured number if there is no other to compare with
    reached: bool
    runs: int  # behind the result

    @property
    def verdict(self):
        if self.result is None:
            return "not measured"
        if not self.reached:
            return "not reached"
        return "reached, and the aim" if self.row.aim is not None and self._holds(self.row.aim) else "reached"

    def _holds(self, goal):
        return self.result <= goal if self.row.at_most else self.result >= goal


def judge(row, numbers):
    """Judges a row by the numbers of one cache state."""
    measured = numbers.of(row.measured)
    against = numbers.of(row.against) if row.against else None
    result = measured
    if row.against:
        result = measured / against if measured is not None and against else None
    reached = result is not None and (result <= row.goal if row.at_most else result >= row.goal)
    return Judged(row, measured, against, result, reached, numbers.runs(row))

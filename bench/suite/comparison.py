"""Compares two builds of Verbena: each measure runs with the one and then with the other, in turn."""

import statistics

import places
import programs
import report
from machine import Failure
from table import MEASURES

LOWER_IS_BETTER = {"us", "KiB", "s", "us/s", "CPU"}
TOOLS = (programs.Perftest, programs.QpLoad, programs.QpCensus, programs.Rstream, programs.Readout)


def matching(text):
    """The measures of Verbena itself, without counts, whose name contains the text."""
    return {name: measure for name, measure in MEASURES.items()
            if text in measure.name and isinstance(measure.program, TOOLS) and measure.unit
            and not getattr(measure.program, "tcp", False)}


class Comparison:
    """The values of both builds: {(measure, place): ([before], [after])}. Values of a run during which the cores moved
    are dropped."""

    def __init__(self, before, after):
        self.builds = (before, after)
        self.values, self.failures = {}, []

    def run_round(self, measures, progress):
        seen = {}
        for name, measure in measures.items():
            for side, build in enumerate(self.builds):
                programs.BUILD = build
                key = (measure.program, side)
                try:
                    if key not in seen:
                        seen[key] = places.measure(measure.program)
                except Failure as failure:
                    self.failures.append(f"{measure.name}, {build}: {failure}")
                    progress.step(measure.name, f"FAILED: {failure}")
                    continue
                numbers, place = seen[key]
                if place is not None:
                    self.values.setdefault((name, place), ([], []))[side].append(numbers[measure.key])
                progress.step(f"{measure.name}, {'before' if side == 0 else 'after'}",
                              report.quantity(numbers[measure.key], measure.unit))

    def rows(self):
        """(measure, place, best before, best after, medians' ratio, best values' ratio, runs); above 1: better than before."""
        for (name, place), sides in self.values.items():
            if not all(sides):
                continue
            measure = MEASURES[name]
            lower = measure.unit in LOWER_IS_BETTER
            best = [(min if lower else max)(values) for values in sides]
            middle = [statistics.median(values) for values in sides]
            if lower:
                ratios = [before / after if after else 1.0 for before, after in (middle, best)]
            else:
                ratios = [after / before if before else 1.0 for before, after in (middle, best)]
            yield measure, place, *best, *ratios, min(map(len, sides))

    def table(self):
        lines = ["| what | cores | best before | best after | medians | best | runs |", "|---|---|---|---|---|---|---|"]
        lines += [f"| {measure.name} | {place} | {report.quantity(before, measure.unit)} | "
                  f"{report.quantity(after, measure.unit)} | {middle:.2f}x | {best:.2f}x | {runs} |"
                  for measure, place, before, after, middle, best, runs in self.rows()]
        return "\n".join(lines + [f"\n{failure}" for failure in self.failures])

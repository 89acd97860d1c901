"""Compares Verbena with other programs on this machine: a table with goals, curves, and docs/performance.md.

  python3 bench/suite --build build        (`make bench` runs this; RUNS=9 make bench runs more rounds)

Writes build/bench/results.json and build/bench/*.svg. Writes docs/performance.md and its pictures if there were
enough rounds.
"""

import argparse
import datetime
import os
import pathlib
import shutil
import signal
import statistics
import sys
import time

import machine
import places
import plots
import programs
import report
from curves import CURVES
from machine import Failure
from results import Results
from table import MEASURES

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROUNDS_FOR_THE_PAGE = 5
CURVE_ROUNDS = 2


class Progress:
    """Prints one line per step with the elapsed time, and keeps the time limit."""

    def __init__(self, steps, budget):
        self.steps, self.done = steps, 0
        self.start = time.monotonic()
        self.deadline = self.start + budget

    def over(self):
        return time.monotonic() > self.deadline

    def step(self, what, outcome):
        self.done += 1
        minutes, seconds = divmod(int(time.monotonic() - self.start), 60)
        print(f"[{minutes}:{seconds:02d} {self.done:4d}/{self.steps}] {what}: {outcome}", flush=True)


def measures_of(number):
    """The measures of round `number`, counted from 0."""
    return {name: measure for name, measure in MEASURES.items() if number == 0 or not measure.once}


def run_round(number, results, progress):
    """Runs every measure once. Measures of the same program share one run."""
    seen = {}
    for name, measure in measures_of(number).items():
        program = measure.program
        if program not in seen:
            try:
                seen[program] = places.measure(program)
            except Failure as failure:
                seen[program] = failure
        if isinstance(seen[program], Failure):
            results.fail(name, str(seen[program]))
            progress.step(measure.name, f"FAILED: {seen[program]}")
        else:
            numbers, place = seen[program]
            results.add(name, numbers[measure.key], place)
            progress.step(measure.name, f"{report.quantity(numbers[measure.key], measure.unit)} ({place or 'the cores moved'})")


def points_of(curve):
    for x in curve.points:
        for line in curve.lines:
            program = line.program_at(x)
            if program is not None:
                yield line, x, program


def run_rounds(wanted, results, progress):
    """Runs the rounds of the table until the time limit, at least one. Returns their number."""
    for done in range(wanted):
        if done > 0 and progress.over():
            print(f"Time limit reached after {done} of {wanted} rounds.", flush=True)
            return done
        run_round(done, results, progress)
    return wanted


def run_curves(progress):
    """Measures the curves until the time limit. Returns {curve: {line: {x: [values]}}}."""
    found = {}
    for curve, line, x, program in [(curve, *point) for _ in range(CURVE_ROUNDS)
                                    for curve in CURVES for point in points_of(curve)]:
        if progress.over():
            print("Time limit reached: the remaining curves are skipped.", flush=True)
            break
        what = f"{curve.title}, {line.name}, {plots.tick(curve, x)}"
        try:
            value = program.measure()[curve.key]
        except Failure as failure:
            progress.step(what, f"FAILED: {failure}")
            continue
        found.setdefault(curve.file, {}).setdefault(line.name, {}).setdefault(x, []).append(value)
        progress.step(what, report.quantity(value, curve.y_label))
    return found


def medians_of(curves):
    return {file: {line: {x: statistics.median(values) for x, values in points.items()}
                   for line, points in lines.items()} for file, lines in curves.items()}


def draw_all(curves, folder):
    return [curve for curve in CURVES
            if curve.file in curves and plots.draw(curve, curves[curve.file], folder / f"{curve.file}.svg")]


def write_page(results, drawn, micro, about, folder):
    pictures = ROOT / "docs" / "performance"
    pictures.mkdir(exist_ok=True)
    for curve in drawn:
        shutil.copy(folder / f"{curve.file}.svg", pictures)
    (ROOT / "docs" / "performance.md").write_text(report.page(results, drawn, micro, about), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build", help="the build folder")
    parser.add_argument("--runs", type=int, default=os.environ.get("RUNS", 5), help="rounds (RUNS)")
    parser.add_argument("--budget", type=int, default=400,
                        help="seconds after which no further round or point of a curve is started")
    parser.add_argument("--table-only", action="store_true", help="no curves")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that started programs are ended
    machine.enter_namespace()
    programs.BUILD = options.build.resolve()
    folder = programs.BUILD / "bench"
    folder.mkdir(exist_ok=True)

    steps = sum(len(measures_of(number)) for number in range(options.runs))
    if not options.table_only:
        steps += CURVE_ROUNDS * sum(1 for curve in CURVES for _ in points_of(curve))
    progress = Progress(steps, options.budget)
    micro = programs.micro_benchmarks()
    print(report.micro_lines(micro), flush=True)
    results = Results()
    rounds = run_rounds(options.runs, results, progress)
    curves = {} if options.table_only else medians_of(run_curves(progress))
    about = {"runs": rounds, **machine.describe(),
             "when": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")}
    drawn = draw_all(curves, folder)
    (folder / "results.json").write_text(report.as_json(results, curves, micro, about), encoding="utf-8")
    print(f"\n{report.terminal_tables(results)}\n\nAll values and curves: {folder}")
    if rounds >= ROUNDS_FOR_THE_PAGE and not options.table_only:
        write_page(results, drawn, micro, about, folder)
        print(f"The page: {ROOT / 'docs' / 'performance.md'}")
    else:
        print(f"docs/performance.md is unchanged: it needs {ROUNDS_FOR_THE_PAGE} rounds and the curves")
    return 1 if results.failures else 0


if __name__ == "__main__":
    sys.exit(main())

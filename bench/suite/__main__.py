"""Compares Verbena with other programs on this machine: a table with goals, curves, and docs/performance.md.

  python3 bench/suite --build build        (`make bench` runs this; RUNS=9 make bench runs more rounds)
  python3 bench/suite --build build --scaling-only --out DIR      only throughput over the number of threads
  python3 bench/suite --scaling-from DIR/scaling.json             writes its section of docs/performance.md
  python3 bench/suite --build build --networks-only [--match TEXT]      only slow links, many senders, small MTUs
  python3 bench/suite --networks-from DIR/networks.json           writes its section of docs/performance.md
  python3 bench/suite --build build --against OTHER/build [--match TEXT]      two builds in turn: is a version slower?

Writes build/bench/results.json and build/bench/*.svg. Writes docs/performance.md and its pictures if there were
enough rounds. --scaling-only takes at most 150 seconds and needs only build/thread_load and build/lib/libibverbs.so.1.
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

import comparison
import machine
import networks
import places
import plots
import programs
import report
import scaling
from curves import CURVES
from machine import Failure
from results import Results
from table import MEASURES

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROUNDS_FOR_THE_PAGE = 5
CURVE_ROUNDS = 2
DOCS = ROOT / "docs"


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


def run_measures(measures, run, results, progress):
    """Runs each measure once. Measures of the same program share one run. `run` returns a program's numbers and place."""
    seen = {}
    for name, measure in measures.items():
        program = measure.program
        if program not in seen:
            try:
                seen[program] = run(program)
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
        run_measures(measures_of(done), places.measure, results, progress)
    return wanted


def run_curves(curves, rounds, progress):
    """Measures the curves until the time limit. Points of the same program share one run per round. Returns
    {curve: {line: {x: [values]}}}."""
    found, seen = {}, {}
    for number, curve, line, x, program in [(number, curve, *point) for number in range(rounds)
                                            for curve in curves for point in points_of(curve)]:
        if progress.over():
            print("Time limit reached: the remaining curves are skipped.", flush=True)
            break
        what = f"{curve.title}, {line.name}, {plots.tick(curve, x)}"
        try:
            if (number, program) not in seen:
                seen[number, program] = program.measure()
        except Failure as failure:
            progress.step(what, f"FAILED: {failure}")
            continue
        value = seen[number, program][curve.key]
        found.setdefault(curve.file, {}).setdefault(line.name, {}).setdefault(x, []).append(value)
        progress.step(what, report.quantity(value, curve.y_label))
    return found


def medians_of(curves):
    return {file: {line: {x: statistics.median(values) for x, values in points.items()}
                   for line, points in lines.items()} for file, lines in curves.items()}


def draw_all(curves, folder):
    return [curve for curve in CURVES
            if curve.file in curves and plots.draw(curve, curves[curve.file], folder / f"{curve.file}.svg")]


def run_scaling(folder):
    """Measures throughput over the number of threads and writes it into the folder. Returns the exit status."""
    steps = scaling.ROUNDS * sum(1 for curve in scaling.SCALING for _ in points_of(curve))
    found = run_curves(scaling.SCALING, scaling.ROUNDS, Progress(steps, scaling.BUDGET))
    print(f"\n{scaling.write(found, about_this_run(), folder)}\nAll values: {folder / 'scaling.json'}")
    for point in scaling.missing(found):
        print(f"Not measured: {point}")
    return 1 if scaling.missing(found) else 0


def run_networks(folder, text, rounds):
    """Measures the networks whose name contains the text and writes them into the folder. Returns the exit status."""
    measures = networks.matching(text)
    progress = Progress(rounds * len(measures), networks.BUDGET)
    results = networks.new_results()
    for number in range(rounds):
        if number > 0 and progress.over():
            print(f"Time limit reached after {number} of {rounds} rounds.", flush=True)
            break
        run_measures(measures, lambda program: (program.measure(), networks.PLACE), results, progress)
    print(f"\n{networks.write(results, about_this_run(), folder)}\nAll values: {folder / 'networks.json'}")
    return 1 if results.failures else 0


def run_comparison(options, folder):
    """Compares two builds and writes the table into the folder. Returns the exit status."""
    measures = comparison.matching(options.match)
    if not measures:
        print(f"No number has '{options.match}' in its name.", file=sys.stderr)
        return 2
    progress = Progress(2 * options.runs * len(measures), options.budget)
    compared = comparison.Comparison(options.against.resolve(), programs.BUILD)
    for number in range(options.runs):
        if number > 0 and progress.over():
            print(f"Time limit reached after {number} of {options.runs} rounds.", flush=True)
            break
        compared.run_round(measures, progress)
    (folder / "comparison.md").write_text(compared.table() + "\n", encoding="utf-8")
    print(f"\n{compared.table()}\n\nThe table: {folder / 'comparison.md'}")
    return 1 if compared.failures else 0


def about_this_run():
    return {**machine.describe(),
            "when": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")}


def write_page(results, drawn, micro, about, folder):
    pictures = DOCS / "performance"
    pictures.mkdir(exist_ok=True)
    for curve in drawn:
        shutil.copy(folder / f"{curve.file}.svg", pictures)
    page = report.page(results, drawn, micro, about, networks.published(DOCS) + scaling.published(DOCS))
    (DOCS / "performance.md").write_text(page, encoding="utf-8")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build", help="the build folder")
    parser.add_argument("--runs", type=int, default=int(os.environ.get("RUNS", 5)), help="rounds (RUNS)")
    parser.add_argument("--budget", type=int, default=450,
                        help="seconds after which no further round or point of a curve is started")
    parser.add_argument("--table-only", action="store_true", help="no curves")
    parser.add_argument("--scaling-only", action="store_true", help="only throughput over the number of threads")
    parser.add_argument("--scaling-from", type=pathlib.Path, metavar="FILE",
                        help="measure nothing; write the section on threads from a file of --scaling-only")
    parser.add_argument("--networks-only", action="store_true", help="only slow links, many senders, small MTUs")
    parser.add_argument("--match", default="", metavar="TEXT", help="with --networks-only and --against: only numbers with TEXT in their name")
    parser.add_argument("--networks-from", type=pathlib.Path, metavar="FILE",
                        help="measure nothing; write the section on networks from a file of --networks-only")
    parser.add_argument("--against", type=pathlib.Path, metavar="BUILD", help="only compare with this older build, in turn")
    parser.add_argument("--out", type=pathlib.Path, help="the folder for results (bench in the build folder)")
    return parser.parse_args()


def main():
    options = parse()
    if options.scaling_from:
        scaling.publish(options.scaling_from, DOCS)
        print(f"The page: {DOCS / 'performance.md'}")
        return 0
    if options.networks_from:
        networks.publish(options.networks_from, DOCS)
        print(f"The page: {DOCS / 'performance.md'}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that started programs are ended
    machine.enter_namespace()
    programs.BUILD = options.build.resolve()
    folder = (options.out or programs.BUILD / "bench").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if options.scaling_only:
        return run_scaling(folder)
    if options.against:
        return run_comparison(options, folder)
    if options.networks_only:
        return run_networks(folder, options.match, min(options.runs, networks.ROUNDS))
    return run_all(options, folder)


def run_all(options, folder):
    """Measures the table and the curves and writes the page. Returns the exit status."""
    steps = sum(len(measures_of(number)) for number in range(options.runs))
    if not options.table_only:
        steps += CURVE_ROUNDS * sum(1 for curve in CURVES for _ in points_of(curve))
    progress = Progress(steps, options.budget)
    micro = programs.micro_benchmarks()
    print(report.micro_lines(micro), flush=True)
    results = Results()
    rounds = run_rounds(options.runs, results, progress)
    curves = {} if options.table_only else medians_of(run_curves(CURVES, CURVE_ROUNDS, progress))
    about = {"runs": rounds, **about_this_run()}
    drawn = draw_all(curves, folder)
    (folder / "results.json").write_text(report.as_json(results, curves, micro, about), encoding="utf-8")
    print(f"\n{report.terminal_tables(results)}\n\nAll values and curves: {folder}")
    if rounds >= ROUNDS_FOR_THE_PAGE and not options.table_only:
        write_page(results, drawn, micro, about, folder)
        print(f"The page: {DOCS / 'performance.md'}")
    else:
        print(f"docs/performance.md is unchanged: it needs {ROUNDS_FOR_THE_PAGE} rounds and the curves")
    return 1 if results.failures else 0


if __name__ == "__main__":
    sys.exit(main())

"""How throughput grows with the number of threads, beside as many processes and as many TCP streams. The measurement
(`--scaling-only`) needs only Python, build/thread_load and build/lib/libibverbs.so.1, so it runs on a bare machine with
many cores, too. It writes scaling.json, from which the section of docs/performance.md is written anywhere
(`--scaling-from`)."""

import dataclasses
import json
import pathlib
import shutil
import statistics

import machine
import plots
import report
from curves import GREEN, KIB, LIGHT_GREEN, RED, Curve, Line
from places import SHARED_CACHE
from programs import WIRE, ThreadLoad
from results import Results, judge
from table import MEASURES, ROWS

BUDGET = 110  # seconds after which no further point is measured
ROUNDS = 3
HEADING = "## Threads"


def lines(size):
    return (Line("same host, threads", GREEN, lambda count: ThreadLoad(size, threads=count)),
            Line("same host, processes", GREEN, lambda count: ThreadLoad(size, processes=count), dashed=True),
            Line("wire, threads", LIGHT_GREEN, lambda count: ThreadLoad(size, threads=count, settings=WIRE)),
            Line("wire, processes", LIGHT_GREEN, lambda count: ThreadLoad(size, processes=count, settings=WIRE),
                 dashed=True),
            Line("TCP streams, threads", RED, lambda count: ThreadLoad(size, threads=count, tcp=True)))


POINTS = tuple(range(1, machine.most_threads() + 1))
SCALING = [
    Curve("scaling.64", "64 B messages", "threads or processes per side", "millions a second", "mps", POINTS, lines(64)),
    Curve("scaling.64k", "64 KiB messages", "threads or processes per side", "Gb/s", "gbps", POINTS, lines(64 * KIB)),
]


def goal_cells(found):
    """The cells of each row of the table whose programs the curves measure. The cache state is not known here; the values
    of the rounds count as values of one state."""
    values = {(line.program_at(x), curve.key): found.get(curve.file, {}).get(line.name, {}).get(x, [])
              for curve in SCALING for line in curve.lines for x in curve.points}
    results = Results()
    for name, measure in MEASURES.items():
        for value in values.get((measure.program, measure.key), []):
            results.add(name, value, SHARED_CACHE)
    measured = [row for row in ROWS if row.measured in results.values and row.against in results.values]
    return [report.cells(judge(row, results.at(SHARED_CACHE))) for row in measured]


def missing(found):
    """The points without a value."""
    return [f"{curve.title}, {line.name}, {x}" for curve in SCALING for line in curve.lines for x in curve.points
            if not found.get(curve.file, {}).get(line.name, {}).get(x)]


def rounds(found):
    """The number of rounds in which every point was measured."""
    return min((len(values) for curve in found.values() for line in curve.values() for values in line.values()), default=0)


def write(found, about, folder):
    """Writes scaling.json, the section as scaling.md, and the picture if gnuplot is there. Returns the section."""
    stored = {**about, "rounds": rounds(found), "curves": found, "goals": goal_cells(found), "missing": missing(found)}
    text = json.dumps(stored, indent=1) + "\n"
    (folder / "scaling.json").write_text(text, encoding="utf-8")
    stored = json.loads(text)
    (folder / "scaling.md").write_text(section(stored), encoding="utf-8")
    if shutil.which("gnuplot"):
        draw(stored, folder / "scaling.svg")
    return section(stored)


def curves_of(stored):
    """[(curve, {line: {x: median}})], with the points of the machine that measured."""
    found = []
    for curve in SCALING:
        values = {line: {int(x): statistics.median(numbers) for x, numbers in points.items()}
                  for line, points in stored["curves"].get(curve.file, {}).items()}
        points = tuple(sorted({x for line in values.values() for x in line}))
        if points:
            found.append((dataclasses.replace(curve, points=points), values))
    return found


def draw(stored, file):
    plots.draw_together(curves_of(stored), file)


def _table(curve, values):
    most = curve.points[-1]
    rows = []
    for line in curve.lines:
        at = values.get(line.name, {})
        ratio = f"{at[most] / at[1]:.2f}x" if at.get(1) and most in at else "-"
        rows.append((line.name, *(report.quantity(at.get(x), "") for x in curve.points), ratio))
    return report.markdown_table((f"{curve.title}, {curve.y_label}", *map(str, curve.points), f"{most} against 1"), rows)


SECTION = """{heading}

Processor: {processor}, {cores} cores; Linux {kernel}; {when}.

`thread_load` measures how throughput grows with threads. Each thread has a queue pair and a completion queue of its own and sends
WRITEs to a second process. For comparison, as many processes with one thread each do the same, and as many
threads send over a TCP stream each. The median counts, of at least {rounds} rounds.

![Throughput over the number of threads](performance/scaling.svg)

{tables}

{goals}
"""


def section(stored):
    tables = "\n\n".join(_table(curve, values) for curve, values in curves_of(stored))
    goals = report.markdown_table(report.HEADINGS, stored["goals"]) if stored["goals"] else "No goal was measured."
    about = {key: stored[key] for key in ("processor", "cores", "kernel", "when", "rounds")}
    return SECTION.format(heading=HEADING, tables=tables, goals=goals, **about)


def published(docs):
    """The section of the results that docs/performance keeps; empty: there are none."""
    file = docs / "performance" / "scaling.json"
    return section(json.loads(file.read_text(encoding="utf-8"))) + "\n" if file.exists() else ""


def publish(file, docs):
    """Copies the results into docs/performance, draws the picture and replaces the section of docs/performance.md."""
    stored = json.loads(pathlib.Path(file).read_text(encoding="utf-8"))
    (docs / "performance" / "scaling.json").write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    draw(stored, docs / "performance" / "scaling.svg")
    page = docs / "performance.md"
    page.write_text(report.with_section(page.read_text(encoding="utf-8"), HEADING, section(stored)), encoding="utf-8")

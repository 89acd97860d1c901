"""Writes the table for the terminal, the JSON file and docs/performance.md."""

import dataclasses
import json

from places import SEPARATE_CACHES, SHARED_CACHE
from results import judge
from table import MEASURES, ROWS


def quantity(value, unit):
    if value is None:
        return "-"
    digits = 0 if value == int(value) or value >= 100 else 1 if value >= 20 else 2
    return f"{value:.{digits}f} {unit}".rstrip()


def result_text(judged, measures=MEASURES):
    if judged.result is None:
        return "-"
    return f"{judged.result:.2f}x" if judged.row.against else quantity(judged.result, measures[judged.row.measured].unit)


def goal_text(row, measures=MEASURES):
    def bound(value):
        return f"{value:g}x" if row.against else f"{value:g} {measures[row.measured].unit}".rstrip()
    text = ("at most " if row.at_most else "at least ") + bound(row.goal)
    return text + (f" (aim {bound(row.aim)})" if row.aim is not None else "")


def cells(judged, measures=MEASURES):
    row, measure = judged.row, measures[judged.row.measured]
    against = "-"
    if row.against:
        other = measures[row.against]
        against = f"{other.name}: {quantity(judged.against, other.unit)}"
    return (measure.name, quantity(judged.measured, measure.unit), against, result_text(judged, measures),
            goal_text(row, measures),
            str(judged.runs), judged.verdict)


HEADINGS = ("what", "measured", "against", "result", "goal", "runs", "verdict")
PLACES = {SHARED_CACHE: "Cores with a shared cache", SEPARATE_CACHES: "Cores with separate caches"}
RUNS_ELSEWHERE = 3  # fewer are not significant


def judged_by_place(results):
    """[(place, rows)]: all rows for the more frequent cache state; for the other, the ratios with enough runs."""
    first, *others = results.places() or [SHARED_CACHE]
    found = [(first, [judge(row, results.at(first)) for row in ROWS])]
    for place in others:
        judged = [judge(row, results.at(place)) for row in ROWS if row.against]
        found.append((place, [each for each in judged if each.runs >= RUNS_ELSEWHERE]))
    return [(place, rows) for place, rows in found if rows]


def _terminal_table(place, judged):
    rows = [HEADINGS, *map(cells, judged)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADINGS) - 1)]
    lines = ["  ".join([*(cell.ljust(width) for cell, width in zip(row, widths)), row[-1]]) for row in rows]
    return "\n".join([f"{PLACES[place]}:", *lines])


def terminal_tables(results):
    tables = [_terminal_table(place, rows) for place, rows in judged_by_place(results)]
    return "\n\n".join([*tables, *failure_lines(results)])


def failure_lines(results):
    return [f"Not measured, a run failed: {results.measures[name].name}: {why}" for name, why in results.failures.items()]


def micro_cells(each):
    return each["name"], f"{each['ns']:.1f} ns", quantity(each["gbps"], "Gb/s")


def micro_lines(micro):
    return "\n".join(f"{name:<24} {time:>12} {speed:>12}" for name, time, speed in map(micro_cells, micro))


def as_json(results, curves, micro, about):
    measures = {name: {"name": measure.name, "unit": measure.unit, "command": measure.program.command,
                       "values": [dataclasses.asdict(value) for value in results.values.get(name, [])],
                       "failure": results.failures.get(name)} for name, measure in MEASURES.items()}
    rows = [{"place": place, "measured": each.row.measured, "against": each.row.against, "runs": each.runs,
             "result": each.result, "goal": each.row.goal, "at_most": each.row.at_most, "aim": each.row.aim,
             "verdict": each.verdict} for place, judged in judged_by_place(results) for each in judged]
    return json.dumps({**about, "measures": measures, "rows": rows, "curves": curves,
                       "micro": micro}, indent=1) + "\n"


def markdown_table(headings, rows):
    def line(words):
        return "| " + " | ".join(word.replace("|", "\\|") for word in words) + " |"
    return "\n".join([line(headings), "|" + "---|" * len(headings), *map(line, rows)])


NEXT_HEADING = "## Curves"  # sections that are measured separately precede it

PAGE = """# Performance

`make bench` writes this page. It measures everything again and replaces the page.
Processor: {processor}, {cores} cores; Linux {kernel}; {when}.

Server and client run on this one machine, each pinned to its own core, in a network namespace without other traffic.
Verbena and the programs it is compared with run in turn, {runs} rounds. The median of the rounds counts. For
events that must not happen (drops, CPU time of an idle process) the worst round counts. Connections are measured in the
first round only. Machines differ, so compare the ratios.

A virtual machine also differs from minute to minute, because its hypervisor moves its cores. Between two cores that share a cache, a cache line goes
there and back in about 50 ns, otherwise in more than 300 ns. The suite measures this before and after each run
(`core_distance`) and compares only values of the same state. The first table has the more frequent state. If the
other state has enough runs, a table of its ratios follows.

*Same host* is the default way to reach another process of the host: shared memory. *Wire* is `VERBENA_DATAPATH=udp`: RoCEv2 packets
over UDP on the loopback interface, path MTU 4096; the sender computes the ICRC and the receiver checks it.

{tables}
{failures}
{sections}{next_heading}

{pictures}

## Microbenchmarks

These run on one core, in memory only: the CRC of a packet, parsing its headers, looking up a memory key, and one WRITE from posting
to completion between two engines (`build/verbena_bench`).

{micro}

## How each number is measured

`verbena run --` starts Verbena's programs, with the variables shown. `udp_reference`, `core_distance`, `qp_load`,
`qp_census` and `thread_load` are in [bench](../bench); the other programs are Debian's. Bandwidth counts payload; for raw UDP it counts whole
datagrams. Latency is the median of half a round trip.

{measures}

## Repeat it

```sh
make bench                      # less than 10 minutes; build/bench/results.json has every value
RUNS=9 make bench               # more rounds
make bench-scaling              # the section on threads, on a machine with many cores
make bench-networks             # the section on networks
build/verbena perf --listen     # between two hosts: on the first,
build/verbena perf HOST         # and on the second
```
"""


def with_section(page_, heading, text):
    """The page with `text` as its section of that heading."""
    before, after = page_.split(f"{NEXT_HEADING}\n", 1)
    parts = before.split("\n## ")
    others = [part for part in parts if not f"## {part}".startswith(f"{heading}\n")]
    return "\n## ".join(others).rstrip("\n") + f"\n\n{text}\n{NEXT_HEADING}\n{after}"


def page(results, pictures, micro, about, sections=""):
    """The whole page. `sections` are those that are measured separately."""
    tables = "\n\n".join(f"## {PLACES[place]}\n\n{markdown_table(HEADINGS, map(cells, judged))}"
                         for place, judged in judged_by_place(results))
    measures = markdown_table(("number", "command"), [
        (measure.name, f"`{measure.program.command}`") for measure in MEASURES.values()])
    images = "\n\n".join(f"![{curve.title}](performance/{curve.file}.svg)" for curve in pictures)
    failures = "".join(f"\n{line}\n" for line in failure_lines(results))
    return PAGE.format(tables=tables, failures=failures, pictures=images or "No curves were drawn.", measures=measures,
                       sections=sections, next_heading=NEXT_HEADING,
                       micro=markdown_table(("step", "time", "speed"), map(micro_cells, micro)), **about)

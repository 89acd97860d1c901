#!/bin/bash
# The verdicts of the benchmark suite with invented numbers: reached, not reached, not measured. Also checks
# that every row refers to a measure, and the section on threads. Runs no benchmark. The goals of threads depend on
# the number of cores.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
for cores in 1 2 16; do
CORES=$cores PYTHONPATH=$here/../../bench/suite python3 -B - <<'CHECK'
import json
import os
import pathlib
import tempfile

CORES = int(os.environ["CORES"])
os.sched_getaffinity = lambda _: set(range(CORES))

import networks
import report
import scaling
from places import SEPARATE_CACHES, SHARED_CACHE, place_of
from results import Results, judge
from table import MEASURES, ROWS, at_least, at_most

for row in ROWS:
    assert row.measured in MEASURES and (row.against is None or row.against in MEASURES), row

results = Results()
for value in (10, 30, 20):  # the median of these is 20
    results.add("host.write.64k", value, SHARED_CACHE)
    results.add("host.write.64k", value / 2, SEPARATE_CACHES)
results.add("host.write.64k", 99, None)  # the cores changed during the run: the value belongs to neither state
results.add("tcp", 8, SHARED_CACHE)
results.add("drops.1", 0, SHARED_CACHE)
results.add("drops.1", 3, SEPARATE_CACHES)  # for events that must not happen, the worst of both states counts
results.add("udp", 5, SHARED_CACHE)
results.fail("udp", "it broke")


def verdict(row):
    return judge(row, results.at(SHARED_CACHE)).verdict


assert results.places() == [SHARED_CACHE, SEPARATE_CACHES]
assert place_of(52) == SHARED_CACHE and place_of(340) == SEPARATE_CACHES
assert judge(at_least("host.write.64k", "tcp", 2.5), results.at(SHARED_CACHE)).result == 2.5
assert verdict(at_least("host.write.64k", "tcp", 2.5)) == "reached"
assert verdict(at_least("host.write.64k", "tcp", 2.6)) == "not reached"
assert verdict(at_least("host.write.64k", "tcp", 2, aim=2.4)) == "reached, and the aim"
assert verdict(at_least("host.write.64k", "tcp", 2, aim=2.6)) == "reached"
assert verdict(at_most("host.write.64k", "tcp", 2.6)) == "reached"
assert verdict(at_most("host.write.64k", "tcp", 2.4)) == "not reached"
assert verdict(at_most("drops.1", None, 0)) == "not reached"
assert verdict(at_least("host.write.64k", "udp", 1)) == "not measured"  # one failed run is a failure
assert verdict(at_least("wire.rate", None, 1)) == "not measured"

# Values with separate caches are compared with each other only, once there are enough runs of both.
far = at_least("host.write.64k", "tcp", 2.5)
assert judge(far, results.at(SEPARATE_CACHES)).verdict == "not measured"
assert [place for place, _ in report.judged_by_place(results)] == [SHARED_CACHE]
for _ in range(3):
    results.add("tcp", 2, SEPARATE_CACHES)
results.add("wire.rate", 1, SHARED_CACHE)  # so that a shared cache stays the more frequent state
assert judge(far, results.at(SEPARATE_CACHES)).result == 5
assert judge(far, results.at(SHARED_CACHE)).result == 2.5
(_, near_rows), (_, far_rows) = report.judged_by_place(results)
assert len(near_rows) == len(ROWS) and {each.row.against for each in far_rows} == {"tcp"}

about = {"runs": 5, "processor": "none", "cores": 2, "kernel": "none", "when": "never"}
page = report.page(results, [], [{"name": "step", "ns": 1.0, "gbps": None}], about)
for measure in MEASURES.values():
    assert measure.name in page and measure.program.command in page, measure
assert "it broke" in page and "it broke" in report.terminal_tables(results)
assert len(json.loads(report.as_json(results, {}, [], about))["rows"]) == len(near_rows) + len(far_rows)

# The section on threads: each line grows by 2 per thread, so the last point is as many times the first.
most = 7 if CORES == 16 else 2
assert scaling.POINTS == tuple(range(1, most + 1))
found = {curve.file: {line.name: {x: [x, 3 * x, 2 * x] for x in curve.points} for line in curve.lines}
         for curve in scaling.SCALING}
with tempfile.TemporaryDirectory() as folder:
    text = scaling.write(found, about, pathlib.Path(folder))
    stored = json.loads((pathlib.Path(folder) / "scaling.json").read_text(encoding="utf-8"))
assert stored["missing"] == [] and stored["rounds"] == 3 and scaling.section(stored) == text
assert f"| {most}.00x |" in text and "at least " + ("5.5x" if CORES == 16 else "1x") in text
goals = [(cells[0], cells[4]) for cells in stored["goals"]]
assert (f"64 B WRITEs, {most} threads, wire", "at least 5x" if CORES == 16 else "at least 1x") in goals
assert ((f"64 KiB WRITEs, {most} threads, same host", "at least 0.9x") in goals) == (CORES == 16)
del found["scaling.64"]["wire, threads"][most]
assert scaling.missing(found) == [f"64 B messages, wire, threads, {most}"]
assert text not in page
page = report.with_section(page, scaling.HEADING, text)
assert text in page and report.with_section(page, scaling.HEADING, text) == page  # it replaces the old section

# The section on networks: judged rows, failures, and its place beside the section on threads.
for row in networks.ROWS:
    assert row.measured in networks.MEASURES and (row.against is None or row.against in networks.MEASURES), row
found = networks.new_results()
found.add("write.1g", 0.5, networks.PLACE)
found.add("tcp.1g", 1.0, networks.PLACE)
found.add("ecn.48.drops", 0, networks.PLACE)
found.fail("lat.loaded", "it broke")
with tempfile.TemporaryDirectory() as folder:
    network_text = networks.write(found, about, pathlib.Path(folder))
    stored = json.loads((pathlib.Path(folder) / "networks.json").read_text(encoding="utf-8"))
assert networks.section(stored) == network_text and "it broke" in network_text
assert [cells[-1] for cells in stored["rows"]] == ["not reached", "reached", "not measured"]
page = report.with_section(page, networks.HEADING, network_text)
assert report.with_section(page, networks.HEADING, network_text) == page
assert report.with_section(page, scaling.HEADING, text).count("\n## ") == page.count("\n## ")
assert text in page and network_text in page and "## Curves" in page
assert set(networks.matching("10 ms, 0.1")) == {"write.1g.loss", "tcp.1g.loss"}

print(f"bench_suite: {len(ROWS)} rows, {len(MEASURES)} measures on {CORES} cores")
CHECK
done

#!/bin/bash
# The benchmark suite's judgement, on made-up numbers: what is reached, what is not, what was not measured; and
# that every row refers to something that is measured. Nothing is run.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
PYTHONPATH=$here/../../bench/suite python3 -B - <<'CHECK'
import json

import report
from places import FAR, NEAR, place_of
from results import Results, judge
from table import MEASURES, ROWS, at_least, at_most

for row in ROWS:
    assert row.measured in MEASURES and (row.against is None or row.against in MEASURES), row

results = Results()
for value in (10, 30, 20):  # the median of these is 20
    results.add("host.write.64k", value, NEAR)
    results.add("host.write.64k", value / 2, FAR)
results.add("host.write.64k", 99, None)  # the cores moved: it is of no place
results.add("tcp", 8, NEAR)
results.add("drops.1", 0, NEAR)
results.add("drops.1", 3, FAR)  # of what must never happen, the worst counts, wherever it was
results.add("udp", 5, NEAR)
results.fail("udp", "it broke")


def verdict(row):
    return judge(row, results.at(NEAR)).verdict


assert results.places() == [NEAR, FAR]
assert place_of(52) == NEAR and place_of(340) == FAR
assert judge(at_least("host.write.64k", "tcp", 2.5), results.at(NEAR)).result == 2.5
assert verdict(at_least("host.write.64k", "tcp", 2.5)) == "reached"
assert verdict(at_least("host.write.64k", "tcp", 2.6)) == "not reached"
assert verdict(at_least("host.write.64k", "tcp", 2, aim=2.4)) == "reached, and the aim"
assert verdict(at_least("host.write.64k", "tcp", 2, aim=2.6)) == "reached"
assert verdict(at_most("host.write.64k", "tcp", 2.6)) == "reached"
assert verdict(at_most("host.write.64k", "tcp", 2.4)) == "not reached"
assert verdict(at_most("drops.1", None, 0)) == "not reached"
assert verdict(at_least("host.write.64k", "udp", 1)) == "not measured"  # one failed run is a failure
assert verdict(at_least("wire.rate", None, 1)) == "not measured"

# What was measured far apart is compared with its like alone, once there are enough runs of both.
far = at_least("host.write.64k", "tcp", 2.5)
assert judge(far, results.at(FAR)).verdict == "not measured"
assert [place for place, _ in report.judged_by_place(results)] == [NEAR]
for _ in range(3):
    results.add("tcp", 2, FAR)
results.add("wire.rate", 1, NEAR)  # so that near is still where they were most
assert judge(far, results.at(FAR)).result == 5
assert judge(far, results.at(NEAR)).result == 2.5
(_, near_rows), (_, far_rows) = report.judged_by_place(results)
assert len(near_rows) == len(ROWS) and {each.row.against for each in far_rows} == {"tcp"}

about = {"runs": 5, "processor": "none", "cores": 2, "kernel": "none", "when": "never"}
page = report.page(results, [], [{"name": "step", "ns": 1.0, "gbps": None}], about)
for measure in MEASURES.values():
    assert measure.name in page and measure.program.command in page, measure
assert "it broke" in page and "it broke" in report.terminal_tables(results)
assert len(json.loads(report.as_json(results, {}, [], about))["rows"]) == len(near_rows) + len(far_rows)
print(f"bench_suite: {len(ROWS)} rows, {len(MEASURES)} measures")
CHECK

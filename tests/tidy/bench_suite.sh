#!/bin/bash
# The benchmark suite's judgement, on made-up numbers: what is reached, what is not, what was not measured; and
# that every row refers to something that is measured. Nothing is run.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
PYTHONPATH=$here/../../bench/suite python3 -B - <<'CHECK'
import json

import report
from results import Results, judge
from table import MEASURES, ROWS, at_least, at_most

for row in ROWS:
    assert row.measured in MEASURES and (row.against is None or row.against in MEASURES), row

results = Results()
for value in (10, 30, 20):  # the median of these is 20
    results.add("host.write.64k", value)
results.add("tcp", 8)
results.add("drops.1", 0)
results.add("drops.1", 3)  # of what must never happen, the worst counts
results.add("udp", 5)
results.fail("udp", "it broke")


def verdict(row):
    return judge(row, results).verdict


assert judge(at_least("host.write.64k", "tcp", 2.5), results).result == 2.5
assert verdict(at_least("host.write.64k", "tcp", 2.5)) == "reached"
assert verdict(at_least("host.write.64k", "tcp", 2.6)) == "not reached"
assert verdict(at_least("host.write.64k", "tcp", 2, aim=2.4)) == "reached, and the aim"
assert verdict(at_least("host.write.64k", "tcp", 2, aim=2.6)) == "reached"
assert verdict(at_most("host.write.64k", "tcp", 2.6)) == "reached"
assert verdict(at_most("host.write.64k", "tcp", 2.4)) == "not reached"
assert verdict(at_most("drops.1", None, 0)) == "not reached"
assert verdict(at_least("host.write.64k", "udp", 1)) == "not measured"  # one failed run is a failure
assert verdict(at_least("wire.rate", None, 1)) == "not measured"

about = {"runs": 5, "processor": "none", "cores": 2, "kernel": "none", "when": "never"}
page = report.page(results, [], [{"name": "step", "ns": 1.0, "gbps": None}], about)
for measure in MEASURES.values():
    assert measure.name in page and measure.program.command in page, measure
assert "it broke" in page and "it broke" in report.terminal_table(results)
assert len(json.loads(report.as_json(results, {}, [], about))["rows"]) == len(ROWS)
print(f"bench_suite: {len(ROWS)} rows, {len(MEASURES)} measures")
CHECK

"""How Verbena behaves on ordinary networks, beside TCP in the same place: long paths, losses, many senders, ECN, small
MTUs. `--networks-only` measures it and writes networks.json, from which the section of docs/performance.md is written
anywhere (`--networks-from`). A new row is a new line here."""

import json
import pathlib

import report
from links import SlowLink, VethPair
from network_programs import BesideTcp, Incast, Tcp, UdpStream, Write, WriteLatency
from results import Results, judge
from table import KIB, MIB, Measure, at_least, at_most, bandwidth, latency

BUDGET = 420  # seconds after which no further round is started
ROUNDS = 3
HEADING = "## Networks"
PLACE = "not pinned"  # the cache state of the cores does not matter here

PATHS = {  # round trips of 10 and 40 ms
    "1g": ("1 Gb/s, 10 ms", SlowLink(1000, 5, 1500)),
    "1g.loss": ("1 Gb/s, 10 ms, 0.1 % loss", SlowLink(1000, 5, 1500, loss_percent=0.1)),
    "200m": ("200 Mb/s, 40 ms", SlowLink(200, 20, 1500)),
    "200m.loss": ("200 Mb/s, 40 ms, 0.1 % loss", SlowLink(200, 20, 1500, loss_percent=0.1)),
}
# A round trip of 0.2 ms, as in a LAN.
SHALLOW = SlowLink(1000, 0.1, 200)
SHALLOW_ECN = SlowLink(1000, 0.1, 200, ecn_kb=60)
DEEP = SlowLink(1000, 0.1, 1500)
DEEP_ECN = SlowLink(1000, 0.1, 1500, ecn_kb=30)  # 20 packets, as DCTCP's authors mark at 1 Gb/s
DATAGRAMS = {1500: 1024 + 16, 9000: 4096 + 16}  # by MTU: a WRITE's bytes in UDP, with BTH and ICRC


def _paths():
    measures, rows = {}, []
    for name, (where, link) in PATHS.items():
        measures[f"write.{name}"] = bandwidth(f"ib_write_bw 64 KiB, {where}", Write(link))
        measures[f"tcp.{name}"] = bandwidth(f"TCP CUBIC, {where}", Tcp(link))
        rows.append(at_least(f"write.{name}", f"tcp.{name}", 0.95))
    return measures, rows


def _incast(name, senders, where, link):
    program = Incast(link, senders)
    label = f"{senders} senders into 1 Gb/s, {where}"
    measures = {
        f"{name}.used": Measure(f"{label}: payload, of the link", "", program, "used"),
        f"{name}.jain": Measure(f"{label}: Jain's index", "", program, "jain"),
        f"{name}.drops": Measure(f"{label}: packets dropped", "%", program, "drops"),
        f"{name}.queue": Measure(f"{label}: median queue", "KB", program, "queue"),
        f"{name}.gave_up": Measure(f"{label}: QPs that gave up", "", program, "gave_up", worst=True),
    }
    rows = [at_least(f"{name}.used", None, 0.9), at_least(f"{name}.jain", None, 0.95),
            at_most(f"{name}.drops", None, 0 if link.ecn_kb else 1), at_most(f"{name}.gave_up", None, 0)]
    if link.ecn_kb:
        rows.append(at_most(f"{name}.queue", None, 100))
    return measures, rows


def _beside(name, where, link):
    program = BesideTcp(link)
    measures = {f"{name}.verbena": Measure(f"Verbena beside TCP, {where}: of the link", "", program, "udp"),
                f"{name}.tcp": Measure(f"TCP beside Verbena, {where}: of the link", "", program, "tcp")}
    rows = [bound for each in measures for bound in (at_least(each, None, 0.35), at_most(each, None, 0.65))]
    return measures, rows


def _latency():
    measures = {"lat.idle": latency("ib_write_lat 8 B, 1 Gb/s with ECN, idle", WriteLatency(DEEP_ECN, False)),
                "lat.loaded": latency("ib_write_lat 8 B, 1 Gb/s with ECN, filled by another process",
                                      WriteLatency(DEEP_ECN, True))}
    return measures, [at_most("lat.loaded", "lat.idle", 3)]


def _veth(mtu):
    link, size = VethPair(mtu), DATAGRAMS[mtu]
    where = f"veth MTU {mtu}"
    measures = {
        f"udp.{mtu}": bandwidth(f"raw UDP, GSO batches of {size} B, {where}", UdpStream(link, size)),
        f"tcp.{mtu}": bandwidth(f"TCP CUBIC, {where}", Tcp(link, seconds=1, pinned=True)),
        f"write.64k.{mtu}": bandwidth(f"ib_write_bw 64 KiB, {where}", Write(link, 64 * KIB, 2, pinned=True)),
        f"write.1m.{mtu}": bandwidth(f"ib_write_bw 1 MiB, {where}", Write(link, MIB, 2, pinned=True)),
    }
    rows = [row for size in ("64k", "1m")
            for row in (at_least(f"write.{size}.{mtu}", f"udp.{mtu}", 0.6), at_least(f"write.{size}.{mtu}", f"tcp.{mtu}", 0.75))]
    return measures, rows


_PARTS = [
    _paths(),
    _incast("shallow.16", 16, "200 KB queue", SHALLOW),
    _incast("shallow.48", 48, "200 KB queue", SHALLOW),
    _incast("ecn.16", 16, "200 KB queue, ECN at 60 KB", SHALLOW_ECN),
    _incast("ecn.48", 48, "200 KB queue, ECN at 60 KB", SHALLOW_ECN),
    _beside("beside.shallow", "200 KB queue", SHALLOW),
    _beside("beside.deep", "1.5 MB queue", DEEP),
    _latency(),
    _veth(1500),
    _veth(9000),
]
MEASURES = {name: measure for measures, _ in _PARTS for name, measure in measures.items()}
ROWS = [row for _, rows in _PARTS for row in rows]


def matching(text):
    """The measures whose name contains the text, and what they are compared with."""
    wanted = {name for name, measure in MEASURES.items() if text.lower() in measure.name.lower()}
    wanted |= {row.against for row in ROWS if row.measured in wanted and row.against}
    return {name: measure for name, measure in MEASURES.items() if name in wanted}


def new_results():
    return Results(measures=MEASURES)


def write(results, about, folder):
    """Writes networks.json and the section as networks.md. Returns the section."""
    numbers = results.at(PLACE)
    judged = [judge(row, numbers) for row in ROWS if row.measured in results.values or row.measured in results.failures]
    stored = {**about, "rows": [report.cells(each, MEASURES) for each in judged],
              "failures": report.failure_lines(results),
              "values": {name: [value.number for value in values] for name, values in results.values.items()},
              "commands": {measure.name: measure.program.command for measure in MEASURES.values()}}
    text = json.dumps(stored, indent=1) + "\n"
    (folder / "networks.json").write_text(text, encoding="utf-8")
    found = section(json.loads(text))
    (folder / "networks.md").write_text(found, encoding="utf-8")
    return found


SECTION = """{heading}

Processor: {processor}, {cores} cores; Linux {kernel}; {when}.

Two network namespaces are connected by a slow link in user space (`bottleneck`: rate, delay, queue, ECN, loss; MTU 1500) or by a veth
pair. TCP is measured in the same place. *10 ms* is the round trip. Where no delay is named, the round trip of the link is 0.2 ms. Each
sender is a process of its own. Drops are those of the link's queue; its median length is weighted by time. The router
needs up to half a core at 1 Gb/s, so a machine with few cores limits these rates. The median of the runs counts.

{table}
{failures}
Each number: `bottleneck ...; program`.

{commands}
"""


def section(stored):
    about = {key: stored[key] for key in ("processor", "cores", "kernel", "when")}
    commands = report.markdown_table(("number", "command"), [(name, f"`{text}`") for name, text in stored["commands"].items()])
    return SECTION.format(heading=HEADING, table=report.markdown_table(report.HEADINGS, stored["rows"]), commands=commands,
                          failures="".join(f"\n{line}\n" for line in stored["failures"]), **about)


def published(docs):
    """The section of the results that docs/performance keeps; empty: there are none."""
    file = docs / "performance" / "networks.json"
    return section(json.loads(file.read_text(encoding="utf-8"))) + "\n" if file.exists() else ""


def publish(file, docs):
    """Copies the results into docs/performance and replaces the section of docs/performance.md."""
    stored = json.loads(pathlib.Path(file).read_text(encoding="utf-8"))
    (docs / "performance" / "networks.json").write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    page = docs / "performance.md"
    page.write_text(report.with_section(page.read_text(encoding="utf-8"), HEADING, section(stored)), encoding="utf-8")

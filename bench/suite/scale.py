"""The engine on ns-3: an incast and a fat tree of 320 hosts, beside ns-3's TCP. `python3 bench/suite/scale.py --build
build` runs all scenarios (`make scale`) and writes build/scale/*.json, docs/scale.md and its pictures. --from-results
writes the page from the files of an earlier run."""

import argparse
import concurrent.futures
import json
import pathlib
import subprocess
import sys
import types

import machine
import plots

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
KB, MB = 1000, 1000 * 1000

# Names and colours of the transports, the same in every picture and table.
TRANSPORTS = {"delay": ("Verbena", "#1b5e20"), "dctcp": ("DCTCP", "#0d47a1"), "cubic": ("CUBIC", "#b71c1c")}
LOADS = (30, 50)
CLASSES = ((10 * KB, "up to 10 KB"), (100 * KB, "10 to 100 KB"), (MB, "100 KB to 1 MB"), (10 * MB, "1 to 10 MB"),
           (30 * MB, "10 to 30 MB"))
PERCENTILES = (50, 95, 99)
INCASTS = {  # name: what it is, and the arguments
    "100k": ("100 KB from each", ["--bytes", "100000"]),
    "1m": ("1 MB from each", ["--bytes", "1000000"]),
    "10m": ("10 MB from each", ["--bytes", "10000000"]),
    "1m-1024": ("1 MB from each, packets of 1 KB", ["--bytes", "1000000", "--mtu", "1024"]),
    "1m-25g": ("1 MB from each, 25 Gb/s", ["--bytes", "1000000", "--gbps", "25"]),
}
GOAL_INCAST = 1.10
HOST_BYTES_PER_MS = 100e9 / 8 / 1e3  # of a host's link


def scenarios(flows):
    """{name: arguments of verbena-scale}, the longest first."""
    found = {f"fat-tree.{load}.{name}": ["fat-tree", "--transport", name, "--load", str(load / 100), "--flows", str(flows)]
             for load in reversed(LOADS) for name in reversed(TRANSPORTS)}
    for incast, (_, arguments) in INCASTS.items():
        for name in (*TRANSPORTS, "dcqcn", "aimd"):
            found[f"incast.{incast}.{name}"] = ["incast", "--transport", name, *arguments]
    return found


def run(program, name, arguments, folder):
    file = folder / f"{name}.json"
    with file.open("w", encoding="utf-8") as out:
        status = subprocess.run([program, *arguments], stdout=out, check=False).returncode
    if status not in (0, 1):
        file.unlink()
    print(f"{name}: {'done' if status == 0 else 'some flows failed' if status == 1 else 'FAILED'}", flush=True)
    return status in (0, 1)


def run_all(program, folder, flows, jobs):
    """Returns whether each scenario gave a result."""
    folder.mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        return all(list(pool.map(lambda each: run(program, *each, folder), scenarios(flows).items())))


def load_results(folder):
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))}


def percentile(values, percent):
    """The smallest value that `percent` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def slowdowns(result, low, high):
    """Slowdowns of the flows in this range of sizes. A flow that failed is the slowest."""
    return [took / fastest if took else float("inf") for size, took, fastest in result["flows"] if low < size <= high]


def by_class(result):
    """[[p50, p95, p99]] of each size class, and the number of flows in it; None: no flow."""
    found, low = [], 0
    for high, _ in CLASSES:
        values = slowdowns(result, low, high)
        found.append(([percentile(values, p) for p in PERCENTILES], len(values)) if values else None)
        low = high
    return found


# --- tables --------------------------------------------------------------------------------------

def markdown(headings, rows):
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def kilobytes(count):
    return f"{count / KB:,.0f} KB"


def incast_table(results):
    rows = []
    for incast, (what, _) in INCASTS.items():
        row = [what, f"{results[f'incast.{incast}.delay']['optimum_ns'] / 1e6:.2f} ms"]
        for name in (*TRANSPORTS, "dcqcn", "aimd"):
            result = results[f"incast.{incast}.{name}"]
            cell = f"{result['last_ns'] / result['optimum_ns']:.2f}x"
            row.append(cell + (f", {result['dropped']} drops" if result["dropped"] else ""))
        rows.append(row)
    return markdown(["64 senders", "optimum", *(label for label, _ in TRANSPORTS.values()), "Verbena, dcqcn",
                     "Verbena, aimd"], rows)


def incast_verdict(results):
    ratio = {each: results[f"incast.{each}.delay"]["last_ns"] / results[f"incast.{each}.delay"]["optimum_ns"]
             for each in INCASTS}
    missed = [INCASTS[each][0] for each, value in ratio.items() if value > GOAL_INCAST]
    return "met in every row." if not missed else "missed for: " + "; ".join(missed) + "."


def slowdown_table(results, load):
    classes = {name: by_class(results[f"fat-tree.{load}.{name}"]) for name in TRANSPORTS}
    rows = []
    for i, (_, what) in enumerate(CLASSES):
        cells = []
        for name in TRANSPORTS:
            found = classes[name][i]
            cells.append(" / ".join(f"{value:.2f}" for value in found[0]) if found else "-")
        ours, theirs = classes["delay"][i], classes["dctcp"][i]
        verdict = "-" if ours is None else "met" if ours[0][2] < theirs[0][2] else "**missed**"
        rows.append([what, ours[1] if ours else 0, *cells, verdict])
    return markdown(["flow size", "flows", *(label for label, _ in TRANSPORTS.values()), "p99 below DCTCP's"], rows)


def arrivals_ms(results, load):
    """How long flows arrive, on average."""
    sizes = sum(size for size, _, _ in results[f"fat-tree.{load}.delay"]["flows"])
    return f"{sizes / (load / 100 * 320 * HOST_BYTES_PER_MS):.1f} ms"


def network_table(results):
    rows = []
    for load in LOADS:
        for name, (label, _) in TRANSPORTS.items():
            result = results[f"fat-tree.{load}.{name}"]
            rows.append([f"{load} %", label, f"{result['packets'] / 1e6:.1f} million", result["dropped"],
                         f"{100 * result['marked'] / result['packets']:.2f} %", kilobytes(result["median_queue"]),
                         kilobytes(result["p99_queue"]), kilobytes(result["largest_queue"]), result["failed"]])
    return markdown(["load", "transport", "packets at ports", "drops", "marked", "median queue", "p99", "largest",
                     "flows that failed"], rows)


def cost_table(results):
    rows = []
    for load in LOADS:
        for name, (label, _) in TRANSPORTS.items():
            result = results[f"fat-tree.{load}.{name}"]
            share = f"{100 * result['engine_seconds'] / result['seconds']:.0f} %" if name == "delay" else "-"
            rows.append([f"{load} %", label, f"{result['events'] / 1e6:.1f} million", f"{result['cpu_seconds']:.0f} s",
                         f"{result['events'] / result['cpu_seconds'] / 1e3:,.0f} thousand", share,
                         f"{result['host_bytes'] / 1024:.0f} KiB", f"{result['peak_bytes'] / MB:.0f} MB"])
    return markdown(["load", "transport", "events", "CPU time", "events in a second", "in the engine",
                     "memory of a host's transport", "whole process"], rows)


# --- 100,000 hosts -------------------------------------------------------------------------------

def extrapolation(results):
    """Numbers for 100,000 hosts at a steady load of 50 %, from the fat tree at 50 %."""
    result = results["fat-tree.50.delay"]
    hosts, many = 320, 100_000
    flows = len(result["flows"])
    sizes = sum(size for size, _, _ in result["flows"])
    flows_per_host_ms = 0.5 * HOST_BYTES_PER_MS / (sizes / flows)
    events = flows_per_host_ms * result["events"] / flows * many  # for each simulated ms
    rate = result["events"] / result["cpu_seconds"]
    switches = 5 / 4 * 74 ** 2  # 74 ports: 74^3 / 4 hosts
    memory = result["host_bytes"] * many + result["node_bytes"] * (many + switches)
    core_hours = events / rate / 3600
    engine_share = result["engine_seconds"] / result["seconds"]
    return {"events_per_flow": result["events"] / flows, "flows_per_host_ms": flows_per_host_ms, "events": events / 1e9,
            "events_per_us": events / 1e3 / 64, "rate_thousands": rate / 1e3, "core_hours_per_ms": core_hours,
            "core_hours_per_ten": 10 * core_hours, "engine_hours_per_ms": engine_share * core_hours,
            "packet_us": 1e6 * engine_share * result["cpu_seconds"] / result["engine_packets"],
            "memory_gb": memory / 1e9, "busy_gb": result["peak_bytes"] / hosts * many / 1e9, "switches": switches,
            "host_kib": result["host_bytes"] / 1024, "node_kib": result["node_bytes"] / 1024}


# --- pictures ------------------------------------------------------------------------------------

def curve(title, x_label, y_label, points, logarithmic="x"):
    lines = tuple(types.SimpleNamespace(name=label, colour=colour, dashed=False)
                  for label, colour in TRANSPORTS.values())
    return types.SimpleNamespace(title=title, x_label=x_label, y_label=y_label, points=points, lines=lines, sizes=False,
                                 logarithmic=logarithmic)


def draw_slowdowns(results, pictures):
    """p50 and p99 over flow size, for each load: groups of a tenth of the flows."""
    for load in LOADS:
        sizes = sorted(size for size, _, _ in results[f"fat-tree.{load}.delay"]["flows"])
        edges = sorted({sizes[max(len(sizes) * i // 10, 1) - 1] for i in range(1, 11)})
        pair = []
        for percent in (50, 99):
            values = {}
            for name, (label, _) in TRANSPORTS.items():
                found = {}
                for low, high in zip([0, *edges], edges):
                    group = slowdowns(results[f"fat-tree.{load}.{name}"], low, high)
                    if group:
                        found[high // KB] = percentile(group, percent)
                values[label] = found
            points = [edge // KB for edge in edges]
            pair.append((curve(f"Slowdown, p{percent}, load {load} %", "flow size, KB", "slowdown", points, "xy"), values))
        plots.draw_together(pair, pictures / f"slowdown-{load}.svg")


def draw_incast(results, pictures):
    """How many of 64 senders have ended, over time."""
    values, points = {}, [i / 2 for i in range(15)]
    for name, (label, _) in TRANSPORTS.items():
        ends = [took / 1e6 for _, took, _ in results[f"incast.1m.{name}"]["flows"]]
        values[label] = {x: sum(end <= x for end in ends) for x in points}
    shown = curve("Incast of 64 senders, 1 MB each: senders that have ended", "ms", "senders", points, "")
    plots.draw_together([(shown, values)], pictures / "incast.svg")


# --- the page ------------------------------------------------------------------------------------

def write_page(results, folder):
    pictures = DOCS / "scale"
    pictures.mkdir(exist_ok=True)
    draw_slowdowns(results, pictures)
    draw_incast(results, pictures)
    template = (ROOT / "bench" / "scale" / "page.md").read_text(encoding="utf-8")
    about = json.loads((folder / "about.txt").read_text(encoding="utf-8"))
    page = template.format(
        incast=incast_table(results), incast_verdict=incast_verdict(results), network=network_table(results),
        slowdown_30=slowdown_table(results, 30), slowdown_50=slowdown_table(results, 50), cost=cost_table(results),
        flows=f"{len(results['fat-tree.50.delay']['flows']):,}", arrivals_30=arrivals_ms(results, 30),
        arrivals_50=arrivals_ms(results, 50), many=types.SimpleNamespace(**extrapolation(results)), **about)
    (DOCS / "scale.md").write_text(page, encoding="utf-8")
    print(f"The page: {DOCS / 'scale.md'}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build", help="the build folder")
    parser.add_argument("--flows", type=int, default=1000, help="flows of each run of the fat tree")
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time; each needs 200 MB")
    parser.add_argument("--from-results", action="store_true", help="run nothing; write the page again")
    options = parser.parse_args()
    folder = options.build.resolve() / "scale"
    complete = True
    if not options.from_results:
        complete = run_all(options.build.resolve() / "verbena-scale", folder, options.flows, options.jobs)
        (folder / "about.txt").write_text(json.dumps(machine.describe()), encoding="utf-8")
    if complete:
        write_page(load_results(folder), folder)
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())

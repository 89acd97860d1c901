"""Draws the curves with gnuplot, as SVG."""

import subprocess

COLOURS = ("#1b5e20", "#7cb342", "#0d47a1", "#42a5f5", "#b71c1c", "#ef6c00", "#6a1b9a", "#ba68c8", "#616161")
SETUP = """
set terminal svg size 760,420 dynamic font 'Helvetica,13' background '#ffffff'
set output '{file}'
set title '{title}'
set xlabel '{x_label}'
set ylabel '{y_label}'
set grid linecolor '#dddddd'
set border 3 linecolor '#555555'
set tics nomirror
set key outside right top vertical samplen 2
set yrange [{least}:]
"""


def tick(curve, x):
    if not curve.sizes:
        return f"{x:,}"
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if x >= unit:
            return f"{x // unit} {name}"
    return f"{x} B"


def draw(curve, values, file):
    """`values[line name][x]` is what was measured there; points without a number are left out."""
    script = SETUP.format(file=file, title=curve.title, x_label=curve.x_label, y_label=curve.y_label,
                          least="*" if "y" in curve.logarithmic else "0")
    if curve.logarithmic:
        script += f"set logscale {curve.logarithmic}\n"
    ticks = ", ".join(f"'{tick(curve, x)}' {x}" for x in curve.points)
    script += f"set xtics ({ticks})\n"
    plots = []
    for number, line in enumerate(curve.lines):
        points = [(x, values[line.name][x]) for x in curve.points if x in values.get(line.name, {})]
        if not points:
            continue
        script += f"$line{number} << END\n" + "".join(f"{x} {y}\n" for x, y in points) + "END\n"
        plots.append(f"$line{number} with linespoints linewidth 2 pointtype 7 pointsize 0.5 "
                     f"linecolor '{COLOURS[number % len(COLOURS)]}' title '{line.name}'")
    if plots:
        subprocess.run(["gnuplot"], input=script + "plot " + ", ".join(plots) + "\n", text=True, check=True)
    return bool(plots)

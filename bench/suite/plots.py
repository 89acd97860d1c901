"""Draws the curves with gnuplot, as SVG: one curve in a picture, or several side by side."""

import subprocess

PICTURE = """
set terminal svg size {width},480 dynamic noenhanced font 'Helvetica,13' background '#ffffff'
set output '{file}'
"""
WIDTH = 800  # of one curve; several side by side get less each
WIDTH_OF_SEVERAL = 560

AXES = """
set title '{title}'
set xlabel '{x_label}' offset 0,0.4
set xrange [{first}:{last}]
set ylabel '{y_label}'
set grid linecolor '#cccccc'
set border 3 linecolor '#555555'
set tics nomirror
set key outside bottom center horizontal Left reverse samplen 3 maxcols 2
set yrange [{least}:]
"""


def tick(curve, x):
    if not curve.sizes:
        return f"{x:,}"
    for unit, name in ((1 << 20, "M"), (1 << 10, "K")):
        if x >= unit:
            return f"{x // unit}{name}"
    return str(x)


def _script(curve, values):
    """The commands for one curve; None: there is no value."""
    script = AXES.format(title=curve.title, x_label=curve.x_label, y_label=curve.y_label,
                         first=curve.points[0], last=curve.points[-1],
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
                     f"linecolor '{line.colour}' dashtype {2 if line.dashed else 1} title '{line.name}'")
    return script + "plot " + ", ".join(plots) + "\n" if plots else None


def draw(curve, values, file):
    """Draws one curve. `values[line name][x]` is the measured value; points without a value are skipped."""
    return draw_together([(curve, values)], file)


def draw_together(curves, file):
    """Draws the pairs of a curve and its values side by side. Returns whether there was anything to draw."""
    scripts = [script for script in (_script(curve, values) for curve, values in curves) if script]
    if scripts:
        setup = PICTURE.format(file=file, width=WIDTH)
        if len(scripts) > 1:
            setup = PICTURE.format(file=file, width=WIDTH_OF_SEVERAL * len(scripts))
            setup += f"set multiplot layout 1,{len(scripts)}\n"
        subprocess.run(["gnuplot"], input=setup + "".join(scripts), text=True, check=True)
    return bool(scripts)

"""Kernels below the roofs of the cores they used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, floor, log10, sqrt

from bokeh.models import Axis, ColumnDataSource, FixedTicker, Range1d

from npusim.results import palette
from npusim.results.roofline import Point, Roofs
from npusim.results.web.charts.base import Figure, chart, hover, new_figure
from npusim.results.web.page import Chart

#: Height of the chart, in pixels.
HEIGHT = 400


def roofline(
    roofs: Roofs, points: Sequence[tuple[Point, str]], place: str = "roofline", words: bool = True
) -> Chart:
    """Executed TFLOP/s against FLOP per byte; each point comes with its colour, "" for ink.

    A circle counts the bytes cores moved from and to GM, a diamond those of main memory, a dash
    is the bound of the program. ``words`` names the points beside them.
    """
    shown = [one for one, _ in points]
    lowest = min([one.attained for one in shown] + [roofs.left * min(roofs.rates.values())])
    made = new_figure(
        HEIGHT,
        zoom="both",
        x_axis_type="log",
        y_axis_type="log",
        x_range=Range1d(start=roofs.left, end=roofs.right),
        y_range=Range1d(start=lowest / 2, end=roofs.top * 2.2),
        x_axis_label="FLOP per byte",
        y_axis_label="executed TFLOP/s",
    )
    _decades(made.xaxis[0], roofs.left, roofs.right)
    _decades(made.yaxis[0], lowest / 2, roofs.top * 2.2)
    _draw_roofs(made, roofs)
    for at, mark in (("per_memory_byte", "diamond"), ("per_gm_byte", "circle")):
        _draw_points(made, points, at, mark)
    if words:
        _name_points(made, shown, sqrt(roofs.left * roofs.right))
    return chart(place, made)


def _draw_roofs(made: Figure, roofs: Roofs) -> None:
    for name, rate in roofs.rates.items():
        ridge = roofs.top / rate
        ends = [roofs.left, ridge], [roofs.left * rate, roofs.top]
        line = made.line(*ends, line_width=1.6, line_dash=DASHES[name])
        line.glyph.tags = ["stroke"]
    if roofs.peak is not None:
        first = min(roofs.top / rate for rate in roofs.rates.values())
        made.line([first, roofs.right], [roofs.top] * 2, line_width=1.6).glyph.tags = ["stroke"]


#: How each roof is drawn; the text around the chart says so.
DASHES: Mapping[str, str] = {"L2 read": "solid", "main memory read": "dashed"}


def _decades(axis: Axis, low: float, high: float) -> None:
    """Ticks at 1, 2 and 5 of every decade, or at its start where there are many."""
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    steps = (1, 2, 5) if len(powers) <= 4 else (1,)
    ticks = [step * 10.0**power for power in powers for step in steps]
    axis.ticker = FixedTicker(ticks=ticks)
    axis.major_label_overrides = {tick: f"{tick:g}" for tick in ticks}


def _draw_points(made: Figure, points: Sequence[tuple[Point, str]], at: str, mark: str) -> None:
    known = [(one, colour) for one, colour in points if getattr(one, at)]
    if not known:
        return
    source = ColumnDataSource(
        {
            "x": [getattr(one, at) for one, _ in known],
            "y": [one.attained for one, _ in known],
            "bound": [one.bounded or one.attained for one, _ in known],
            "name": [one.name for one, _ in known],
            "colour": [colour or palette.CLASS_COLOURS["cube"] for _, colour in known],
        }
    )
    if mark == "circle":
        made.segment("x", "y", "x", "bound", source=source, color="colour", line_dash="dotted")
        made.scatter("x", "bound", marker="dash", size=18, source=source, color="colour",
                     line_width=2)  # fmt: skip
    drawn = made.scatter(
        "x", "y", marker=mark, size=11, source=source, fill_color="colour", line_color="white"
    )
    whose = "GM" if mark == "circle" else "main memory"
    hover(
        made,
        [drawn],
        f"<div><b>@name</b><br>@y{{0.0}} TFLOP/s at @x{{0.0}} FLOP per byte of {whose}<br>"
        "bound of the program: @bound{0.0} TFLOP/s</div>",
    )


def _name_points(made: Figure, points: Sequence[Point], middle: float) -> None:
    """Each below its mark, written towards the middle of the chart."""
    for one in points:
        if one.intensities:
            x = min(one.intensities)
            look = ("left", -6) if x < middle else ("right", 6)
            words = made.text(
                [x],
                [one.attained],
                [one.name],
                x_offset=look[1],
                y_offset=9,
                text_align=look[0],
                text_baseline="top",
                text_font_size="12px",
            )
            words.glyph.tags = ["text"]

"""Lines over the values of a study, and its points against what they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bokeh.models import ColumnDataSource, DataRange1d, FactorRange

from npusim.results import palette
from npusim.results.web.charts.base import chart, hover, new_figure
from npusim.results.web.page import Chart

#: Height of a chart, in pixels.
HEIGHT = 380


def lines(
    across: str,
    values: Sequence[str],
    series: Mapping[str, Mapping[str, float]],
    unit: str,
    place: str = "lines",
) -> Chart:
    """A line per name of ``series`` over ``values``, which stand evenly; its points by value.

    The axis begins at 0 where the lowest point is below half of the highest.
    """
    heights = [height for points in series.values() for height in points.values()]
    seen = DataRange1d(range_padding=0.1)
    if min(heights) < max(heights) / 2:
        seen.start = 0
    made = new_figure(
        HEIGHT,
        zoom="none",
        x_range=FactorRange(factors=list(values)),
        y_range=seen,
        x_axis_label=across,
        y_axis_label=unit,
    )
    if max(map(len, values)) * len(values) > 60:
        made.xaxis.major_label_orientation = 0.8
    colours = palette.scale(len(series))
    for i, ((name, points), colour) in enumerate(zip(series.items(), colours, strict=True)):
        known = [value for value in values if value in points]
        source = ColumnDataSource(
            {"x": known, "y": [points[v] for v in known], "name": [name] * len(known)}
        )
        wider = 3 * palette.covered(series.values(), i)
        made.line("x", "y", source=source, line_color=colour, line_width=2 + wider)
        dots = made.scatter(
            "x", "y", source=source, fill_color=colour, line_color=None, size=8 + wider
        )
        hover(made, [dots], f"<div><b>@name</b><br>{across} @x: @y{{0,0.0}} {unit}</div>")
    return chart(place, made)


def scatter(
    x: tuple[str, Sequence[float]],
    y: tuple[str, Sequence[float]],
    names: Sequence[str],
    front: Sequence[int],
    place: str = "scatter",
) -> Chart:
    """Points of two figures, each with its name; those at the places ``front`` are joined."""
    made = new_figure(
        HEIGHT,
        zoom="both",
        x_axis_label=x[0],
        y_axis_label=y[0],
        y_range=DataRange1d(range_padding=0.1),
    )
    best = set(front)
    source = ColumnDataSource(
        {
            "x": list(x[1]),
            "y": list(y[1]),
            "name": list(names),
            "size": [10 if at in best else 7 for at in range(len(names))],
            "alpha": [1.0 if at in best else 0.45 for at in range(len(names))],
        }
    )
    made.line(
        [x[1][at] for at in front],
        [y[1][at] for at in front],
        line_color=palette.BEST,
        line_width=2,
    )
    dots = made.scatter(
        "x", "y", source=source, size="size", fill_alpha="alpha", fill_color=palette.BEST,
        line_color=None,
    )  # fmt: skip
    hover(made, [dots], f"<div><b>@name</b><br>{x[0]} @x{{0,0.0}}<br>{y[0]} @y{{0,0.0}}</div>")
    return chart(place, made)

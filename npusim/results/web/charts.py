"""Interactive charts of web pages; the only module that imports Bokeh.

Colours of axes and of text follow the page: models tagged "axis", "grid", "text" and "stroke" are
painted by its script, in the light and in the dark.
"""

# ruff: noqa: PLC0415 - what a chart needs of Bokeh is imported when it is drawn

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import ceil, floor, log10, sqrt
from pathlib import Path
from typing import Any

import numpy as np
from bokeh.core.types import ID
from bokeh.embed import json_item
from bokeh.models import (
    Axis,
    ColumnDataSource,
    CustomJS,
    CustomJSHover,
    CustomJSTransform,
    FixedTicker,
    Grid,
    HoverTool,
    Model,
    Range1d,
    RangeTool,
)
from bokeh.plotting import figure

from npusim.results import palette
from npusim.results.roofline import Point, Roofs
from npusim.results.web.bars import Bars, Picture, Span
from npusim.results.web.page import Chart

#: Height of a track, of the strip of kernels, and of what surrounds the tracks, in pixels.
TRACK, STRIP, AROUND = 24, 64, 84

Figure = Any  # Bokeh makes its figures' methods up, which types cannot follow


@lru_cache(maxsize=1)
def _library() -> str:
    """The script that draws the charts, for a page to hold."""
    from bokeh.util.paths import bokehjs_path

    text = (Path(bokehjs_path()) / "js" / "bokeh.min.js").read_text(encoding="utf-8")
    return text.replace("</script", "<\\/script")


def chart(place: str, model: Model) -> Chart:
    """A model as data; its ids are counted anew, so that a page is the same every time."""
    text = json.dumps(json_item(model, ID(place)))
    ids: dict[str, str] = {}
    text = re.sub(r'"p\d+"', lambda found: ids.setdefault(found[0], f'"{place}-{len(ids)}"'), text)
    return Chart(place, json.loads(text), _library())


# ---------------------------------------------------------------- what charts share


def _figure(height: int, *, zoom: str = "width", **settings: Any) -> Figure:
    """A figure as wide as the page, moved by dragging and zoomed with Ctrl and the wheel."""
    tools = "" if zoom == "none" else f"{_TOOLS[zoom]},zoom_in,zoom_out,reset"
    made: Figure = figure(
        height=height,
        sizing_mode="stretch_width",
        tools=tools,
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
        toolbar_location="above" if tools else None,
        min_border_right=8,
        **settings,
    )
    made.toolbar.logo = None
    for tool in made.toolbar.tools:
        if zoom == "width" and hasattr(tool, "dimensions"):
            tool.dimensions = "width"
    if tools:
        from bokeh.models import WheelZoomTool

        # Without Ctrl the wheel moves the page; a pinch on a touchpad is the wheel with Ctrl.
        wheel = WheelZoomTool(
            dimensions="width" if zoom == "width" else "both", modifiers={"ctrl": True}
        )
        made.add_tools(wheel)
        made.toolbar.active_scroll = wheel
    for axis in made.select(Axis):
        axis.tags = ["axis"]
        axis.axis_label_text_font_style = "normal"
        axis.minor_tick_line_color = None
    for grid in made.select(Grid):
        grid.tags = ["grid"]
    return made


_TOOLS = {"width": "xpan", "both": "pan"}


def _hover(made: Figure, renderers: Sequence[Any], tooltip: str, **named: Any) -> None:
    """Tell about what is below the pointer; ``named`` formats columns by code."""
    formatters: dict[str, Any] = {
        f"@{name}": CustomJSHover(args=dict(args), code=code)
        for name, (args, code) in named.items()
    }
    made.add_tools(
        HoverTool(renderers=list(renderers), tooltips=tooltip, formatters=formatters, visible=False)
    )


# ---------------------------------------------------------------- timeline


def timeline(picture: Picture, place: str = "timeline") -> Chart:
    """Tracks of cores and pipes, and below them the whole call, where one chooses what to see.

    The first view is the longest kernel, so that launches do not fill the picture.
    """
    from bokeh.layouts import column

    longest = max(
        (span for span in picture.spans if not span.launch),
        key=lambda span: span.right - span.left,
        default=Span("", 0, picture.cycles, False),
    )
    us = picture.us_per_cycle
    whole = picture.cycles * us
    edge = 0.02 * (longest.right - longest.left) * us
    view = Range1d(
        start=max(0.0, longest.left * us - edge),
        end=min(whole, longest.right * us + edge),
        bounds=(0, whole),
        min_interval=4 * us,
    )
    count = len(picture.tracks)
    made = _figure(
        TRACK * (count + 1) + AROUND,
        x_range=view,
        y_range=Range1d(start=count - 0.4, end=-1.6),
        name=place,
        x_axis_label="time (\u00b5s)",
    )
    ticks = [-1, *range(count)]
    made.yaxis.ticker = FixedTicker(ticks=ticks)
    made.yaxis.major_label_overrides = dict(zip(ticks, ("kernel", *picture.tracks), strict=True))
    made.ygrid.grid_line_color = None
    made.ygrid.tags = []
    for bars in picture.bars:
        _draw_bars(made, bars, picture)
    _draw_spans(made, picture.spans, us, -1.0)
    strip = _figure(
        STRIP,
        zoom="none",
        x_range=Range1d(start=0, end=whole),
        y_range=Range1d(start=0.6, end=-0.6),
        min_border_left=20,
    )
    strip.yaxis.visible = False
    strip.ygrid.grid_line_color = None
    strip.ygrid.tags = []
    _draw_spans(strip, picture.spans, us, 0.0)
    chosen = RangeTool(x_range=view, start_gesture="pan")
    chosen.overlay.fill_color = palette.CLASS_COLOURS["load"]
    chosen.overlay.fill_alpha = 0.18
    strip.add_tools(chosen)
    return chart(place, column(made, strip, sizing_mode="stretch_width"))


def _draw_bars(made: Figure, bars: Bars, picture: Picture) -> None:
    """Work as high as its track, waits half as high; a name lets the page hide them."""
    us = picture.us_per_cycle
    code = f"return Float64Array.from(xs, x => x * {us!r})"
    to_us = CustomJSTransform(v_func=code, func=f"return x * {us!r}")
    source = ColumnDataSource(
        {
            "y": bars.track.astype(np.int16),
            "left": bars.left,
            "right": bars.right,
            "op": bars.op.astype(np.int16),
            "line": bars.line.astype(np.int16),
            "bytes": bars.bytes,
            "number": bars.number,
        }
    )
    drawn = made.hbar(
        y="y",
        left={"field": "left", "transform": to_us},
        right={"field": "right", "transform": to_us},
        height=0.34 if bars.waits else 0.8,
        fill_color=bars.colour,
        line_color=None,
        source=source,
        name=bar_name(bars),
    )
    tracks = {"names": picture.tracks}, "return names[value]"
    names = {"names": picture.ops}, "return names[value]"
    lines = {"names": picture.lines}, "return names[value]"
    nothing: dict[str, Any] = {}
    length = nothing, f"return (value * {us!r}).toFixed(3)"
    much = nothing, "return value ? value.toLocaleString('en') + ' B' : ''"
    many = nothing, "return value > 1 ? value.toLocaleString('en') + ' instructions' : ''"
    what = f"waits for {bars.name}: before " if bars.waits else ""
    tooltip = (
        f"<div><b>{what}@op{{custom}}</b> @count{{custom}}<br>@y{{custom}}, "
        "@left{custom} to @right{custom} \u00b5s<br>@bytes{custom} @line{custom}</div>"
    )
    _hover(
        made,
        [drawn],
        tooltip,
        op=names,
        y=tracks,
        left=length,
        right=length,
        line=lines,
        bytes=much,
        number=many,
    )


def bar_name(bars: Bars) -> str:
    """The name by which the page hides and shows bars."""
    return f"{'waits' if bars.waits else 'work'}-{bars.name}"


def _draw_spans(made: Figure, spans: Sequence[Span], us: float, y: float) -> None:
    """Kernels and launches in one row; each is named while there is room for its name."""
    source = ColumnDataSource(
        {
            "left": [span.left * us for span in spans],
            "right": [span.right * us for span in spans],
            "name": [span.name for span in spans],
            "colour": [palette.LAUNCH if span.launch else palette.KERNEL for span in spans],
            "x": [span.left * us for span in spans],
            "text": [""] * len(spans),
        }
    )
    drawn = made.hbar(
        y=y,
        left="left",
        right="right",
        height=0.8,
        fill_color="colour",
        fill_alpha=0.45,
        line_color="colour",
        source=source,
    )
    words = made.text(
        x="x",
        y=y,
        text="text",
        source=source,
        text_font_size="12px",
        text_align="center",
        text_baseline="middle",
    )
    words.glyph.tags = ["text"]
    tooltip = "<div><b>@name</b><br>@left{0,0.000} to @right{0,0.000} \u00b5s</div>"
    _hover(made, [drawn], tooltip)
    fit = CustomJS(args={"source": source, "plot": made}, code=_FIT)
    for change in ("start", "end"):
        made.x_range.js_on_change(change, fit)
    made.js_on_change("inner_width", fit)


#: Names the spans that are wide enough, in the middle of what is seen of them.
_FIT = """
const {start, end} = plot.x_range;
const {left, right, name} = source.data;
const per = plot.inner_width / (end - start);
const text = [], x = [];
for (let i = 0; i < left.length; i++) {
  const a = Math.max(left[i], start), b = Math.min(right[i], end);
  const room = Math.floor((b - a) * per / 6.6);
  const short = name[i].startsWith("launch of") ? "launch" : name[i];
  text.push(room >= short.length ? short : "");
  x.push((a + b) / 2);
}
source.data = {...source.data, text, x};
"""


# ---------------------------------------------------------------- roofline


def roofline(
    roofs: Roofs, points: Sequence[tuple[Point, str]], place: str = "roofline", words: bool = True
) -> Chart:
    """Executed TFLOP/s against FLOP per byte; each point comes with its colour, "" for ink.

    A circle counts the bytes cores moved from and to GM, a diamond those of main memory, a dash
    is the bound of the program. ``words`` names the points beside them.
    """
    shown = [one for one, _ in points]
    lowest = min([one.attained for one in shown] + [roofs.left * min(roofs.rates.values())])
    made = _figure(
        400,
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
    _hover(
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

"""The timeline of a call and that of a network: what zooms, and names that fit at every zoom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from bokeh.layouts import column
from bokeh.models import (
    Column,
    ColumnDataSource,
    CustomJS,
    CustomJSTransform,
    FixedTicker,
    Range1d,
    RangeTool,
)

from npusim.results import palette
from npusim.results.web.bars import Bars, Picture, Span
from npusim.results.web.charts.base import Figure, chart, hover, new_figure
from npusim.results.web.page import Chart

#: Height of a track, of the strip of kernels, and of what surrounds the tracks, in pixels.
TRACK, STRIP, AROUND = 24, 64, 84


def timeline(picture: Picture, place: str = "timeline") -> Chart:
    """``tracks`` as a chart of a page."""
    return chart(place, tracks(picture, place))


def tracks(picture: Picture, place: str = "timeline") -> Column:
    """Tracks of cores and pipes, and below them the whole call, where one chooses what to see.

    The first view is the longest kernel, so that launches do not fill the picture.
    """
    longest = max(
        (span for span in picture.spans if not span.launch),
        key=lambda span: span.right - span.left,
        default=Span("", "", 0, picture.cycles, palette.KERNEL),
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
    made = new_figure(
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
    strip = new_figure(
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
    return column(made, strip, sizing_mode="stretch_width")


def rows_of_spans(rows: Mapping[str, Sequence[Span]], us: float, place: str = "timeline") -> Chart:
    """Spans in named rows, one over another, ``us`` microseconds a cycle."""
    whole = max(span.right for spans in rows.values() for span in spans) * us
    made = new_figure(
        2 * TRACK * len(rows) + AROUND,
        x_range=Range1d(start=0, end=whole, bounds=(0, whole), min_interval=4 * us),
        y_range=Range1d(start=len(rows) - 0.4, end=-0.6),
        name=place,
        x_axis_label="time (\u00b5s)",
    )
    made.yaxis.ticker = FixedTicker(ticks=list(range(len(rows))))
    made.yaxis.major_label_overrides = dict(enumerate(rows))
    made.ygrid.grid_line_color = None
    made.ygrid.tags = []
    for y, spans in enumerate(rows.values()):
        _draw_spans(made, spans, us, float(y))
    return chart(place, made)


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
        f"<div><b>{what}@op{{custom}}</b> @number{{custom}}<br>@y{{custom}}, "
        "@left{custom} to @right{custom} \u00b5s<br>@bytes{custom} @line{custom}</div>"
    )
    hover(
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
            "short": [span.short for span in spans],
            "colour": [span.colour for span in spans],
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
    hover(made, [drawn], tooltip)
    fit = CustomJS(args={"source": source, "plot": made}, code=_FIT)
    for change in ("start", "end"):
        made.x_range.js_on_change(change, fit)
    made.js_on_change("inner_width", fit)


#: Names the spans that are wide enough, in the middle of what is seen of them.
_FIT = """
const {start, end} = plot.x_range;
const {left, right, short} = source.data;
const per = plot.inner_width / (end - start);
const text = [], x = [];
for (let i = 0; i < left.length; i++) {
  const a = Math.max(left[i], start), b = Math.min(right[i], end);
  const room = Math.floor((b - a) * per / 6.6);
  text.push(room >= short[i].length ? short[i] : "");
  x.push((a + b) / 2);
}
source.data = {...source.data, text, x};
"""

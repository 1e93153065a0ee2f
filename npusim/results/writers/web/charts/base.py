"""Figures as charts of Bokeh, which zoom and tell what is below the pointer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from bokeh.core.types import ID
from bokeh.embed import json_item
from bokeh.layouts import column
from bokeh.models import (
    ColumnDataSource,
    CustomJS,
    CustomJSHover,
    DataRange1d,
    FixedTicker,
    HoverTool,
    Range1d,
    RangeTool,
    WheelZoomTool,
)
from bokeh.plotting import figure
from bokeh.util.paths import bokehjs_path

from npusim.results.shown import palette
from npusim.results.shown.figure import MANY, Bars, Coded, Figure, LineMark, Mark, Spans, Words
from npusim.results.shown.figure import FigureAxis as Side
from npusim.results.writers.web.files import file_text

Drawn = Any  # Bokeh makes its figures' methods up, which types cannot follow

#: What dragging does, by what zooms.
_TOOLS = {"width": "xpan", "both": "pan"}

#: Pixels of a point, in which the size of words is.
_PIXELS = 4 / 3

#: Pixels of the strip below a figure.
STRIP = 64

_DASHES = {"-": "solid", "--": "dashed", ":": "dotted", "-.": "dashdot"}
_MARKERS = {"o": "circle", "D": "diamond", "_": "dash", "s": "square", "^": "triangle",
            "v": "inverted_triangle", "P": "plus", "*": "star"}  # fmt: skip


class Chart(NamedTuple):
    """One interactive chart: the id of its place in the page, its data, and what draws it."""

    place: str
    item: dict[str, Any]
    library: str


@lru_cache(maxsize=1)
def _library() -> str:
    """The script that draws the charts, for a page to hold."""
    text = (Path(bokehjs_path()) / "js" / "bokeh.min.js").read_text(encoding="utf-8")
    return text.replace("</script", "<\\/script")


def chart(shown: Figure) -> Chart:
    """A figure as data; its ids are counted anew, so that a page is the same every time."""
    text = json.dumps(json_item(build(shown), ID(shown.place)))
    ids: dict[str, str] = {}
    text = re.sub(
        r'"p\d+"', lambda match: ids.setdefault(match[0], f'"{shown.place}-{len(ids)}"'), text
    )
    return Chart(shown.place, json.loads(text), _library())


def build(shown: Figure) -> Any:
    """The model of a figure; with a ``view``, one above a strip of the whole."""
    model: Any = _new_figure(shown)
    for mark in shown.marks:
        _DRAWN[type(mark)](model, shown, mark)
    if shown.view is None:
        return model
    strip = _strip(shown, model.x_range)
    for mark in shown.marks:
        if isinstance(mark, Spans) and mark.y == 0:
            _draw_spans(strip, shown, mark)
    return column(model, strip, sizing_mode="stretch_width")


def _new_figure(shown: Figure, **settings: Any) -> Drawn:
    """A figure as wide as the page, moved by dragging and zoomed with Ctrl and the wheel."""
    wide = shown.zoom == "width"
    tools = f"{_TOOLS[shown.zoom]},zoom_in,zoom_out,reset" if shown.zoom else ""
    usual: dict[str, Any] = {
        "height": shown.pixels,
        "name": shown.place,
        "x_axis_type": "log" if shown.x.log else "linear",
        "y_axis_type": "log" if shown.y.log else "linear",
        "x_range": _range(shown.x, shown.view, wide),
        "y_range": _range(shown.y),
    }
    if shown.widest:
        usual["max_width"] = shown.widest
    model: Drawn = figure(
        sizing_mode="stretch_width",
        tools=tools,
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
        toolbar_location="above" if tools else None,
        min_border_right=8,
        **(usual | settings),
    )
    model.toolbar.logo = None
    for tool in model.toolbar.tools:
        if wide and hasattr(tool, "dimensions"):
            tool.dimensions = "width"
    if tools:
        # Without Ctrl the wheel moves the page; a pinch on a touchpad is the wheel with Ctrl.
        wheel = WheelZoomTool(dimensions="width" if wide else "both", modifiers={"ctrl": True})
        model.add_tools(wheel)
        model.toolbar.active_scroll = wheel
    for axis, grid, side in (
        (model.xaxis[0], model.xgrid[0], shown.x),
        (model.yaxis[0], model.ygrid[0], shown.y),
    ):
        _label(axis, side)
        grid.tags = [] if side.names or shown.bare else ["grid"]
        if side.names or shown.bare:
            grid.grid_line_color = None
        axis.visible = not shown.bare
    return model


def _range(side: Side, view: tuple[float, float] | None = None, bounded: bool = False) -> Any:
    """Part of an axis that is seen first; of a ``bounded`` one nothing beyond its ends can be."""
    ends = side.ends or ((-0.5, len(side.names) - 0.5) if side.names else None)
    if ends is None:
        return DataRange1d(range_padding=0.1)
    first, last = view or ends
    more: dict[str, Any] = {"bounds": ends, "min_interval": 4 * side.unit} if bounded else {}
    return Range1d(start=first, end=last, **more)


def _label(axis: Any, side: Side) -> None:
    """Say what an axis is of, and write its ticks."""
    axis.tags = ["axis"]
    axis.axis_label = side.label or None
    axis.axis_label_text_font_style = "normal"
    axis.minor_tick_line_color = None
    ticks: dict[float, str] = {}
    if side.names:
        places = side.places or range(len(side.names))
        ticks = dict(zip(places, side.names, strict=True))
    elif side.log and side.ends is not None:
        ticks = {tick: side.text(tick) for tick in side.decades}
    if ticks:
        axis.ticker = FixedTicker(ticks=list(ticks))
        axis.major_label_overrides = ticks
    if axis.dimension == 0 and max(map(len, side.names), default=0) * len(side.names) > 60:
        axis.major_label_orientation = 0.8


def _strip(shown: Figure, seen: Any) -> Drawn:
    """The whole of the horizontal axis, where one chooses what to see above."""
    model = _new_figure(
        Figure(x=Side(ends=shown.x.ends), y=Side(names=("",)), marks=(), place=""),
        height=STRIP,
        y_range=Range1d(start=0.6, end=-0.6),
        min_border_left=20,
    )
    model.yaxis.visible = False
    chosen = RangeTool(x_range=seen, start_gesture="pan")
    chosen.overlay.fill_color = palette.CLASS_COLOURS["load"]
    chosen.overlay.fill_alpha = 0.18
    model.add_tools(chosen)
    return model


# ---------------------------------------------------------------- marks


def _source(mark: Any, shown: Figure, **columns: Any) -> ColumnDataSource:
    """The columns of a mark in the units of the axes, and what its tip tells besides."""
    data: dict[str, Any] = {}
    for name, values in columns.items():
        unit = shown.x.unit if name in ("x", "left", "right") else shown.y.unit
        scaled = np.asarray(values, float) * unit
        data[name] = scaled.astype(np.float32) if len(scaled) > MANY else scaled.tolist()
    for name, values_of_tip in mark.more.items():
        data[name] = values_of_tip.codes if isinstance(values_of_tip, Coded) else values_of_tip
    return ColumnDataSource(data)


def _hover(model: Drawn, mark: Mark, drawn: Any) -> None:
    """Tell about what is below the pointer."""
    formatters: dict[str, Any] = {
        f"@{name}": CustomJSHover(
            args={"names": list(column_values.names)}, code="return names[value]"
        )
        for name, column_values in mark.more.items()
        if isinstance(column_values, Coded)
    }
    tool = HoverTool(renderers=[drawn], tooltips=mark.tip, formatters=formatters, visible=False)
    model.add_tools(tool)


def _tagged(drawn: Any, colour: str, tag: str) -> None:
    """Let the page paint what has no colour of its own."""
    if not colour:
        drawn.glyph.tags = [tag]


def _draw_line(model: Drawn, shown: Figure, line: Any) -> None:
    source = _source(line, shown, x=line.x, y=line.y)
    colour, drawn = line.colour or palette.KERNEL, None
    if line.dash:
        look = {"line_color": colour, "line_dash": _DASHES[line.dash], "line_width": line.width}
        more = {"mode": "after"} if line.step else {}
        stroke = (model.step if line.step else model.line)("x", "y", source=source, **look, **more)
        _tagged(stroke, line.colour, "stroke")
    if line.marker:
        fill = None if line.hollow else colour
        thick = 2 if line.marker == "_" else 1
        drawn = model.scatter("x", "y", source=source, marker=_MARKERS[line.marker],
                             size=line.size + 2, fill_color=fill, line_color=colour,
                             line_width=thick, angle=line.turn, angle_units="deg")  # fmt: skip
    if line.tip and drawn is not None:
        _hover(model, line, drawn)


def _draw_bars(model: Drawn, shown: Figure, bars: Any) -> None:
    ends = {"left": bars.left, "right": bars.right, "bottom": bars.low, "top": bars.high}
    drawn = model.quad(
        left="left", right="right", bottom="bottom", top="top", name=bars.name or None,
        fill_alpha=bars.alpha or 1.0, source=_source(bars, shown, **ends),
        fill_color=bars.colour, line_color=bars.colour if bars.area else None, line_width=1,
    )  # fmt: skip
    if bars.tip:
        _hover(model, bars, drawn)


_SPAN_TIP = (
    "<div><b>@name</b><br>@left{0,0.000} to @right{0,0.000} \u00b5s"
    '<div style="white-space:pre-line">@details</div></div>'
)


def _draw_spans(model: Drawn, shown: Figure, spans: Any) -> None:
    """Stretches in one row; each is named while there is room for its name."""
    of, us = spans.spans, shown.x.unit
    starts = [span.left * us for span in of]
    source = ColumnDataSource(
        {
            "left": starts,
            "right": [span.right * us for span in of],
            "name": [span.name for span in of],
            "short": [span.short for span in of],
            "details": [span.details for span in of],
            "colour": [span.colour for span in of],
            "x": starts,
            "text": [""] * len(of),
        }
    )
    drawn = model.hbar(y=spans.y, left="left", right="right", height=0.8, fill_color="colour",
                      fill_alpha=0.45, line_color="colour", source=source)  # fmt: skip
    words = model.text(x="x", y=spans.y, text="text", source=source, text_font_size="12px",
                      text_align="center", text_baseline="middle")  # fmt: skip
    words.glyph.tags = ["text"]
    model.add_tools(HoverTool(renderers=[drawn], tooltips=_SPAN_TIP, visible=False))
    # Names the spans that are wide enough, in the middle of what is seen of them.
    fit = CustomJS(args={"source": source, "plot": model}, code=file_text("fit.js"))
    for change in ("start", "end"):
        model.x_range.js_on_change(change, fit)
    model.js_on_change("inner_width", fit)


def _draw_words(model: Drawn, shown: Figure, words: Any) -> None:
    source = _source(words, shown, x=words.x, y=words.y)
    source.data["text"] = list(words.texts)
    drawn = model.text(
        "x", "y", "text", source=source, x_offset=words.shift[0], y_offset=-words.shift[1],
        text_align=words.side, text_baseline="middle",
        text_font_size=f"{words.size * _PIXELS:.0f}px",
    )  # fmt: skip
    _tagged(drawn, words.colour, "text")
    behind_bars = words.side == "left" and bool(shown.y.names) and not shown.zoom
    if behind_bars and shown.x.ends is not None and not shown.x.log:
        least, shift = shown.x.ends[1] * shown.x.unit, words.shift[0]
        arguments = {"source": source, "plot": model, "range": model.x_range, "least": least}
        model.js_on_change(
            "inner_width", CustomJS(args={**arguments, "shift": shift}, code=file_text("room.js"))
        )
    if words.covers:
        drawn.glyph.background_fill_color = "white"
        drawn.glyph.tags = [*drawn.glyph.tags, "paper"]


#: Maps, and markers that are shaded by a value, are drawn in files alone.
_DRAWN: dict[type[Mark], Callable[[Drawn, Figure, Any], None]] = {
    LineMark: _draw_line,
    Bars: _draw_bars,
    Spans: _draw_spans,
    Words: _draw_words,
}

"""What all charts share: a figure that zooms, what is told about what is below the pointer."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from bokeh.core.types import ID
from bokeh.embed import json_item
from bokeh.models import Axis, CustomJSHover, Grid, HoverTool, Model, WheelZoomTool
from bokeh.plotting import figure
from bokeh.util.paths import bokehjs_path

from npusim.results.web.page import Chart

Figure = Any  # Bokeh makes its figures' methods up, which types cannot follow

#: What dragging does, by what zooms.
_TOOLS = {"width": "xpan", "both": "pan"}


@lru_cache(maxsize=1)
def _library() -> str:
    """The script that draws the charts, for a page to hold."""
    text = (Path(bokehjs_path()) / "js" / "bokeh.min.js").read_text(encoding="utf-8")
    return text.replace("</script", "<\\/script")


def chart(place: str, model: Model) -> Chart:
    """A model as data; its ids are counted anew, so that a page is the same every time."""
    text = json.dumps(json_item(model, ID(place)))
    ids: dict[str, str] = {}
    text = re.sub(r'"p\d+"', lambda found: ids.setdefault(found[0], f'"{place}-{len(ids)}"'), text)
    return Chart(place, json.loads(text), _library())


def new_figure(height: int, *, zoom: str = "width", **settings: Any) -> Figure:
    """A figure as wide as the page, moved by dragging and zoomed with Ctrl and the wheel.

    ``zoom`` is "width", "both" or "none".
    """
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


def hover(made: Figure, renderers: Sequence[Any], tooltip: str, **named: Any) -> None:
    """Tell about what is below the pointer; ``named`` formats columns by code."""
    formatters: dict[str, Any] = {
        f"@{name}": CustomJSHover(args=dict(args), code=code)
        for name, (args, code) in named.items()
    }
    made.add_tools(
        HoverTool(renderers=list(renderers), tooltips=tooltip, formatters=formatters, visible=False)
    )

"""A page that answers while figures move: sliders, times of layers, one layer's timeline.

It is served by Bokeh to this computer alone. What it shows and does comes from outside: see
``Live`` and ``serve``.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Sequence
from html import escape
from typing import Any, NamedTuple

from bokeh.application import Application
from bokeh.application.handlers.function import FunctionHandler
from bokeh.document import Document
from bokeh.layouts import column, row
from bokeh.models import InlineStyleSheet
from bokeh.models.widgets import Button, Div, Select, Slider, TextInput
from bokeh.server.server import Server

from npusim.base.errors import ArgumentError
from npusim.results.shown.figure import Bars, Figure
from npusim.results.writers.web.charts.base import build
from npusim.results.writers.web.files import file_text
from npusim.results.writers.web.templates import macro_text

#: Width of the sliders, in pixels.
_SIDE = 300


class Knob(NamedTuple):
    """A figure that moves: ``shown`` and ``texts`` of its values, of which ``own`` is the device's.

    ``texts`` are as a device file has them.
    """

    path: str
    shown: tuple[str, ...]
    texts: tuple[str, ...]
    own: int


class Acts(NamedTuple):
    """Actions of the page: a slider went to a text, a layer was chosen, a name was given to a file.

    ``step`` does a piece of work that is left and says whether there was any; ``save`` returns what
    is told. ``show`` is called after each of them.
    """

    move: Callable[[str, str], None]
    choose: Callable[[str], None]
    save: Callable[[str], str]
    step: Callable[[], bool]
    show: Callable[[Live], None]


class Live:
    """The page in a document; ``tell`` and ``draw`` change it."""

    def __init__(
        self,
        document: Document,
        title: str,
        knobs: Sequence[Knob],
        layers: list[Any],
        chosen: str,
        acts: Acts,
    ) -> None:
        self.document, self.acts = document, acts
        self.head, self.said = Div(sizing_mode="stretch_width"), Div(width=_SIDE)
        self.labels: dict[str, Div] = {}
        self.sliders = {knob.path: self._slider(knob) for knob in knobs}
        self.select = Select(title="timeline of", options=layers, value=chosen, width=_SIDE)
        self.select.on_change("value", self._chosen)
        self.name = TextInput(title="device file", value="mine.yaml", width=_SIDE)
        self.button = Button(label="Save as a device file", width=_SIDE)
        self.button.on_click(self._saved)
        self.places = {
            name: column(Div(text=""), sizing_mode="stretch_width")
            for name in ("layers", "timeline")
        }
        pairs = [part for name in self.sliders for part in (self.labels[name], self.sliders[name])]
        controls = column(*pairs, self.select, self.name, self.button, self.said)
        figures = column(
            *self.places.values(),
            sizing_mode="stretch_width", styles={"min-width": "340px", "flex": "1"},
        )  # fmt: skip
        below = row(controls, figures, sizing_mode="stretch_width", styles={"flex-wrap": "wrap"})
        # The answer stays in sight while a slider moves that is further down.
        self.head.styles = {
            "position": "sticky", "top": "0", "z-index": "9", "background": "var(--bg)",
        }  # fmt: skip
        page = column(self.head, below, sizing_mode="stretch_width")
        for part in (*self.sliders.values(), self.select, self.name, self.button):
            part.stylesheets = [InlineStyleSheet(css=file_text("widgets.css"))]
        document.title = title
        document.template = file_text("live.html")  # type: ignore[assignment] # text is taken too
        document.template_variables.update(
            style=file_text("style.css"), paint=file_text("paint.js")
        )
        document.add_root(page)
        self._working = False
        self.work()

    def _slider(self, knob: Knob) -> Slider:
        last = len(knob.shown) - 1
        slider = Slider(
            start=0, end=last, value=knob.own, step=1, show_value=False, title="", width=_SIDE,
            tooltips=False,
        )  # fmt: skip
        label = self.labels[knob.path] = Div(
            text=macro_text("knob", knob, knob.own, _SIDE), width=_SIDE
        )

        def moved(attr: str, old: int, new: int) -> None:
            label.text = macro_text("knob", knob, int(new), _SIDE)
            self.acts.move(knob.path, knob.texts[int(new)])
            self.work()

        slider.on_change("value", moved)
        return slider

    def _chosen(self, attr: str, old: str, new: str) -> None:
        self.acts.choose(new)
        self.work()

    def _saved(self) -> None:
        self.said.text = escape(self.acts.save(self.name.value))

    def work(self) -> None:
        """Show what is known, and do what is left piece by piece; others may move in between."""
        self.acts.show(self)
        if not self._working:
            self._working = True
            self.document.add_next_tick_callback(self._step)

    def _step(self) -> None:
        self._working = False
        if self.acts.step():
            self.work()

    def tell(self, lead: str, others: Sequence[str], problems: Sequence[str]) -> None:
        """The headline, what is said below it, and what is wrong."""
        self.head.text = macro_text("head", lead, others, problems)

    def draw(self, shown: Figure, title: str = "") -> None:
        """A figure in its place; of one that has as many marks as before the data change alone."""
        place, new = self.places[shown.place], build(shown)
        named = [mark for mark in shown.marks if isinstance(mark, Bars) and mark.name]
        entries = [(mark.name, mark.colour) for mark in named if any(mark.right > mark.left)]
        children: list[Any] = place.children
        head, *old = children
        head.text = macro_text("key", title, entries, shown.caption)
        before, after = (getattr(of, "renderers", ()) for of in (old[0] if old else None, new))
        if len(before) != len(after) or shown.view is not None:
            place.children = [head, new]
            return
        for mark, other in zip(before, after, strict=True):
            mark.data_source.data = dict(other.data_source.data)
        old[0].x_range.end = new.x_range.end


def serve(page: Callable[[Document], None], port: int, ready: Callable[[str], None]) -> None:
    """Serve ``page`` to this computer until an interrupt; it fills the document of each visitor.

    ``ready`` is told the address. Raises ``ArgumentError`` where the port is taken.
    """
    application = Application(FunctionHandler(page))
    # Who closes the page leaves work behind, of which nobody has to be told.
    logging.getLogger("bokeh.server.views.ws").setLevel(logging.ERROR)
    try:
        server = Server(
            {"/": application}, port=port, address="127.0.0.1",
            check_unused_sessions_milliseconds=1000, unused_session_lifetime_milliseconds=2000,
        )  # fmt: skip
    except OSError as error:
        raise ArgumentError(f"port {port} cannot be used ({error}); choose another") from error
    # An exception of the interrupt could be raised where nobody hears of it, such as a callback.
    loop: Any = server.io_loop
    loop = loop.asyncio_loop
    loop.add_signal_handler(signal.SIGINT, server.io_loop.stop)
    try:
        server.start()
        ready(f"http://localhost:{server.port}/")
        server.io_loop.start()
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        server.stop()

"""A figure as data: axes with their units, and marks; drawn as a file or on a page.

``npusim.results.writers.plots`` draws it with matplotlib, ``npusim.results.writers.web.charts``
with Bokeh. What a figure shows is said here alone, so that a new one is a function that returns a
``Figure``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, floor, log10
from typing import Any, NamedTuple, TypeAlias

from msgspec import Struct, field

#: Numbers of a mark: a sequence or an array of one axis.
Numbers: TypeAlias = Any

#: The colour of what is drawn as text is: dark on paper, and as the page has it.
INK = ""

#: Bars beyond which files of lines have dots for them, and pages round their places.
MANY = 500


class Coded(NamedTuple):
    """A column of names, each as its place in a table of them."""

    names: Sequence[str]
    codes: Numbers


class FigureAxis(Struct, frozen=True, kw_only=True):
    """Scale along a side of a figure.

    With ``names``, these stand at their ``places``, else at 0, 1 and so on. ``ends`` are the first
    and the last value shown, which may fall; a ``log`` axis has them. Data times ``unit`` is what
    the axis says. ``knots`` are values, and where these are drawn, for an axis of several scales.
    """

    label: str = ""
    names: Sequence[str] = ()
    places: Sequence[float] = ()
    log: bool = False
    ends: tuple[float, float] | None = None
    unit: float = 1.0
    knots: tuple[Sequence[float], Sequence[float]] | None = None

    @property
    def decades(self) -> list[float]:
        """Ticks of a logarithmic axis: 1, 2 and 5 of every power of ten, or 1 alone of many.

        Of more than five powers each second one has a tick, so that labels stay apart.
        """
        low, high = self.ends or (1.0, 1.0)
        powers = range(floor(log10(low)), ceil(log10(high)) + 1)
        steps = (1, 2, 5) if len(powers) <= 4 else (1,)
        apart = 2 if len(powers) > 5 else 1
        ticks = (step * 10.0**power for power in powers if power % apart == 0 for step in steps)
        return [tick for tick in ticks if low <= tick <= high]

    @staticmethod
    def text(value: float) -> str:
        """A value of an axis."""
        return f"{value:,.10g}"


class Mark(Struct, frozen=True, kw_only=True):
    """Base of all marks that are drawn: the key has its ``name`` if it has one.

    On a page ``tip`` is told about what is below the pointer: HTML in which ``@x`` is a column of
    the mark, or one of ``more``.
    """

    name: str = ""
    colour: str = INK
    tip: str = ""
    more: Mapping[str, Numbers | Coded] = field(default_factory=dict)


class LineMark(Mark, frozen=True, kw_only=True):
    """Points, lines between them (none if ``dash`` is ""), and a ``marker`` at each if given.

    Dashes and markers have matplotlib's names. ``step`` keeps each height until the next point.
    ``turn`` turns a triangle, in degrees against the clock. ``shades`` are what values are called
    and one for each point, which colours its marker.
    """

    x: Numbers
    y: Numbers
    dash: str = "-"
    marker: str = ""
    size: float = 6.0
    width: float = 1.5
    step: bool = False
    hollow: bool = False
    turn: float = 0.0
    shades: tuple[str, Sequence[float]] | None = None


class Bars(Mark, frozen=True, kw_only=True):
    """Rectangles from ``left`` to ``right`` and ``low`` to ``high``.

    Those of an ``area`` stand side by side without seams.
    """

    left: Numbers
    right: Numbers
    low: Numbers
    high: Numbers
    alpha: float | None = None
    area: bool = False


class Span(NamedTuple):
    """A stretch of an axis; ``short`` stands on it where it fits, else an ``upright`` name.

    On a page ``details`` are lines of its tooltip, below its name.
    """

    name: str
    short: str
    left: float
    right: float
    colour: str
    upright: bool = False
    details: str = ""


class Spans(Mark, frozen=True, kw_only=True):
    """Named stretches side by side, in the row at ``y``."""

    y: float
    spans: Sequence[Span]


class Words(Mark, frozen=True, kw_only=True):
    """Texts at points, which they begin at ("left"), end at ("right") or surround ("center").

    That is their ``side``; ``shift`` moves them across and up, in 1/72 of an inch. ``covers`` says
    that they hide the lines behind them.
    """

    x: Numbers
    y: Numbers
    texts: Sequence[str]
    side: str = "left"
    shift: tuple[float, float] = (0.0, 0.0)
    size: float = 9.0
    covers: bool = False


class Cells(Mark, frozen=True, kw_only=True):
    """A map of values, shape (rows, columns), at the places of names; where none is, it is hatched.

    ``ticks`` are those of the scale of colours: its values and their texts.
    """

    values: Numbers
    label: str = ""
    texts: Sequence[Sequence[str]] = ()
    ticks: tuple[Sequence[float], Sequence[str]] | None = None


class Key(NamedTuple):
    """A key besides that of named marks: lines that look so, where it is, and its title."""

    entries: Sequence[LineMark]
    at: str = "beside"
    title: str = ""


class Figure(Struct, frozen=True, kw_only=True):
    """Marks on two axes, drawn in their order.

    ``at`` says where the key of the marks is: "inside", "corner" (lower right), "beside", "above"
    or "below". Files have ``inches``, pages ``pixels`` of height and those of width that there are,
    at most ``widest`` if that is not 0; a page shows ``about`` to those who cannot see it, and
    ``caption`` below it. There the figure has the id ``place``; ``zoom`` is "width", "both" or "".
    ``toggles`` lets the key hide marks; ``jumps`` are buttons that show a stretch: name, first and
    last. ``view`` is the stretch that is seen first, and if there is one a strip below the figure
    has all of it. Of a ``bare`` figure no axes are drawn.
    """

    x: FigureAxis
    y: FigureAxis
    marks: Sequence[Mark]
    title: str = ""
    at: str = "inside"
    keys: Sequence[Key] = ()
    grid: bool = False
    bare: bool = False
    inches: tuple[float, float] = (7.0, 4.2)
    pixels: int = 380
    widest: int = 0
    place: str = "figure"
    about: str = ""
    caption: str = ""
    zoom: str = ""
    toggles: bool = False
    jumps: Sequence[tuple[str, float, float]] = ()
    view: tuple[float, float] | None = None

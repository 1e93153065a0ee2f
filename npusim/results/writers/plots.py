"""Figures on matplotlib Axes; the only module that imports matplotlib.

A figure is drawn on ``ax``, or on a new one of its own, and the Axes are returned. A new one is the
current one of pyplot, so that a notebook displays it and ``plt.show()`` finds it, but for what
``save_plot`` writes.
"""

# Matplotlib is imported when something is drawn, not with npusim.
# ruff: noqa: PLC0415

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from npusim.base.atomic_files import replacing
from npusim.base.errors import ArgumentError
from npusim.results.shown.figure import (
    MANY,
    Bars,
    Cells,
    Figure,
    FigureAxis,
    Key,
    LineMark,
    Mark,
    Spans,
    Words,
)

if TYPE_CHECKING:
    import matplotlib.axes

#: Named here for all modules: only what draws imports matplotlib.
Axes: TypeAlias = "matplotlib.axes.Axes"

#: Colour of words and of what is drawn as they are.
TEXT = "#222222"

#: Names along the bottom from which they are turned, and most names that are written out.
_TURNED, _LABELS = 8, 24
#: Share of the width that a character takes, and the least of upright words.
_CHARACTER, _UPRIGHT = 0.0085, 0.012
#: Characters of upright words that stand beside a row of a timeline.
_UPRIGHT_FIT = 4.3
#: Share of the width between two ticks of an axis of several scales, at least.
_TICK_SHARE = 0.045

_SCALE = "viridis_r"


def figure_bytes(ax: Axes, kind: str) -> bytes:
    """The figure of ``ax`` as a ``"png"`` or ``"svg"`` file, the same bytes every time."""
    import matplotlib as mpl
    from matplotlib.figure import Figure as Drawn

    # Of a subfigure, ``figure`` is the whole one. ``get_figure(root=True)`` needs matplotlib 3.10.
    figure = getattr(ax.figure, "figure", None)
    if not isinstance(figure, Drawn):
        raise ArgumentError("figure_bytes: the Axes is on no figure; draw it on one first")
    target = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    with mpl.rc_context({"svg.hashsalt": "npusim"}):
        figure.savefig(target, format=kind, dpi=150, metadata=metadata)
    return target.getvalue()


def save_plot(path: str | Path, draw: Callable[..., Axes], *arguments: Any, **options: Any) -> None:
    """Write what ``draw`` draws as the .png or .svg file that ``path`` names; pyplot shows nothing.

    Raises ``ArgumentError`` for another suffix.
    """
    target = Path(path)
    kind = target.suffix[1:].lower()
    if kind not in ("png", "svg"):
        raise ArgumentError(f"plot: {str(path)!r} must end in .png or .svg")
    before = _SHOWN.set(False)
    try:
        drawn = figure_bytes(draw(*arguments, **options), kind)
    finally:
        _SHOWN.reset(before)
    with replacing(target) as part:
        part.write_bytes(drawn)


#: Whether pyplot shows new figures.
_SHOWN: ContextVar[bool] = ContextVar("shown", default=True)


def _new_figure(inches: tuple[float, float], shown: bool = True) -> Any:
    from matplotlib.figure import Figure as Drawn

    make: Callable[..., Drawn] = Drawn
    if shown and _SHOWN.get():
        from matplotlib import pyplot

        make = pyplot.figure
    return make(figsize=inches, layout="constrained", facecolor="white")


def draw(figure: Figure, ax: Axes | None = None) -> Axes:
    """Draw a figure on ``ax``, or on a new one."""
    axes: Axes = _new_figure(figure.inches).add_subplot() if ax is None else ax
    for which, axis in (("x", figure.x), ("y", figure.y)):
        _scale(axes, which, axis)
    for mark in figure.marks:
        _DRAWN[type(mark)](axes, figure, mark)
    for which, axis in (("x", figure.x), ("y", figure.y)):
        _label(axes, which, axis)
    if figure.grid:
        axes.grid(color="#e4e4e4", linewidth=0.7, zorder=0)
        axes.set_axisbelow(True)
    if figure.title:
        axes.set_title(figure.title, loc="left", fontsize=10)
    _draw_keys(axes, figure)
    if figure.bare:
        axes.set_axis_off()
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(labelsize=9, colors=TEXT)
    return axes


def draw_grid(
    figures: Sequence[Figure],
    across: int,
    inches: tuple[float, float],
    title: str = "",
    labels: tuple[str, str] = ("", ""),
) -> Axes:
    """Draw figures side by side, ``across`` of them in a row; the Axes of the first is returned.

    ``labels`` are those of all, below and on the left. pyplot shows nothing.
    """
    rows = -(-len(figures) // across)
    drawn = _new_figure(inches, shown=False)
    grid: list[Axes] = drawn.subplots(rows, across, squeeze=False).ravel().tolist()
    for ax, figure in zip(grid, figures, strict=False):
        draw(figure, ax)
    for ax in grid[len(figures) :]:
        ax.set_axis_off()
    drawn.suptitle(title, fontsize=11)
    drawn.supxlabel(labels[0], fontsize=10)
    drawn.supylabel(labels[1], fontsize=10)
    return grid[0]


# ---------------------------------------------------------------- axes


def _scale(ax: Axes, which: str, axis: FigureAxis) -> None:
    """Set the scale of an axis, and its ends where they are known."""
    if axis.log:
        ax.set(**{f"{which}scale": "log"})
    if axis.knots is not None:
        real, drawn = axis.knots
        forth, back = (lambda v: np.interp(v, real, drawn)), (lambda v: np.interp(v, drawn, real))
        ax.set_xscale("function", functions=(forth, back))
    if axis.ends is not None:
        ax.set(**{f"{which}lim": axis.ends})


def _label(ax: Axes, which: str, axis: FigureAxis) -> None:
    """Say what an axis is of, and write its ticks."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

    side: Any = getattr(ax, f"{which}axis")
    side.set_label_text(axis.label)
    if axis.names:
        step = -(-len(axis.names) // _LABELS) if which == "x" else 1
        turned = which == "x" and max(map(len, axis.names)) * len(axis.names) > 10 * _TURNED
        places = axis.places or range(len(axis.names))
        side.set_ticks(places[::step], axis.names[::step], rotation=45 * turned)
        return
    if axis.log and axis.ends is not None:
        side.set_major_locator(FixedLocator(axis.decades))
        side.set_minor_formatter(NullFormatter())
    elif axis.knots is not None and axis.ends is not None:
        side.set_major_locator(FixedLocator(_ticks(ax, axis.ends)))
    side.set_major_formatter(FuncFormatter(lambda value, _: axis.text(value)))


def _ticks(ax: Axes, ends: tuple[float, float]) -> list[float]:
    """Round values that are drawn far enough from one another on an axis of several scales."""
    from matplotlib.ticker import MaxNLocator

    ticks: list[float] = []
    for tick in MaxNLocator(60).tick_values(*ends):
        near = ticks and _share(ax, ticks[-1], tick) <= _TICK_SHARE
        if ends[0] <= tick <= ends[1] and not near:
            ticks.append(float(tick))
    return ticks


def _share(ax: Axes, left: float, right: float) -> float:
    """The part of the width of ``ax`` that a stretch takes."""
    ends = ax.transData.transform([(left, 1.0), (right, 1.0)])[:, 0]
    sides = ax.transAxes.transform([(0.0, 0.0), (1.0, 0.0)])[:, 0]
    return float((ends[1] - ends[0]) / (sides[1] - sides[0]))


# ---------------------------------------------------------------- marks


def _draw_line(ax: Axes, figure: Figure, line: Any) -> None:
    x, y = np.asarray(line.x) * figure.x.unit, np.asarray(line.y) * figure.y.unit
    ax.plot(x, y, label=line.name or None, **_look(line))
    if line.shades is not None:
        what, values = line.shades
        points = ax.scatter(x, y, line.size**2 / 2, values, cmap=_SCALE, zorder=5)
        ax.figure.colorbar(points, ax=ax, pad=0.02).set_label(what, fontsize=9)


def _look(line: LineMark) -> dict[str, Any]:
    """Keywords of a line of matplotlib."""
    colour = line.colour or TEXT
    return {
        "color": colour,
        "linestyle": line.dash or "none",
        "linewidth": line.width,
        "marker": (3, 0, line.turn) if line.turn else line.marker or None,
        "markersize": line.size,
        "markerfacecolor": "none" if line.hollow else colour,
        "drawstyle": "steps-post" if line.step else "default",
        "zorder": 3,
    }


def _draw_bars(ax: Axes, figure: Figure, bars: Any) -> None:
    from matplotlib.collections import PolyCollection

    left, right = (np.asarray(values, float) * figure.x.unit for values in (bars.left, bars.right))
    low, high = (np.broadcast_to(values, left.shape) for values in (bars.low, bars.high))
    corners = ((left, low), (right, low), (right, high), (left, high))
    boxes: Any = np.stack([np.stack(corner, axis=-1) for corner in corners], axis=1)
    look: dict[str, Any] = {"facecolor": bars.colour or TEXT, "linewidth": 0}
    if bars.area:
        look |= {"edgecolor": look["facecolor"], "linewidth": 0.3}
    drawn = PolyCollection(boxes, label=bars.name or "", alpha=bars.alpha, zorder=2, **look)
    drawn.set_rasterized(len(left) > MANY)
    ax.add_collection(drawn, autolim=False)


def _draw_spans(ax: Axes, figure: Figure, spans: Any) -> None:
    first, last = sorted(ax.get_xlim())
    for span in spans.spans:
        start = span.left * figure.x.unit
        end = span.right * figure.x.unit
        ax.broken_barh([(start, end - start)], (spans.y - 0.4, 0.8), color=span.colour, alpha=0.45)
        _name_span(ax, span, spans.y, max(start, first), min(end, last))


def _name_span(ax: Axes, span: Any, y: float, start: float, end: float) -> None:
    """Name a span in the middle of what is seen of it, ``start`` to ``end``, if there is room."""
    room = _share(ax, start, end) if start < end else 0.0
    middle = ax.transData.transform([(start, 0), (end, 0)]).mean(axis=0)
    x = float(ax.transData.inverted().transform(middle)[0])
    if room > _CHARACTER * len(span.short):
        ax.text(x, y, span.short, ha="center", va="center", fontsize=9, color=TEXT)
    elif span.upright and room > _UPRIGHT:
        bottom, top = ax.get_ylim()
        fits = len(span.name) < _UPRIGHT_FIT * abs(bottom - top)
        name = span.name if fits else f"{span.short}, {span.name.rpartition(', ')[2]}"
        ax.text(
            x,
            y + 0.6,
            name,
            fontsize=8,
            color=TEXT,
            rotation=90,
            ha="center",
            va="top",
            zorder=4,
        )


def _draw_words(ax: Axes, figure: Figure, words: Any) -> None:
    place: dict[str, Any] = {"xytext": words.shift, "textcoords": "offset points"}
    if words.covers:
        place["bbox"] = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none"}
    for x, y, text in zip(words.x, words.y, words.texts, strict=True):
        point = x * figure.x.unit, y * figure.y.unit
        ax.annotate(text, point, ha=words.side, va="center", fontsize=words.size,
                    color=words.colour or TEXT, annotation_clip=False, **place)  # fmt: skip


def _draw_cells(ax: Axes, figure: Figure, cells: Any) -> None:
    values = np.asarray(cells.values, float)
    mesh = ax.imshow(values, aspect="auto", cmap=_SCALE, origin="lower")
    for row, column in np.argwhere(np.isnan(values)).tolist():
        corners = ([column + side / 2 for side in (-1, 1, 1, -1)],
                   [row + side / 2 for side in (-1, -1, 1, 1)])  # fmt: skip
        ax.fill(*corners, fill=False, hatch="xxx", edgecolor="#c8c8c8", lw=0)
    middle = (np.nanmin(values) + np.nanmax(values)) / 2
    for row, line in enumerate(cells.texts):
        for column, text in enumerate(line):
            colour = "white" if values[row, column] > middle else "black"
            ax.text(column, row, text, ha="center", va="center", fontsize=7, color=colour)
    bar = ax.figure.colorbar(mesh, ax=ax, pad=0.02)
    bar.set_label(cells.label, fontsize=9)
    if cells.ticks is not None:
        bar.set_ticks(list(cells.ticks[0]), labels=list(cells.ticks[1]))


_DRAWN: dict[type[Mark], Callable[[Axes, Figure, Any], None]] = {
    LineMark: _draw_line,
    Bars: _draw_bars,
    Spans: _draw_spans,
    Words: _draw_words,
    Cells: _draw_cells,
}


# ---------------------------------------------------------------- keys


def _draw_keys(ax: Axes, figure: Figure) -> None:
    """The key of the marks that have names, then the others beside it."""
    handles, _ = ax.get_legend_handles_labels()
    if handles:
        legend = _legend(ax, handles, Key((), figure.at))
    for key in figure.keys:
        if handles:
            ax.add_artist(legend)
        _legend(ax, [_sample(ax, entry) for entry in key.entries], key)


def _sample(ax: Axes, line: LineMark) -> Any:
    """An entry of a key: a line or marker that looks so, and is not on the plot itself."""
    (drawn,) = ax.plot([], [], label=line.name, **_look(line))
    drawn.remove()
    return drawn


#: Where a key stands: keywords of a legend.
_PLACES: dict[str, dict[str, Any]] = {
    "inside": {},
    "corner": {"loc": "lower right"},
    "beside": {"loc": "upper left", "bbox_to_anchor": (1, 1)},
    "above": {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.2},
    "below": {"loc": "upper left", "bbox_to_anchor": (0, 0), "alignment": "left"},
}


def _legend(ax: Axes, handles: Sequence[Any], key: Key) -> Any:
    from matplotlib.transforms import ScaledTranslation

    place = dict(_PLACES[key.at])
    if key.at in ("above", "below"):
        longest = max(len(str(handle.get_label())) for handle in handles)
        place["ncols"] = max(1, min(len(handles), 100 // (longest + 7)))
    if key.at == "below":  # at the same distance from the label of any height of the plot
        shift = ScaledTranslation(0, -42 / 72, ax.figure.dpi_scale_trans)
        place["bbox_transform"] = ax.transAxes + shift
    return ax.legend(handles=handles, title=key.title or None, fontsize=8.5, title_fontsize=8.5,
                     frameon=False, **place)  # fmt: skip

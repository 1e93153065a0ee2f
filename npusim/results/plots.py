"""Plots of a call on matplotlib Axes; the only module that imports matplotlib.

Each function draws on ``ax``, or on a new figure of its own, and returns the Axes. That figure is
the current one of pyplot, so that a notebook displays it and ``plt.show()`` finds it, but for what
``save_plot`` writes.
"""

# Matplotlib is imported when something is drawn, not with npusim.
# ruff: noqa: PLC0415

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from npusim.base.errors import ArgumentError
from npusim.base.written import replacing
from npusim.results import gantt, metrics, palette
from npusim.results.lines import us_text
from npusim.results.record import Record
from npusim.results.roofline import Point, Roofs, point
from npusim.results.roofline import roofs as roofs_of
from npusim.results.tables import call_timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Share of the window below which a wait is too narrow for its hatch to be seen.
HATCHED_FROM = 0.004

#: Share of the kernels' time that a launch takes in a timeline at most.
LAUNCH_SHARE = 0.03
#: Share of the width between two ticks, at least.
_TICK_SHARE = 0.045

#: Colour of words.
TEXT = "#222222"
_POINT_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")
_GM_MARK, _MEMORY_MARK = "o", "D"
_WAIT_FACE = "#ededed"
_WAIT_EDGE = "#8a8a8a"


def figure_bytes(ax: Axes, kind: str) -> bytes:
    """The figure of ``ax`` as a ``"png"`` or ``"svg"`` file, the same bytes every time."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # Of a subfigure, ``figure`` is the whole one. ``get_figure(root=True)`` needs matplotlib 3.10.
    figure = getattr(ax.figure, "figure", None)
    if not isinstance(figure, Figure):
        raise ArgumentError("figure_bytes: the Axes is on no figure; draw it on one first")
    target = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    with mpl.rc_context({"svg.hashsalt": "npusim"}):
        figure.savefig(target, format=kind, dpi=150, metadata=metadata)
    return target.getvalue()


def save_plot(path: str | Path, draw: Callable[..., Axes], *given: Any, **options: Any) -> None:
    """Write what ``draw`` draws as the .png or .svg file that ``path`` names; pyplot shows nothing.

    Raises ``ArgumentError`` for another suffix.
    """
    target = Path(path)
    kind = target.suffix[1:].lower()
    if kind not in ("png", "svg"):
        raise ArgumentError(f"plot: {str(path)!r} must end in .png or .svg")
    before = _SHOWN.set(False)
    try:
        drawn = figure_bytes(draw(*given, **options), kind)
    finally:
        _SHOWN.reset(before)
    with replacing(target) as part:
        part.write_bytes(drawn)


#: Whether pyplot shows new figures.
_SHOWN: ContextVar[bool] = ContextVar("shown", default=True)


def new_axes(ax: Axes | None, width: float, height: float, shown: bool = True) -> Axes:
    """``ax``, or the Axes of a new figure of ``width`` x ``height`` inches."""
    from matplotlib.figure import Figure

    if ax is not None:
        return ax
    make: Callable[..., Figure] = Figure
    if shown and _SHOWN.get():
        from matplotlib import pyplot

        make = pyplot.figure
    return make(figsize=(width, height), layout="constrained", facecolor="white").add_subplot()


def tidy(ax: Axes) -> None:
    """The look that all plots share."""
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    ax.tick_params(labelsize=9, colors=TEXT)


# ---------------------------------------------------------------- timeline


def plot_timeline(
    result: Record,
    ax: Axes | None = None,
    *,
    cores: Sequence[str] | None = None,
    window: tuple[float, float] | None = None,
) -> Axes:
    """A row per core and pipe over time in us; ``window`` (us of the call) zooms in.

    Raises ArgumentError for a core that did not run, a window that is empty or outside the
    call, or a timeline that was not kept.
    """
    call = call_timeline(result.operator, result.runs)
    first, last = gantt.checked_window(result.time_us, window)
    chosen = gantt.default_cores(result.runs) if cores is None else cores
    tracks = gantt.tracks(call.rows, chosen)
    ax = new_axes(ax, 11, 1.7 + 0.27 * max(4, len(tracks)))
    view = gantt.View(first, last, 1e6 / result.device.clock_hz)
    scale = _shortened(ax, result, view)
    work, waits = gantt.boxes(call.rows, tracks, view)
    legend = _draw_slices(ax, work) | _draw_waits(ax, waits, view)
    _mark_kernels(ax, result, view, scale)
    ax.set_xlim(first, last)
    ax.set_ylim(len(tracks) - 0.4, -0.6)
    ax.set_yticks(range(len(tracks)), [track.label for track in tracks])
    dense = any(view.dense(call.rows, track) for track in tracks)
    ax.set_xlabel("time (us, launches included but drawn short)" + (_DENSE_NOTE if dense else ""))
    ax.set_ylabel("core and pipe")
    tidy(ax)
    _legend_below(ax, list(legend.values()))
    return ax


_DENSE_NOTE = "; height of a bar: share of that time, blank: before or after work"


def _legend_below(ax: Axes, handles: list[Any]) -> None:
    """A legend at a fixed distance below the axis label, whatever the height of the plot."""
    from matplotlib.transforms import ScaledTranslation

    below = ScaledTranslation(0, -42 / 72, ax.figure.dpi_scale_trans)
    columns = len(handles) if len(handles) <= 7 else (len(handles) + 1) // 2
    ax.legend(
        handles=handles,
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        bbox_transform=ax.transAxes + below,
        ncols=max(1, columns),
        fontsize=9,
        frameon=False,
    )


def _draw_slices(ax: Axes, batches: Mapping[str, gantt.Boxes]) -> dict[str, Any]:
    """One batch of bars per class of instruction; returns legend handles by class."""
    from matplotlib.collections import PolyCollection
    from matplotlib.patches import Patch

    legend: dict[str, Any] = {}
    for name, boxes in batches.items():
        colour, verts = palette.CLASS_COLOURS[name], cast("Any", boxes)
        bars = PolyCollection(verts, facecolor=colour, linewidth=0, rasterized=True, zorder=3)
        ax.add_collection(bars, autolim=False)
        legend[name] = Patch(facecolor=colour, label=name)
    return legend


def _draw_waits(ax: Axes, batches: Mapping[str, gantt.Boxes], view: gantt.View) -> dict[str, Any]:
    """Grey bars before the instructions that waited, hatched by reason where wide enough."""
    from matplotlib.collections import PolyCollection
    from matplotlib.patches import Patch

    legend: dict[str, Any] = {}
    for reason, boxes in batches.items():
        hatch = palette.REASON_HATCHES.get(reason, "")
        wide = boxes[:, 1, 0] - boxes[:, 0, 0] >= HATCHED_FROM * (view.last - view.first)
        for part, pattern in ((~wide, ""), (wide, hatch)):
            verts: Any = boxes[part]
            bars = PolyCollection(verts, facecolor=_WAIT_FACE, linewidth=0, rasterized=True)
            bars.set_edgecolor(_WAIT_EDGE)
            if pattern:
                bars.set_hatch(pattern)
            ax.add_collection(bars, autolim=False)
        label = f"waits: {reason}"
        legend[label] = Patch(facecolor=_WAIT_FACE, edgecolor=_WAIT_EDGE, hatch=hatch, label=label)
    return legend


class _Scale:
    """The time axis with launches drawn short, so that they do not fill the plot.

    Each takes at most ``LAUNCH_SHARE`` of the kernels' time; ``share`` is of the width of the plot.
    """

    def __init__(self, result: Record, view: gantt.View) -> None:
        kernels = max(1, sum(run.cycles for run in result.runs))
        real, drawn = [0], [0.0]
        for run in result.runs:
            real += [real[-1] + run.launch_cycles, real[-1] + run.launch_cycles + run.cycles]
            drawn += [drawn[-1] + min(run.launch_cycles, LAUNCH_SHARE * kernels)]
            drawn += [drawn[-1] + run.cycles]
        us = view.us_per_cycle
        far = 1.0 + real[-1] * us  # beyond the call time goes on as it is
        self.real = np.array([-far, *(us * at for at in real), real[-1] * us + far])
        self.drawn = np.array([-far, *(us * at for at in drawn), drawn[-1] * us + far])
        self.first, self.last = self.to_drawn((view.first, view.last))

    def to_drawn(self, us: Any) -> Any:
        """Where times are drawn."""
        return np.interp(us, self.real, self.drawn)

    def to_real(self, drawn: Any) -> Any:
        """The inverse of ``to_drawn``."""
        return np.interp(drawn, self.drawn, self.real)

    def share(self, left: float, right: float) -> float:
        """The width of a span of time."""
        ends = self.to_drawn((left, right))
        return float((ends[1] - ends[0]) / (self.last - self.first))

    def ticks(self, times: Iterable[float]) -> list[float]:
        """Those of ``times`` that are drawn far enough from one another to be written."""
        kept: list[float] = []
        for time in times:
            if not kept or self.share(kept[-1], time) > _TICK_SHARE:
                kept.append(float(time))
        return kept


def _shortened(ax: Axes, result: Record, view: gantt.View) -> _Scale:
    """Give ``ax`` a time axis with short launches; ticks say the time."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

    scale = _Scale(result, view)
    ax.set_xscale("function", functions=(scale.to_drawn, scale.to_real))
    finer = max(1.0, (view.last - view.first) / (scale.last - scale.first))
    times = MaxNLocator(min(60, round(11 * finer))).tick_values(view.first, view.last)
    inside = [time for time in times if view.first <= time <= view.last]
    ax.xaxis.set_major_locator(FixedLocator(scale.ticks(inside)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    return scale


def _mark_kernels(ax: Axes, result: Record, view: gantt.View, drawn: _Scale) -> None:
    """Shade launches, draw where kernels start, and name those wide enough to be named."""
    scale = view.us_per_cycle
    starts, names = metrics.kernel_starts(result.runs), metrics.titles(result.runs)
    for run, name, start in zip(result.runs, names, starts, strict=True):
        begin, end = start * scale, (start + run.cycles) * scale
        launch = (start - run.launch_cycles) * scale, begin
        ax.axvspan(*launch, color="#f6e7c8", lw=0, zorder=0)
        ax.axvline(begin, color=TEXT, lw=0.8, ls=":", zorder=1)
        named = _name_span(ax, view, drawn, (begin, end), name)
        text = f"launch {us_text(launch[1] - launch[0])} us" if named else name
        if run.launch_cycles or not named:
            _name_upright(ax, view, drawn, launch, text)


def _name_span(
    ax: Axes, view: gantt.View, drawn: _Scale, span: tuple[float, float], name: str
) -> bool:
    """Write ``name`` above the visible part of a span (us), if it is wide enough; whether it is."""
    left, right = max(span[0], view.first), min(span[1], view.last)
    fits = left < right and drawn.share(left, right) > 0.0085 * len(name)
    if fits:
        ax.annotate(
            name,
            (drawn.to_real(drawn.to_drawn((left, right)).mean()), -0.6),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            fontsize=9,
            color=TEXT,
            annotation_clip=False,
        )
    return fits


def _name_upright(
    ax: Axes, view: gantt.View, drawn: _Scale, launch: tuple[float, float], name: str
) -> None:
    """Write ``name`` into a launch: its time, or the kernel after it that is too short."""
    left, right = max(launch[0], view.first), min(launch[1], view.last)
    if left < right and drawn.share(left, right) > 0.012:
        middle = (drawn.to_real(drawn.to_drawn((left, right)).mean()), 0.5)
        transform = ax.get_xaxis_transform()
        ax.text(*middle, name, transform=transform, rotation=90, ha="center", va="center",
                fontsize=8, color=TEXT, zorder=4)  # fmt: skip


# ---------------------------------------------------------------- roofline


def plot_roofline(result: Record, ax: Axes | None = None) -> Axes:
    """Executed FLOP/s against FLOP/B, log-log, with the roofs of the cores the largest kernel used.

    Operations on padding are executed, too. A circle counts the bytes cores moved from and to GM
    (compare with the L2 roof), a diamond the bytes of main memory (compare with its roof), a bar
    the kernel's closed-form bound.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    ax = new_axes(ax, 8, 5)
    ax.set_xscale("log")
    ax.set_yscale("log")
    working = [run for run in result.runs if run.macs and run.cycles]
    points = [point(result.device, run, run.name) for run in working]
    roofs = roofs_of(result.device, result.runs, result.dtype, points)
    _draw_roofs(ax, roofs)
    names = dict.fromkeys(one.name for one in points)
    colours = dict(zip(names, cycle(_POINT_COLOURS), strict=False))
    for one in points:
        _draw_point(ax, one, colours[one.name])
    ax.set_xlim(roofs.left, roofs.right)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    ax.set_xlabel("arithmetic intensity (FLOP per byte)")
    ax.set_ylabel("executed performance (TFLOP/s)")
    ax.grid(True, which="major", color="#e4e4e4", lw=0.6, zorder=0)
    tidy(ax)
    silent = [run.name for run in result.runs if not run.macs]
    if silent:
        note = "no multiply-adds, not shown: " + ", ".join(dict.fromkeys(silent))
        ax.set_title(note, fontsize=9, color="#666666", loc="left")
    if points:
        _roofline_legend(ax, points, colours)
    return ax


def _draw_roofs(ax: Axes, roofs: Roofs) -> None:
    for name, rate in roofs.rates.items():
        style = "-" if name == "L2 read" else "--"
        ridge = roofs.top / rate
        ends = [roofs.left, ridge], [roofs.left * rate, roofs.top]
        ax.plot(*ends, color="#555555", ls=style, lw=1.4, zorder=2)
        label = f"{name} {rate * 1000:,.0f} GB/s"
        _label_roof(ax, label, (roofs.left * 1.15, roofs.left * 1.15 * rate), above=style == "-")
    peak, top = roofs.peak, roofs.top
    if peak is not None:
        first = min(top / rate for rate in roofs.rates.values())
        ax.plot([first, roofs.right], [top, top], color="#555555", lw=1.4, zorder=2)
        text = f"{peak.dtype} peak of {peak.cores} cores {top:,.3g} TFLOP/s"
        at = roofs.right, top
        ax.annotate(text, at, xytext=(-4, 4), textcoords="offset points", ha="right", fontsize=9)


def _label_roof(ax: Axes, label: str, at: tuple[float, float], above: bool) -> None:
    """Write along a slanted roof: equal slopes on log axes, so the angle is set when drawn."""
    x, y = at[0], at[1] * (1.06 if above else 0.94)
    ax.text(
        x,
        y,
        label,
        rotation=np.rad2deg(np.arctan2(y, x)),
        rotation_mode="anchor",
        transform_rotates_text=True,
        va="bottom" if above else "top",
        fontsize=9,
    )


def _draw_point(ax: Axes, point: Point, colour: str) -> None:
    """A circle and a diamond at the attained height, a bar at the bound above the circle."""
    levels = ((point.per_gm_byte, _GM_MARK), (point.per_memory_byte, _MEMORY_MARK))
    seen = [(at, marker) for at, marker in levels if at]
    xs = [at for at, _ in seen]
    ax.plot(xs, [point.attained] * len(xs), color=colour, lw=1, zorder=3)
    for at, marker in seen:
        ax.plot([at], [point.attained], marker, color=colour, ms=8, mec="white", zorder=4)
    if point.bounded is not None:
        ax.plot(xs[:1] * 2, [point.attained, point.bounded], ":", color=colour, lw=1.2, zorder=3)
        ax.plot(xs[:1], [point.bounded], "_", color=colour, ms=16, mew=2.2, zorder=4)


def _roofline_legend(ax: Axes, points: Sequence[Point], colours: Mapping[str, str]) -> None:
    """The kernels by colour, then what the marks mean, as far as they are drawn."""
    from matplotlib.lines import Line2D

    style: dict[str, Any] = {"color": "#555555", "ls": "none"}
    marks: tuple[tuple[str, dict[str, Any], str, str], ...] = (
        (_GM_MARK, {}, "attained, bytes of GM moved by cores", "per_gm_byte"),
        (_MEMORY_MARK, {}, "attained, bytes of main memory", "per_memory_byte"),
        ("_", {"ms": 12, "mew": 2.2}, "closed-form bound", "bounded"),
    )
    handles = [Line2D([], [], color=colour, lw=5, label=name) for name, colour in colours.items()]
    handles += [
        Line2D([], [], marker=marker, label=label, **style, **size)
        for marker, size, label, fact in marks
        if any(getattr(point, fact) for point in points)
    ]
    ax.legend(handles=handles, loc="lower right", fontsize=9, frameon=False)

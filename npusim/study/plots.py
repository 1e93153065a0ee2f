"""Plots of a sweep: lines, a heat map, and what no other point beats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from npusim.base.errors import ArgumentError
from npusim.base.quantities import parse_quantity
from npusim.device.catalog import load_device
from npusim.device.config import figures
from npusim.results import palette
from npusim.results.lines import GOAL_TITLES, us_text
from npusim.results.plots import new_axes, tidy
from npusim.study.space import Study
from npusim.study.subject import DEVICE, Row, Setting

if TYPE_CHECKING:
    from matplotlib.axes import Axes


KINDS = ("line", "heat", "pareto")

#: Values on an axis from which two of them make a heat map rather than lines.
_MANY = 4


class Drawn(NamedTuple):
    """A study, and its settings that have a time, with it, in microseconds."""

    study: Study
    times: Sequence[tuple[Setting, float]]


def draw(drawn: Drawn, x: str, y: str, kind: str, ax: Axes | None) -> Axes:
    """``SweepResult.plot``: the names that are not given are the varied ones, in their order."""
    names = sorted(drawn.study.varied, key=lambda name: -len(_values(drawn, name)))
    if not names or not drawn.times:
        raise ArgumentError("nothing to draw: no point that was varied has a time")
    lengths = [len(_values(drawn, name)) for name in names]
    heat = len(names) == 2 and min(lengths) >= _MANY
    chosen = kind or ("heat" if heat else "line")
    if chosen not in KINDS:
        raise ArgumentError(f"kind is {kind!r}; it is one of {', '.join(KINDS)}")
    across = x or next(name for name in names if name != y)
    if chosen == "heat":
        down = y or next((name for name in names if name != across), "")
        if not down:
            raise ArgumentError("a heat map needs two varied names; use kind='line'")
        return _heat(drawn, across, down, ax)
    axes = new_axes(ax, 7.0, 4.2)
    (_line if chosen == "line" else _pareto)(drawn, across, axes)
    axes.set_ylabel("time, us")
    axes.set_title(title(drawn.study), loc="left", fontsize=10)
    tidy(axes)
    return axes


def _values(drawn: Drawn, name: str) -> list[str]:
    """The texts of a name, in their order."""
    points = drawn.study.points()
    return list(dict.fromkeys(setting[name] for setting in points if name in setting))


def _numbers(drawn: Drawn, name: str, texts: Sequence[str]) -> list[float] | None:
    """Texts as numbers in base units; None where one is a word."""
    device = load_device(drawn.study.fixed[DEVICE]) if DEVICE in drawn.study.fixed else None
    figure = figures(device).get(name) if device is not None else None
    try:
        if device is None or figure is None:
            return [float(text) for text in texts]
        values = [parse_quantity(text, figure.kind, device.clock_hz) for text in texts]
        return [float(value) for value in values if not isinstance(value, tuple)]
    except ValueError:
        return None


def _line(drawn: Drawn, x: str, ax: Axes) -> None:
    texts = _values(drawn, x)
    # Powers of two lie evenly, and words have no distances.
    where = {text: i for i, text in enumerate(texts)}
    others = sorted(
        (name for name in drawn.study.varied if name != x),
        key=lambda name: -len(_values(drawn, name)),
    )
    lines: dict[tuple[str, ...], list[tuple[int, float]]] = {}
    for setting, time in drawn.times:
        line = tuple(setting.get(name, "") for name in others)
        lines.setdefault(line, []).append((where[setting[x]], time))
    looks = _looks(drawn, others)
    for i, (line, points) in enumerate(lines.items()):
        wider = 2 * palette.covered(lines.values(), i)
        look: dict[str, Any] = {"marker": "o", "color": palette.scale(1)[0]}
        for values, text in zip(looks, line, strict=True):
            look |= values.get(text, {})
        across, up = zip(*sorted(points), strict=True)
        ax.plot(across, up, linewidth=1.5 + wider, markersize=4 + wider, **look)
    ax.set_xticks(range(len(texts)), texts, rotation=0 if len(texts) <= 8 else 45)
    ax.set_xlabel(x)
    _from_zero(drawn, ax)
    ax.grid(axis="y", color="#e0e0e0", linewidth=0.8)
    _key(ax, others, looks)


#: What tells the values of a name apart: of the first name colour, of the second dashes, of all
#: others markers.
_DASHES, _MARKERS = ("-", "--", ":", "-."), ("o", "s", "^", "D", "v", "P")


def _looks(drawn: Drawn, names: Sequence[str]) -> list[dict[str, dict[str, Any]]]:
    """For each name, the keywords of lines that its values stand for."""
    found: list[dict[str, dict[str, Any]]] = []
    for at, name in enumerate(names):
        texts = _values(drawn, name)
        kind = ("color", "linestyle", "marker")[min(at, 2)]
        among = (palette.scale(len(texts)), _DASHES, _MARKERS)[min(at, 2)]
        found.append({text: {kind: one} for text, one in zip(texts, cycle(among), strict=False)})
    return found


def _key(ax: Axes, names: Sequence[str], looks: Sequence[Mapping[str, dict[str, Any]]]) -> None:
    """The key beside the plot: a line for each value of each name that is not across."""
    handles = [
        _sample(ax, f"{name}={text}", {"color": "#445"} | look)
        for name, values in zip(names, looks, strict=True)
        for text, look in (values.items() if len(values) > 1 else ())
    ]
    if handles:
        ax.legend(
            handles=handles, fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0)
        )


def _sample(ax: Axes, label: str, look: Mapping[str, Any]) -> Any:
    """An entry of a key: a line or marker that looks so, and is not on the plot itself."""
    (line,) = ax.plot([], [], label=label, **look)
    line.remove()
    return line


def _heat(drawn: Drawn, x: str, y: str, ax: Axes | None) -> Axes:
    across, down = _values(drawn, x), _values(drawn, y)
    grid = np.full((len(down), len(across)), np.nan)
    for setting, time in drawn.times:  # of several points at one place the fastest
        place = down.index(setting[y]), across.index(setting[x])
        grid[place] = np.nanmin([grid[place], time]) if np.isfinite(grid[place]) else time
    axes = new_axes(ax, 1.8 + 0.75 * len(across), 1.6 + 0.45 * len(down))
    image = axes.imshow(grid, aspect="auto", cmap="viridis_r", origin="lower")
    axes.set_xticks(range(len(across)), across, rotation=0 if len(across) <= 8 else 45)
    axes.set_yticks(range(len(down)), down)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    middle = (np.nanmin(grid) + np.nanmax(grid)) / 2
    for (i, j), time in np.ndenumerate(grid):
        text = "failed" if np.isnan(time) else us_text(time)
        colour = "white" if time > middle else "black"
        axes.text(j, i, text, ha="center", va="center", fontsize=7, color=colour)
    bar = axes.figure.colorbar(image, ax=axes, pad=0.02)
    bar.set_label("time, us", fontsize=9)
    axes.set_title(title(drawn.study), loc="left", fontsize=10)
    axes.tick_params(labelsize=8)
    return axes


def _pareto(drawn: Drawn, x: str, ax: Axes) -> None:
    texts = _values(drawn, x)
    numbers = _numbers(drawn, x, texts)
    if numbers is None:
        raise ArgumentError(f"a Pareto front needs numbers, {x} has {', '.join(texts)}")
    cost = dict(zip(texts, numbers, strict=True))
    points = sorted((cost[setting[x]], time) for setting, time in drawn.times)
    front: list[tuple[float, float]] = []
    for size, time in points:
        if not front or time < front[-1][1]:
            front = [*front, (size, time)] if not front or size > front[-1][0] else front
    (sizes, times), (best, fastest) = zip(*points, strict=True), zip(*front, strict=True)
    ax.scatter(sizes, times, s=16, color=palette.POINT, label="points")
    ax.step(best, fastest, where="post", color=palette.BEST, label="none is better")
    ax.scatter(best, fastest, s=26, color=palette.BEST, zorder=3)
    ax.set_xticks([cost[text] for text in texts], texts, rotation=45)
    ax.set_xlabel(x)
    _from_zero(drawn, ax)
    ax.legend(fontsize=8, frameon=False)


def _from_zero(drawn: Drawn, ax: Axes) -> None:
    """Times from zero on, with room for the markers of the longest."""
    ax.set_ylim(0, 1.06 * max(time for _, time in drawn.times))


def draw_front(
    study: Study, goals: Sequence[str], rows: Sequence[Row], names: tuple[str, str], ax: Axes | None
) -> Axes:
    """``Exploration.plot``: points that have values, those that none beats marked."""
    y = names[1] or next((goal for goal in goals if goal != names[0]), goals[0])
    x = names[0] or next((goal for goal in goals if goal != y), "")
    front = sorted((row for row in rows if row["front"]), key=lambda row: row[x or y])
    chosen = _apart([_pair(row, x, y) for row in front]) if x else []
    axes = new_axes(ax, 7.6, 4.6 + 0.17 * len(chosen))
    axes.set_title(title(study), loc="left", fontsize=10)
    tidy(axes)
    axes.grid(color="#e8e8e8", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.ticklabel_format(useOffset=False)
    if not x:
        values = [_scaled(row, y) for row in rows]
        best = np.minimum.accumulate(values)
        axes.plot(values, ".", color=palette.POINT, label="points")
        axes.step(range(len(rows)), best, where="post", color=palette.BEST, label="best so far")
        axes.set_xlabel("points looked at")
    else:
        _points(axes, rows, front, [x, y, *(goal for goal in goals if goal not in (x, y))])
        for number, row in enumerate((front[at] for at in chosen), 1):
            offset: dict[str, Any] = {
                "xytext": (5, 4),
                "textcoords": "offset points",
                "fontsize": 8,
            }
            axes.annotate(str(number), _pair(row, x, y), color="#223", **offset)
        axes.set_xlabel(_called(x)[0])
        axes.locator_params(nbins=7)
    axes.set_ylabel(_called(y)[0])
    first = axes.legend(fontsize=8, frameon=False)
    if chosen:
        axes.add_artist(first)
        _name_points(axes, study, front, chosen)
    return axes


#: Points of a front that are named on the plot, and how far apart, as a part of its width.
_NAMED, _APART = 8, 0.07


def _called(goal: str) -> tuple[str, float]:
    return GOAL_TITLES.get(goal, (goal, 1.0))


def _scaled(row: Row, goal: str) -> float:
    return float(row[goal]) / _called(goal)[1]


def _pair(row: Row, x: str, y: str) -> tuple[float, float]:
    return _scaled(row, x), _scaled(row, y)


def _points(axes: Axes, rows: Sequence[Row], front: Sequence[Row], goals: Sequence[str]) -> None:
    """All points over the first two goals; those of the front in the colour of a third one."""
    x, y, *more = goals
    for allowed, label, face in (
        (True, "points", palette.POINT),
        (False, "beyond a limit", "none"),
    ):
        some = [_pair(row, x, y) for row in rows if row.get("allowed", True) == allowed]
        if some:
            across, up = zip(*some, strict=True)
            axes.scatter(across, up, s=14, c=face, ec=palette.POINT, label=label)
    if not front:
        return
    line = "none" if more else "-"  # of three goals the front is a surface
    look: Any = {"linestyle": line, "marker": "o", "color": palette.BEST, "label": "beaten by none"}
    across, up = zip(*(_pair(row, x, y) for row in front), strict=True)
    axes.plot(across, up, markersize=7 if more else 6, **look)
    if more:
        values = [_scaled(row, more[0]) for row in front]
        drawn = axes.scatter(across, up, s=20, c=values, cmap="viridis_r", zorder=3)
        bar = axes.figure.colorbar(drawn, ax=axes, pad=0.02)
        bar.set_label(_called(more[0])[0], fontsize=9)


def _apart(points: Sequence[tuple[float, float]]) -> list[int]:
    """Places of a few points, the ends of a front first, none close to another."""
    if not points:
        return []
    every = np.array(points)
    where = (every - every.min(axis=0)) / np.where(np.ptp(every, axis=0), np.ptp(every, axis=0), 1)
    chosen, far = [0], np.linalg.norm(where - where[0], axis=1)
    while len(chosen) < _NAMED and far.max() > _APART:
        chosen.append(int(far.argmax()))
        far = np.minimum(far, np.linalg.norm(where - where[chosen[-1]], axis=1))
    return sorted(chosen)


def _name_points(axes: Axes, study: Study, front: Sequence[Row], chosen: Sequence[int]) -> None:
    """Below the plot, what the numbered points are; what all of the front share is said once."""
    differs = [name for name in study.varied if len({row[name] for row in front}) > 1]
    shared = [f"{_short(name)} {front[0][name]}" for name in study.varied if name not in differs]
    look: dict[str, Any] = {"linestyle": "none", "color": "#223", "markersize": 5, "mew": 0.2}
    told = [", ".join(f"{_short(name)} {front[at][name]}" for name in differs) for at in chosen]
    handles = [
        _sample(axes, text or "all", {"marker": f"${number}$"} | look)
        for number, text in enumerate(told, 1)
    ]
    axes.legend(
        handles=handles,
        title=f"all of the front: {', '.join(shared)}" if shared else None,
        loc="upper left",
        bbox_to_anchor=(0.0, -0.12),
        frameon=False,
        fontsize=7.5,
        title_fontsize=7.5,
        alignment="left",
    )


def _short(name: str) -> str:
    """The end of a dotted path that tells what it is: ``L1 size`` of ``memories.L1.size``."""
    return " ".join(name.split(".")[-2:])


#: The two ends of a bar of a tornado.
_ENDS = ("first", "last")


def draw_tornado(goal: str, base: float, rows: Sequence[Row], ax: Axes | None) -> Axes:
    """``Sensitivities.plot``: a bar per name, the widest on top."""
    axes = new_axes(ax, 7.4, 1.2 + 0.38 * len(rows))
    called, unit = _called(goal)
    base /= unit
    both = [(row[f"{goal} first"], row[f"{goal} last"]) for row in rows]
    ends = [[None if value is None else value / unit for value in pair] for pair in both]
    known = [value for pair in ends for value in (*pair, base) if value is not None]
    margin = 0.16 * ((max(known) - min(known)) or base)
    for place, (row, pair) in enumerate(zip(rows, ends, strict=True)):
        least = min((value for value in pair if value is not None), default=base)
        sides = ["right" if value == least else "left" for value in pair]
        if sides == ["right", "right"]:
            sides[1] = "left"
        for value, name, colour, side in zip(pair, _ENDS, palette.scale(2), sides, strict=True):
            if value is None:
                continue
            label = name if not place else None
            axes.barh(-place, value - base, left=base, color=colour, height=0.62, label=label)
            at = min(value, base) if side == "right" else max(value, base)
            axes.text(at, -place, f" {row[name]} ", ha=side, va="center", fontsize=7)
    names = [f"{row['name']}\n{row['own']}" for row in rows]
    axes.set_yticks([-place for place in range(len(rows))], names)
    axes.axvline(base, color="#333", linewidth=0.8)
    axes.legend(fontsize=7.5, frameon=False, loc="lower right", title="at the value")
    axes.set_xlim(min(known) - margin, max(known) + margin)
    axes.set_xlabel(called)
    tidy(axes)
    axes.tick_params(labelsize=7.5)
    return axes


def title(study: Study) -> str:
    """What is measured at all points, on one line."""
    fixed: Setting = study.fixed
    what = fixed.get("network") or fixed.get("operator", "")
    others = [v if n == DEVICE else f"{n} {v}" for n, v in fixed.items() if n not in _SUBJECT]
    return ", ".join([what, *others])


_SUBJECT: tuple[Any, ...] = ("network", "operator")

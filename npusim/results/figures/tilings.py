"""A search among tilings in pictures: a map of times, and times against bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from npusim.base.errors import ArgumentError
from npusim.base.yamltree import suggest
from npusim.results import palette
from npusim.results.figure import Axis, Cells, Figure, Line
from npusim.results.figures.studies import against, unbeaten
from npusim.results.lines import binary_unit
from npusim.results.tables import DataFrame

#: Fields that a map is of where they vary.
_SIDES = ("base_n", "base_m")


def searched(
    frame: DataFrame, fields: Sequence[str], x: str = "", y: str = ""
) -> tuple[Figure, Figure, Figure]:
    """A map over two ``fields``, and two Pareto fronts.

    ``frame`` has a row per tiling, as ``Tuned.table`` makes it. Raises ``ArgumentError`` for
    what is no field.
    """
    values = {name: frame[name].nunique() for name in fields}
    sides = [name for name in _SIDES if values.get(name, 0) > 1]
    ranked = list(dict.fromkeys([*sides, *sorted(values, key=lambda name: -values[name])]))
    across, along = _axis(x, ranked, fields), _axis(y, ranked[1:] or ranked, fields)
    legal = frame[frame.state != "illegal"]
    memories = [name for name in map(str, frame) if name.endswith("_bytes") and name != "gm_bytes"]
    memory = "L1_bytes" if "L1_bytes" in memories else memories[0]
    buffers = f"buffers in {memory.removesuffix('_bytes')}"
    return (
        _map(legal, {name: sorted(frame[name].unique()) for name in (across, along)}),
        _front(legal, memory, buffers),
        _front(legal, "gm_bytes", "moved from and to global memory"),
    )


def _axis(asked: str, usual: Sequence[str], fields: Sequence[str]) -> str:
    if asked and asked not in fields:
        raise ArgumentError(f"plot: the tiling has no field {asked!r}{suggest(asked, fields)}")
    return asked or usual[0]


def _map(legal: DataFrame, values: dict[str, list[object]]) -> Figure:
    """The least cycles by two fields: simulated, else the least bound; hatched: nothing runs."""
    (x, columns), (y, rows) = next(iter(values.items())), list(values.items())[-1]
    best = np.full((len(rows), len(columns)), np.nan)
    done = np.zeros_like(best, bool)
    known = legal.cycles.fillna(legal.bound).to_numpy()
    for column, row, cycles, state in zip(legal[x], legal[y], known, legal.state, strict=True):
        at = rows.index(row), columns.index(column)
        best[at] = np.fmin(best[at], cycles)
        done[at] |= state == "simulated"
    winner = np.unravel_index(np.nanargmin(np.where(done, best, np.inf)), best.shape)
    ticks = np.linspace(np.nanmin(np.log10(best)), np.nanmax(np.log10(best)), 5).tolist()
    up, across = np.nonzero(done)
    return Figure(
        x=Axis(label=x, names=[str(value) for value in columns]),
        y=Axis(label=y, names=[str(value) for value in rows]),
        marks=[
            Cells(values=np.log10(best), ticks=(ticks, [f"{10**t:,.0f}" for t in ticks])),
            Line(x=across, y=up, dash="", marker="o", size=3, colour="#ffffff"),
            Line(x=[winner[1]], y=[winner[0]], dash="", marker="*", size=13, colour=palette.BEST),
        ],
        title="cycles: dots are simulated, the star is the best;\nother cells are lower bounds, "
        "hatched ones have no tiling",
    )


def _front(legal: DataFrame, column: str, label: str) -> Figure:
    """Simulated tilings, grey the bounds of others; the line of those that none beats in both."""
    unit, size = binary_unit(legal[column].max())
    known = legal[legal[column].notna()]
    done, rest = (known[(known.state == "simulated") == flag] for flag in (True, False))
    points, best = unbeaten([*(done[column] / size)], [*done.cycles])
    figure = against(
        (f"{label} ({unit})", [*(known[column] / size)]),
        ("cycles, launches included", [*known.cycles.fillna(known.bound)]),
    )
    bounds = Line(name="lower bound", x=[*(rest[column] / size)], y=[*rest.bound], dash="",
                  marker="o", size=2.5, colour=palette.POINT)  # fmt: skip
    simulated = replace(points, name="simulated", colour=palette.KERNEL)
    return replace(figure, marks=[bounds, simulated, best])

"""How many measured rows lie in ``time_range``, each judged by rows of other groups alone.

``python -m tools.scorecard.coverage`` prints it, the figures' part of the range included, which
takes minutes. The structural part of a range is the 10th and 90th percentile of measured over
simulated times of the rows of its class (``configs/silicon/spreads.csv``). Here a row's own group
has no say in it: calls of its family, chip and power of ten of work, kernels of its family and
chip.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping

from npusim.base.records import replace
from npusim.cli.files import print_table
from npusim.machine.device.catalog import load_device
from npusim.results.facts.time_range import TimeRange
from npusim.silicon.call_rows import _run
from npusim.silicon.rows import CallRow, KernelRow
from npusim.silicon.simulate import CHIPS
from tests.silicon.replayed import ratios
from tools.scorecard.mechanisms import group_of

Row = KernelRow | CallRow

#: Families of calls that stand for layers.
LAYERS = ("CONV2D-FWD", "DW-CONV2D-FWD", "DW3D")

#: Classes of ``spreads.csv`` that rows were measured of: product and kind, and the chips.
CLASSES = {
    ("a2", "kernels"): ("910B", "910B1", "910B2", "910B3"),
    ("a2", "calls"): ("910B2",),
    ("950", "kernels"): ("950PR",),
    ("950", "calls"): ("950PR",),
}


def members(of: tuple[str, str]) -> dict[Row, float]:
    """Measured over simulated time of the rows of a class."""
    kind = CallRow if of[1] == "calls" else KernelRow
    return {
        row: ratio
        for row, ratio in ratios().items()
        if isinstance(row, kind)
        and row.chip in CLASSES[of]
        and (kind is KernelRow or row.family in LAYERS)
    }


def ends(found: Iterable[float]) -> tuple[float, float]:
    """10th and 90th percentile."""
    tenths = statistics.quantiles(map(math.log, found), n=10, method="inclusive")
    return math.exp(tenths[0]), math.exp(tenths[-1])


def group(row: Row) -> tuple[object, ...]:
    """The group that is left out together with a row."""
    return group_of(row) if isinstance(row, CallRow) else (row.family, row.chip)


def inside(
    rows: Mapping[Row, float], range_of: Callable[[Row, tuple[float, float]], TimeRange]
) -> list[Row]:
    """The rows whose measured time lies in the range that rows of other groups give them."""
    found = []
    for row, ratio in rows.items():
        spread = ends(r for other, r in rows.items() if group(other) != group(row))
        known = range_of(row, spread)
        if known.low_us <= ratio * known.time_us <= known.high_us:
            found.append(row)
    return found


def structure(row: Row, spread: tuple[float, float]) -> TimeRange:
    """The range without figures, of a time of 1 us."""
    return TimeRange(time_us=1.0, effects=(), spread=spread)


def whole(row: Row, spread: tuple[float, float]) -> TimeRange:
    """The range with figures, of the kernels that npusim launches for a call."""
    assert isinstance(row, CallRow)
    result, _ = _run(row, load_device(CHIPS[row.chip]), "production")
    return replace(result.time_range, spread=spread)


def main() -> None:
    """Print the coverage of every class."""
    lines = []
    for of in CLASSES:
        rows = members(of)
        counts = [len(inside(rows, structure))]
        if of[1] == "calls":
            counts.append(len(inside(rows, whole)))
        shares = [f"{count} ({100 * count / len(rows):.0f} %)" for count in counts]
        lines.append((*of, str(len(rows)), *shares, *["-"] * (2 - len(shares))))
    print_table(("product", "of", "rows", "inside structure", "inside whole range"), lines, 2)


if __name__ == "__main__":
    main()

"""How far measured times lie from simulated ones, by chip and class of work.

``configs/silicon/left_out.csv`` has a row for each measured kernel, call and training step: its
measured time over the time that was predicted without it. ``make scorecard`` writes it.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable
from functools import cache
from math import ceil, exp, log
from typing import Any, NamedTuple

from npusim.base.resources import configs
from npusim.problem.work import (
    DEPTH_WISE,
    ELEMENTWISE,
    FILTER_GRADIENT,
    FORWARD,
    KERNEL,
    LAYOUT,
    PRODUCT,
    STEPS,
)
from npusim.results.facts.number_text import counted

#: The share of the measured rows of a class that is aimed at.
SHARE = 0.8

#: Classes that stand in for each other where a chip has none of the rows of a class, or where
#: there are too few anywhere.
SORTS: tuple[tuple[str, ...], ...] = (
    (KERNEL,),
    (PRODUCT, FORWARD, DEPTH_WISE, FILTER_GRADIENT),
    (ELEMENTWISE, LAYOUT),
    STEPS,
)

#: The fewest rows whose largest deviation holds the next row with ``SHARE``: it does with a
#: probability of n / (n + 1).
LEAST_ROWS = 4

#: Rows of a chip below which those of other chips may widen the range: of fewer the factor is the
#: largest deviation, which one row more may well exceed by far.
ENOUGH_ROWS = 9


class LeftOutRow(NamedTuple):
    """A measured row that was predicted by others.

    ``group`` names what was left out together with it; ``ratio`` is the measured time over the
    predicted one.
    """

    id: str
    product: str
    work: str
    group: str
    ratio: float


class Spread(NamedTuple):
    """80 % of measured times lie between the simulated time over ``factor`` and times it.

    ``rows`` were measured on chips of the product and in the class of work itself; 0 where none
    were, so that others stand in for them.
    """

    factor: float
    rows: int

    @property
    def ends(self) -> tuple[float, float]:
        """Both ends as shares of the simulated time."""
        return 1 / self.factor, self.factor

    def to_json(self) -> dict[str, Any]:
        """Plain values, ready for ``json.dumps``."""
        return {"factor": self.factor, "rows": self.rows}


#: Of a device of which nothing is known, such as an invented one.
NO_SPREAD = Spread(1.0, 0)


@cache
def left_out_rows() -> tuple[LeftOutRow, ...]:
    """The rows of the file."""
    text = (configs() / "silicon" / "left_out.csv").read_text(encoding="utf-8")
    return tuple(
        LeftOutRow(row["id"], row["product"], row["work"], row["group"], float(row["ratio"]))
        for row in csv.DictReader(text.splitlines())
    )


def factor(ratios: Collection[float]) -> float:
    """The factor within which the next row lies with a probability of at least ``SHARE``.

    Of n deviations drawn alike the next is below the k-th smallest with a probability of
    k / (n + 1) (conformal prediction; Vovk, Gammerman and Shafer, 2005). Where n is too small for
    any k it is the largest.
    """
    deviations = sorted(abs(log(ratio)) for ratio in ratios)
    place = min(len(deviations), ceil(SHARE * (len(deviations) + 1)))
    return exp(deviations[place - 1])


def spread_among(rows: Iterable[LeftOutRow], product: str, work: str) -> Spread:
    """The spread of a class on a chip's product, as some rows show it.

    Nine rows of the product and class speak for themselves. With fewer the spread is at least that
    of the class on all chips. Without any, and where no chip has ``LEAST_ROWS``, it is at least
    that of all classes of the sort (``SORTS``): kernels, calls, work between them, steps.
    """
    sort = next(sort for sort in SORTS if work in sort)
    alike = [row for row in rows if row.work in sort]
    of_class = [row.ratio for row in alike if row.work == work]
    own = [row.ratio for row in alike if row.work == work and row.product == product]
    if len(own) >= ENOUGH_ROWS:
        return Spread(factor(own), len(own))
    evidence = [own, of_class]
    if not own or len(of_class) < LEAST_ROWS:
        evidence.append([row.ratio for row in alike])
    factors = [factor(ratios) for ratios in evidence if len(ratios) >= LEAST_ROWS]
    return Spread(max(factors, default=1.0), len(own))


def spread_text(spread: Spread, work: str) -> str:
    """The source of a spread in a sentence: which rows, and on which chips."""
    share = f"{100 * SHARE:.0f} % of"
    within = f"within a factor of {spread.factor:.2f}"
    if spread.rows:
        return f"{share} measured times are {within} ({work}, {counted(spread.rows, 'row')})"
    return f"{share} measured times on other chips are {within} ({work}; none on this chip)"


def spread_of(product: str, work: str) -> Spread:
    """The spread of a class of work on the chips of a product, as all rows show it.

    ``NO_SPREAD`` for a device without a product, and for work of no class.
    """
    if not product or not work:
        return NO_SPREAD
    return spread_among(left_out_rows(), product, work)

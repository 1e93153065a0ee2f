"""How far simulated and measured figures lie apart: per row, family and pair, and as a score."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import isnan
from statistics import fmean, median
from typing import NamedTuple

from npusim.silicon.rows import KernelRow, Measured
from npusim.silicon.simulate import RowOutcome

#: Chips of scored kernels: those whose bin is known.
SCORED_CHIPS = ("910B1", "910B2", "910B3", "A3", "950PR")

#: Words of kernels that are not scored: vector cores take part.
UNSCORED_WORDS = frozenset(
    {"per_token_dequant_on_aiv", "cv_fused_via_gm", "cv_fused_l0c_to_ub", "nd2nz_on_aiv"}
)

#: Pipes whose busy times are scored.
SCORED_PIPES = ("cube", "mte1", "mte2", "fixpipe")

#: Words of kernels in which a fixpipe's busy time includes waiting that no run of ours shows.
WAITING_WORDS = frozenset({"norm_template"})

#: Words of kernels whose cores all read one address at a time, which has no cost here.
ADDRESS_WORDS = frozenset({"all_cores_same_order", "all_cores_rotated"})

#: Share by which the times of a pair must differ for its direction to count.
DECISIVE = 0.02

#: Points below which a rank correlation says nothing.
_LEAST_RANKED = 3


@dataclass(frozen=True)
class FamilyScore:
    """Errors of time over a family: counts of rows, then shares of 1; None without points."""

    family: str
    rows: int
    compared: int
    declined: int
    failed: int
    mean: float | None
    median: float | None
    rank: float | None


@dataclass(frozen=True)
class RowPair:
    """Two rows of one pair: time of the second over that of the first.

    ``right`` says whether the simulation moves as the measurement does; None if the measured
    times hardly differ or a row was not simulated.
    """

    name: str
    first: str
    second: str
    measured: float
    simulated: float | None
    decisive: bool
    right: bool | None


def time_error(outcome: RowOutcome) -> float | None:
    """Return simulated over measured time, less 1; None where either is missing."""
    row = outcome.row
    if outcome.simulated is None or not row.time_us:
        return None
    return float(outcome.simulated.time_us / row.time_us) - 1


def counted_error(outcome: RowOutcome) -> float | None:
    """Return the error of time that means count: none of a row whose chip its source leaves open.

    Such a row is simulated on each chip that it may have run on. The nearer figure would be chosen
    by its time, and the other is of a chip that was not measured.
    """
    return None if outcome.row.possible_chips else time_error(outcome)


def busy_errors(outcome: RowOutcome) -> dict[str, float]:
    """Return simulated over measured busy time, less 1, of the pipes that have both."""
    errors = {}
    for pipe, measured in outcome.row.busy_us.items():
        simulated = outcome.busy_us.get(pipe)
        if measured and simulated is not None:
            errors[pipe] = simulated / measured - 1
    return errors


def busiest(row: Measured) -> str | None:
    """Return the pipe with the longest measured busy time, of those that are scored."""
    busy = {pipe: row.busy_us[pipe] for pipe in SCORED_PIPES if row.busy_us.get(pipe)}
    return max(busy, key=lambda pipe: busy[pipe]) if busy else None


def shape_of(row: Measured) -> tuple[object, ...]:
    """Return family, chip and problem, which kernels share that differ by switches alone."""
    return (row.family, row.chip, *row.problem)


def is_scored(row: Measured) -> bool:
    """True for a row that the accuracy figures are about."""
    return (
        isinstance(row, KernelRow)
        and row.op == "gemm"
        and row.base_m is not None
        and row.trust in ("A", "B")
        and not row.possible_chips
        and row.chip in SCORED_CHIPS
        and not UNSCORED_WORDS & row.words
    )


def score(outcomes: Iterable[RowOutcome]) -> dict[str, ErrorSpread]:
    """Errors of the scored kernels among ``outcomes``, by subject.

    Subjects are "time", "shapes" (with every family and shape counted once), "loads" (MTE2 where it
    is the busiest pipe), each of ``SCORED_PIPES``, and "drains" (fixpipe over the rows whose
    measured time is that of work alone).
    """
    scored = [outcome for outcome in outcomes if is_scored(outcome.row)]
    loading = [outcome for outcome in scored if busiest(outcome.row) == "mte2"]
    draining = [outcome for outcome in scored if not WAITING_WORDS & outcome.row.words]
    spreads = {
        "time": spread(times_of(scored)),
        "shapes": spread(by_shape(scored)),
        "loads": spread(busy_of(loading, "mte2")),
    }
    for pipe in SCORED_PIPES:
        spreads[pipe] = spread(busy_of(scored, pipe))
    spreads["drains"] = spread(busy_of(draining, "fixpipe"))
    return spreads


def by_shape(outcomes: Iterable[RowOutcome]) -> list[float]:
    """Return the mean absolute error of time of every family and shape."""
    errors: dict[tuple[object, ...], list[float]] = {}
    for outcome in outcomes:
        error = counted_error(outcome)
        if error is not None:
            errors.setdefault(shape_of(outcome.row), []).append(abs(error))
    return [fmean(of_shape) for of_shape in errors.values()]


class ErrorSpread(NamedTuple):
    """The number of absolute errors, their mean and their median; these are None without any."""

    compared: int
    mean: float | None
    median: float | None


def spread(errors: Sequence[float]) -> ErrorSpread:
    """Return number, mean and median of absolute errors."""
    if not errors:
        return ErrorSpread(0, None, None)
    return ErrorSpread(len(errors), fmean(errors), median(errors))


def family_scores(outcomes: Sequence[RowOutcome]) -> list[FamilyScore]:
    """Return a score per family in order of appearance, and one called ``all`` of them.

    A family measured on several chips is followed by its scores on each, "FAMILY on CHIP".
    """
    scores = []
    for name in dict.fromkeys(outcome.row.family for outcome in outcomes):
        members = [outcome for outcome in outcomes if outcome.row.family == name]
        chips = dict.fromkeys(outcome.row.chip for outcome in members)
        scores.append(_family(name, members))
        if len(chips) > 1:
            scores += [
                _family(f"{name} on {chip}", [o for o in members if o.row.chip == chip])
                for chip in chips
            ]
    return [*scores, _family("all", outcomes)]


def pairs(outcomes: Iterable[RowOutcome]) -> list[RowPair]:
    """Return every two rows that share a pair and a chip that is known, and have times."""
    groups: dict[tuple[str, str], list[RowOutcome]] = {}
    for outcome in outcomes:
        row = outcome.row
        if isinstance(row, KernelRow) and row.pair and row.time_us and not row.possible_chips:
            groups.setdefault((row.pair, row.chip), []).append(outcome)
    return [
        _pair(name, first, second)
        for (name, _), group in groups.items()
        for first, second in combinations(group, 2)
    ]


def mean_time_error(outcomes: Iterable[RowOutcome]) -> float | None:
    """Return the mean absolute error of time; None without any."""
    return spread(times_of(outcomes)).mean


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Spearman's coefficient; None for too few points or without any order."""
    import pandas as pd  # noqa: PLC0415 - nothing else here needs it

    both = pd.DataFrame({"first": first, "second": second})
    coefficient = float(both.corr("spearman", min_periods=_LEAST_RANKED).to_numpy()[0, 1])
    return None if isnan(coefficient) else coefficient


def _family(name: str, outcomes: Sequence[RowOutcome]) -> FamilyScore:
    compared = [outcome for outcome in outcomes if counted_error(outcome) is not None]
    declined = sum(o.simulated is None and not o.failed for o in outcomes)
    failed = sum(o.failed for o in outcomes)
    rank = rank_correlation([_measured(o) for o in compared], [_simulated(o) for o in compared])
    errors = spread(times_of(compared))
    return FamilyScore(
        family=name,
        rows=len(outcomes),
        compared=errors.compared,
        declined=declined,
        failed=failed,
        mean=errors.mean,
        median=errors.median,
        rank=rank,
    )


def _pair(name: str, first: RowOutcome, second: RowOutcome) -> RowPair:
    """Two rows with the ratios of their times."""
    measured = _measured(second) / _measured(first)
    decisive = abs(measured - 1) > DECISIVE
    simulated: float | None = None
    right: bool | None = None
    if first.simulated is not None and second.simulated is not None:
        simulated = _simulated(second) / _simulated(first)
        if decisive:
            right = (simulated - 1) * (measured - 1) > 0
    return RowPair(name, first.row.id, second.row.id, measured, simulated, decisive, right)


def _measured(outcome: RowOutcome) -> float:
    return outcome.row.time_us or 0.0


def _simulated(outcome: RowOutcome) -> float:
    return 0.0 if outcome.simulated is None else outcome.simulated.time_us


def times_of(outcomes: Iterable[RowOutcome]) -> list[float]:
    """Absolute errors of time that count, where there are any."""
    errors = (counted_error(outcome) for outcome in outcomes)
    return [abs(error) for error in errors if error is not None]


def busy_of(outcomes: Iterable[RowOutcome], pipe: str) -> list[float]:
    """Absolute errors of a pipe's busy time, where there are any."""
    return [abs(errors[pipe]) for errors in map(busy_errors, outcomes) if pipe in errors]

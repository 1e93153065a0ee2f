"""What candidates are expected to take, given the simulated times of some of them.

Closed forms err alike for tilings that are alike. The logarithm of a candidate's time over its
estimate is taken to be a Gaussian process: a part that all candidates of a kernel have in common,
and one of their own that fades as their tilings part. Which candidate is worth a simulation is what
Bayesian optimisation asks: the one expected to beat the best time so far by most (D. Jones, M.
Schonlau, W. Welch: Efficient global optimization of expensive black-box functions, 1998).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from math import erf, log, log2, pi, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

#: Errors of estimates before any is known, as standard deviations of logarithms: what all
#: candidates have in common, and what each has of its own.
COMMON = 0.03
OWN = 0.02

#: So many errors these two are worth, when those found say that estimates are better or worse.
BELIEF = 2.0

#: Of two candidates that differ in nothing that matters this share of ``OWN`` may differ.
APART = 0.03

#: How fast likeness fades, by field: tilings are alike by exp(-rate) if one size is twice the
#: other's or one switch is set differently. Of the greatest likelihood for the errors of the
#: estimates of 1,400 gradients of ResNet-50 and VGG-16 on four devices and parts of these, rounded.
RATES = {
    "base_m": 0.65,
    "base_n": 1.2,
    "base_k": 0.04,
    "slab_k": 5.0,
    "k_parts": 0.4,
    "step_planes": 0.65,
    "step_columns": 0.7,
    "l1_slots": 0.05,
    "weight_slots": 0.1,
    "l0_slots": 0.1,
    "l0c_slots": 0.01,
    "unit_flag": 0.01,
    "dy_slots": 0.3,
    "x_slots": 0.02,
    "dy_slabs": 0.02,
    "x_slabs": 0.02,
    "keeps": 0.02,
    "group": 0.02,
    "passes": 0.4,
    "form": 0.2,
    "images": 0.5,
    "cores": 2.0,
    "resident": 0.1,
    "resident_input": 0.1,
    "n_slowest": 2.0,
    "even_n": 1.2,
}
#: The same of any other field.
OTHER_RATE = 0.5


class Outlook:
    """Candidates by their estimates in cycles and their tilings, and what simulations said."""

    def __init__(self, estimates: Sequence[float], tilings: Sequence[Any]) -> None:
        places = _places(tilings)
        apart = ((places[:, None] - places) ** 2).sum(axis=2)
        self._covariance = COMMON**2 + OWN**2 * np.exp(-apart)
        self._estimates = np.log(np.array(estimates, np.float64))
        self._left = np.ones(len(tilings), np.bool_)
        self._tried: list[int] = []
        self._errors: list[float] = []
        self._best = np.inf  # the logarithm of the best time

    def promising(self, least: int, worthwhile: float, slight: float) -> int | None:
        """The candidate to simulate next; None where there is none, after ``least`` were simulated.

        It is the one that is expected to take less than the best so far by most, as a share of it
        beyond what is ``slight``; this is at least ``worthwhile``. The best estimate comes first.
        """
        if not self._left.any():
            return None
        if not self._tried:
            return int(np.argmin(np.where(self._left, self._estimates, np.inf)))
        gain = np.where(self._left, self._gain(slight), -1.0)
        at = int(np.argmax(gain))
        return at if gain[at] >= worthwhile or len(self._tried) < least else None

    def leave_out(self, at: int) -> None:
        """Candidate ``at`` does not run."""
        self._left[at] = False

    def learn(self, at: int, cycles: float) -> None:
        """Candidate ``at`` takes so many cycles."""
        self._left[at] = False
        self._tried.append(at)
        self._errors.append(log(cycles) - float(self._estimates[at]))
        self._best = min(self._best, log(cycles))

    def expected(self) -> tuple[Floats, Floats]:
        """The logarithm of the time of each candidate, and its standard deviation."""
        across = self._covariance[self._tried]
        errors = np.array(self._errors)
        known = across[:, self._tried] + (APART * OWN) ** 2 * np.eye(len(errors))
        solved = np.linalg.solve(known, np.column_stack([errors, across]))
        spread = COMMON**2 + OWN**2 - (across * solved[:, 1:]).sum(axis=0)
        # Where estimates of a kernel are worse than most, those not tried are less certain too.
        scale = (BELIEF + errors @ solved[:, 0]) / (BELIEF + len(errors))
        mean = self._estimates + across.T @ solved[:, 0]
        return mean, np.sqrt(scale * np.maximum(spread, 1e-12))

    def _gain(self, slight: float) -> Floats:
        """By which share of the best time each is expected to take less, beyond what is slight."""
        mean, spread = self.expected()
        better = self._best - slight - mean
        z = better / spread
        below = np.array([1 + erf(one) for one in (z * sqrt(0.5)).tolist()]) / 2
        found: Floats = better * below + spread * np.exp(-(z**2) / 2) / sqrt(2 * pi)
        return found


def _places(tilings: Sequence[Any]) -> Floats:
    """Where tilings are in a space in which likeness is exp(-distance squared).

    Words are switches, and so are numbers that may be 0, which stands for something else: for all
    in ``cores``, which is more than any other number there.
    """
    columns = []
    for field in fields(tilings[0]) if is_dataclass(tilings[0]) else ():
        values = [getattr(tiling, field.name) for tiling in tilings]
        if field.name == "cores":
            values = [value or max(values) + 1 for value in values]
        scale = sqrt(RATES.get(field.name, OTHER_RATE))
        if isinstance(values[0], str):
            columns.append([scale * (value != values[0]) for value in values])
        elif min(values) == 0:
            columns.append([scale * (value > 0) for value in values])
        else:
            columns.append([scale * log2(value) for value in values])
    return np.array(columns, np.float64).reshape(-1, len(tilings)).T

"""The outputs of a call against a float64 computation: ``npusim run --check``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from npusim.base.dtypes import dtype
from npusim.base.errors import ArgumentError
from npusim.call.spec import Array
from npusim.ops.card import Output, Sample
from npusim.results import Result


class Check(Struct, frozen=True, kw_only=True):
    """The distance of an output from a float64 computation, in relative Frobenius norm."""

    output: str
    error: float
    limit: float
    where: str = ""

    @property
    def passed(self) -> bool:
        """True where the error is within the limit; NaN is not."""
        return self.error <= self.limit

    def __str__(self) -> str:
        """One line for people."""
        return (
            f"check  {self.output} against float64: relative error {self.error:.1e} "
            f"(limit {self.limit:.1e}): {'pass' if self.passed else f'fail; {self.where}'}"
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values; an error that is no finite number is null, as JSON has none."""
        return {
            "output": self.output,
            "relative_error": self.error if math.isfinite(self.error) else None,
            "limit": self.limit,
            "passed": self.passed,
        }


def checked(result: Result, outputs: Sequence[Output[Any]], sample: Sample[Any]) -> list[Check]:
    """One check per output asked for."""
    from npusim.problem.reference import relative_error  # noqa: PLC0415 - for checks only

    checks = []
    for output in outputs:
        got = output.unpack(sample.problem, returned(result, output.name))
        want = output.expected(sample)
        error = relative_error(got, want)
        limit = output.limit(sample)
        where = "" if error <= limit else _differences(got, want, limit)
        checks.append(Check(output=output.name, error=error, limit=limit, where=where))
    return checks


def _differences(got: Array, want: Array, limit: float) -> str:
    """The count of elements further off than ``limit`` of the largest, and the worst of them."""
    kind = dtype(got.dtype)
    got = np.asarray(got, np.float64)
    want = np.asarray(want, np.float64)
    with np.errstate(invalid="ignore"):
        off = np.where((got == want) | (np.isnan(got) & np.isnan(want)), 0.0, np.abs(got - want))
    off[np.isnan(off)] = np.inf
    finite = np.abs(want[np.isfinite(want)])
    count = np.count_nonzero(off > limit * finite.max(initial=0.0))
    worst = np.unravel_index(int(np.argmax(off)), off.shape)
    place = ", ".join(str(int(i)) for i in worst)
    beyond = int(np.count_nonzero(np.isfinite(want) & (np.abs(want) > kind.largest)))
    range_ = f"; {beyond:,} are expected beyond {kind.range_text}" if beyond else ""
    return (
        f"{count:,} of {off.size:,} elements differ, most at [{place}]: {got[worst]:.6g}, "
        f"expected {want[worst]:.6g}{range_}"
    )


def returned(result: Result, name: str) -> Array:
    """The array that a result has by this name."""
    outputs = dict(zip(result.output_names, result.outputs or (), strict=False))
    array = outputs.get(name)
    if array is None:
        raise ArgumentError(f"{result.operator} returned no numbers for {name}")
    return array

"""The numbers of element-wise operations, and what these are called that have one."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from npusim.workloads.kinds import USUAL

#: What a sum, a product or the like is called whose other operand is a number, or a map of fewer
#: elements; of those the latter only if it is a sum or a product.
FEW = {"add": "shift", "sub": "shift", "mul": "scale", "div": "scale"}


def numbers_of(kind: str, name: str, stated: Sequence[float | None]) -> tuple[float, ...]:
    """The numbers of a layer of ``kind``, () for the usual ones.

    ``stated`` are those behind the first operand of the operation ``name``, None where a place is
    empty.
    """
    if name == "clamp_max":
        stated = (None, *stated)
    elif name == "hardtanh":
        stated = (*stated, *(-1.0, 1.0)[len(stated) :])
    first = stated[0] if stated else None
    numbers: tuple[float, ...] = ()
    if kind == "clip":
        low, high = (*stated, None, None)[:2]
        numbers = (-inf if low is None else float(low), inf if high is None else float(high))
    elif kind in FEW and first is not None:
        divided = 1 / first if first else inf
        numbers = (float({"sub": -first, "div": divided}.get(kind, first)),)
    elif kind.endswith("_norm"):
        numbers = tuple(
            float(number) for number in stated[-len(USUAL[kind]) :] if number is not None
        )
    elif kind == "interpolate":
        numbers = (float(bool(first)),)
    elif kind in USUAL:
        numbers = tuple(float(number) for number in stated if number is not None)
        numbers += USUAL[kind][len(numbers) :]
    alike = [round(number, 7) for number in numbers] == [
        round(number, 7) for number in USUAL.get(kind, ())
    ]
    return () if alike else numbers


def single(constant: Any) -> float | None:
    """The number that an array is, as it would be written; None of several, of bools, of None."""
    other = constant is None or constant.size > 1 or constant.dtype == bool
    return None if other else float(str(constant.flat[0]))

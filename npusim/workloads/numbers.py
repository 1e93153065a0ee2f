"""The numbers of element-wise operations, and what these are called that have one."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from npusim.workloads.kinds import USUAL

#: What a sum, a product or the like is called whose other operand is a number, or a map of fewer
#: elements; of those the latter only if it is a sum or a product.
FEW = {"add": "shift", "sub": "shift", "mul": "scale", "div": "scale"}


def numbers_of(kind: str, name: str, given: Sequence[float | None]) -> tuple[float, ...]:
    """The numbers of a layer of ``kind``, () for the usual ones.

    ``given`` are those behind the first operand of the operation ``name``, None where a place is
    empty.
    """
    if name == "clamp_max":
        given = (None, *given)
    elif name == "hardtanh":
        given = (*given, *(-1.0, 1.0)[len(given) :])
    first = given[0] if given else None
    found: tuple[float, ...] = ()
    if kind == "clip":
        low, high = (*given, None, None)[:2]
        found = (-inf if low is None else float(low), inf if high is None else float(high))
    elif kind in FEW and first is not None:
        divided = 1 / first if first else inf
        found = (float({"sub": -first, "div": divided}.get(kind, first)),)
    elif kind.endswith("_norm"):
        found = tuple(float(one) for one in given[-len(USUAL[kind]) :] if one is not None)
    elif kind == "interpolate":
        found = (float(bool(first)),)
    elif kind in USUAL:
        found = tuple(float(one) for one in given if one is not None)
        found += USUAL[kind][len(found) :]
    alike = [round(one, 7) for one in found] == [round(one, 7) for one in USUAL.get(kind, ())]
    return () if alike else found


def single(constant: Any) -> float | None:
    """The number that an array is, as it would be written; None of several, of bools, of None."""
    other = constant is None or constant.size > 1 or constant.dtype == bool
    return None if other else float(str(constant.flat[0]))

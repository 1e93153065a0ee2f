"""The product of matrices that an einsum of two operands is."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod


def einsum_sizes(equation: str, sizes: Sequence[Sequence[int]]) -> tuple[int, int, int, int]:
    """(stack, rows, cin, cout) of an einsum of two: what both and the result have is the stack."""
    operands, _, result = equation.replace(" ", "").replace("...", "").partition("->")
    first, second = operands.split(",")
    extent: dict[str, int] = {}
    rest = 1  # axes behind "..."
    for axes, size in zip((first, second), sizes, strict=True):
        rest = max(rest, prod(size[: len(size) - len(axes)]))
        extent |= dict(zip(axes, size[len(size) - len(axes) :], strict=True))
    result = result or "".join(sorted(a for a in extent if operands.count(a) == 1))

    def of(axes: set[str]) -> int:
        return prod(extent[axis] for axis in axes)

    left, right, kept = set(first), set(second), set(result)
    stack = of(left & right & kept) * rest
    return stack, of((left - right) & kept), of((left & right) - kept), of((right - left) & kept)

"""Tilings one step from another one: what is looked at around the best that was found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from typing import Any

from npusim.errors import ArgumentError
from npusim.program.kernel import Kernel


def neighbours(kernel: Kernel) -> Iterator[Kernel]:
    """The kernel with one field of its tiling changed by a step, as far as its checks allow.

    A number is halved, doubled and moved by one and by sixteen; a switch is turned. Numbers that
    are 0 mean "left to the kernel" and stay, and so do words. With one more slot of L0 steps are
    also as much shorter, so that it has room.
    """
    tiling = getattr(kernel, "tiling", None)
    if not is_dataclass(tiling) or isinstance(tiling, type):
        return
    for one in fields(tiling):
        for value in _steps(getattr(tiling, one.name)):
            with suppress(ArgumentError):
                changed = replace(tiling, **{one.name: value})
                yield replace(kernel, tiling=changed)  # type: ignore[type-var]
    slots, depth = (getattr(tiling, name, 0) for name in ("l0_slots", "base_k"))
    less = depth * slots // (slots + 1) // 16 * 16
    if less:
        with suppress(ArgumentError):
            changed = replace(tiling, l0_slots=slots + 1, base_k=less)
            yield replace(kernel, tiling=changed)  # type: ignore[type-var]


def _steps(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if not isinstance(value, int) or value < 1:
        return []
    steps = (value // 2, value * 2, value - 16, value + 16, value - 1, value + 1)
    return [step for step in dict.fromkeys(steps) if step > 0 and step != value]

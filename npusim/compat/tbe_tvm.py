"""Placeholders and the lazy tensors computed from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from msgspec import Struct

from npusim.base.dtypes import dtype as known_dtype
from npusim.base.errors import ArgumentError
from npusim.base.yamltree import suggest
from npusim.call.spec import Operand, Spec
from npusim.machine.device.spec import Device
from npusim.results import Result


class Placeholder(Struct, frozen=True, eq=False):
    """An input without data; two are the same only if they are one object."""

    shape: tuple[int, ...]
    dtype: str
    name: str


#: Arrays (or ``npusim.spec``s) by placeholder, or by its name.
Feeds = Mapping[str, Any] | Mapping[Placeholder, Any] | Mapping[str | Placeholder, Any]


def placeholder(
    shape: Iterable[int], dtype: str = "float32", name: str = "placeholder"
) -> Placeholder:
    """An input of ``shape`` (positive ints) and ``dtype``; ``ArgumentError`` for other sizes."""
    sizes = tuple(shape) if isinstance(shape, Iterable) else ()
    integers = all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) for n in sizes)
    if not sizes or not integers or min(sizes) < 1:
        raise ArgumentError(
            f"placeholder {name!r} has shape {shape!r}; it must be a list of integers >= 1"
        )
    return Placeholder(tuple(int(n) for n in sizes), str(dtype), str(name))


@dataclass(frozen=True, eq=False, kw_only=True)
class Lazy:
    """A result that is not computed yet: ``shape``, ``dtype`` and ``name`` before any data.

    ``call`` runs the operator: it is given a function from placeholder to operand, and the
    keywords of ``npusim.call.Options``.
    """

    shape: tuple[int, ...]
    dtype: str
    name: str
    inputs: tuple[Placeholder, ...]
    call: Callable[[Callable[[Placeholder], Operand], dict[str, Any]], Result] = field(repr=False)

    def run(self, feeds: Feeds, device: str | Device = "ascend910", **options: Any) -> Result:
        """Run the operator on ``device`` with an array for every placeholder.

        ``feeds`` maps placeholders or their names to arrays of exactly their shape and dtype; with
        an ``npusim.spec`` among them the run is timing-only. Keywords are those of
        ``npusim.call.Options``. Raises ``ArgumentError`` for a feed that is missing, unknown or
        does not fit, and the errors of the operator.
        """
        operands: dict[Placeholder, Operand] = {}
        for key, value in feeds.items():
            target = self._target(key)
            if target in operands:
                raise ArgumentError(f"{self.name}: placeholder {target.name!r} is fed twice")
            operands[target] = _fitting(value, target)
        missing = [p for p in self.inputs if p not in operands]
        if missing:
            described = ", ".join(f"{p.name!r} {p.shape} {p.dtype}" for p in missing)
            raise ArgumentError(f"{self.name}: no array was fed for placeholder {described}")
        return self.call(operands.__getitem__, {"device": device, **options})

    def _target(self, key: str | Placeholder) -> Placeholder:
        """The one input that a key of the feeds means."""
        matches = [p for p in self.inputs if key is p or key == p.name]
        if len(matches) == 1:
            return matches[0]
        names = [p.name for p in self.inputs]
        name = key.name if isinstance(key, Placeholder) else str(key)
        if matches:
            raise ArgumentError(
                f"{self.name}: {len(matches)} placeholders are called {name!r}; feed by "
                "placeholder instead of by name, or name them apart"
            )
        kind = "placeholder" if isinstance(key, Placeholder) else "name"
        raise ArgumentError(
            f"{self.name}: {kind} {name!r} is none of its inputs{suggest(name, names)}"
        )


def _fitting(value: Any, target: Placeholder) -> Operand:
    """A feed as array or ``Spec`` of exactly the placeholder's shape and dtype."""
    array = value if isinstance(value, Spec) else np.asarray(value)
    if tuple(array.shape) != target.shape:
        raise ArgumentError(
            f"the array fed for {target.name!r} has shape {tuple(array.shape)}; its placeholder "
            f"has {target.shape}"
        )
    fed, declared = known_dtype(array.dtype), known_dtype(target.dtype)
    if fed != declared:
        raise ArgumentError(
            f"the array fed for {target.name!r} is {fed}; its placeholder is {declared}: convert "
            f"it with .astype({declared.numpy.name!r})"
        )
    return array

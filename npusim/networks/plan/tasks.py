"""Operations by themselves: their values in formats, named so that equal ones are equal."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import prod
from typing import NamedTuple

from npusim.base.integers import ceil_div, round_up
from npusim.base.records import replace
from npusim.kernels.layout.trans_data import Conversion
from npusim.machine.isa.operands import Tensor
from npusim.networks.rules.values import Operation, Value
from npusim.workloads import ConvLayer, LinearLayer

#: Formats of values: as frameworks have them, and as the cube and the vector unit like them.
PLAIN = "ND"
BLOCKED = "NC1HWC0"
FRACTAL = "FRACTAL_Z"


def formats_of(value: Value) -> tuple[str, ...]:
    """The formats that a value can have."""
    if value.kind in ("weight", "matrix"):
        return (PLAIN, FRACTAL)
    # Blocks hold channels behind a batch and before one to three axes, of which rows have one.
    by_channel = value.kind in ("map", "rows", "bits") and 2 <= len(value.shape) <= 5
    by_channel |= value.kind == "images" and value.shape[1] % 16 > 0  # else both lie alike
    return (PLAIN, BLOCKED) if by_channel else (PLAIN,)


class StoredValue(NamedTuple):
    """A value as it lies in memory: its name, and its format. Each format is bytes of its own."""

    name: str
    format: str


class Placed(NamedTuple):
    """A value in a format."""

    value: Value
    format: str
    c0: int = 16

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape in memory."""
        shape = self.value.shape
        if self.value.kind == "bits":
            blocks = Placed(self.value._replace(kind="map"), self.format, self.c0).shape
            return (ceil_div(prod(blocks), 8),)
        if self.value.kind == "masks":  # (taps, maps): bits for each tap of a window
            blocks = Placed(
                self.value._replace(kind="map", shape=shape[1:]), BLOCKED, self.c0
            ).shape
            return (shape[0], ceil_div(prod(blocks), 8))
        if self.value.kind == "channels":
            return (round_up(shape[0], self.c0),)
        if self.format == PLAIN and (self.value.kind != "images" or shape[1] % self.c0):
            return shape
        kind = "to_fracz" if self.format == FRACTAL else "to_blocked"
        change = Conversion(kind=kind, c0=self.c0, groups=self.value.groups)
        return change.blocked_shape((*shape, 1) if len(shape) == 2 else shape)

    @property
    def size_bytes(self) -> int:
        """Bytes in memory."""
        return prod(self.shape) * self.value.dtype.bytes

    def tensor(self, name: str, role: str) -> Tensor:
        """It in global memory."""
        return Tensor(name, self.shape, self.value.dtype, role)


class Task(NamedTuple):
    """An operation by itself: its values are called after places, so that equal ones are equal.

    ``formats`` are those of its values, in the order of ``values``; ``warm`` says which of them
    are in the L2 when it begins.
    """

    operation: Operation
    values: tuple[Value, ...]
    formats: tuple[str, ...]
    warm: tuple[bool, ...] = ()


def task(
    operation: Operation,
    values: Mapping[str, Value],
    formats: Mapping[str, str],
    warm: Collection[str] = (),
) -> Task:
    """The task of an operation whose values have these formats; ``warm`` are in the L2."""
    used = tuple(dict.fromkeys((*operation.reads, *operation.outputs, *operation.writes)))
    names = {name: f"v{i}" for i, name in enumerate(used)}
    layer = operation.layer
    chain = operation.chain
    if isinstance(layer, ConvLayer | LinearLayer):
        layer = replace(
            layer, name="", input_gradient=True, weight_gradient=True, bias_gradient=True
        )
    elif layer is not None:
        layer = replace(layer, input_gradient=True)
    if chain is not None:
        chain = chain.renamed(names)
        layer = layer if operation.core else None

    def each(words: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(names[word] for word in words)

    alike = replace(
        operation, name="", phase="", layer=layer, chain=chain, count=1,
        inputs=each(operation.inputs), outputs=each(operation.outputs),
    )  # fmt: skip
    renamed = tuple(values[name]._replace(name=names[name], repeats=1) for name in used)
    in_l2 = tuple(name in warm for name in used) if warm else ()
    return Task(alike, renamed, tuple(formats[name] for name in used), in_l2)


def conversion_task(value: Value, format: str, *, warm: bool = False) -> Task:
    """The task that brings a value from its other format to ``format``."""
    values = (value._replace(name="v0", repeats=1), value._replace(name="v1", repeats=1))
    formats = formats_of(value) if format != PLAIN else formats_of(value)[::-1]
    direction = "from" if format == PLAIN else "to"
    kind = f"{direction}_fracz" if FRACTAL in formats else f"{direction}_blocked"
    operation = Operation(
        "", "layouts", "", None, f"layout {kind} {value.groups}", ("v0",), ("v1",)
    )
    return Task(operation, values, formats, (True, False) if warm else ())

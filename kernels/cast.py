"""Convert a tensor from one float type to another, rounded to nearest even.

    y[i] = x[i] as the type of y

Layouts: any; x and y are read and written in the order of their bytes.

for chunk of this core:                                # one task
    UB x chunk <- GM                                   # MTE2
    UB y chunk <- convert (16 to 16 bits: by way of fp32)   # V
    GM y chunk <- UB                                   # MTE3
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar, NamedTuple

import numpy as np

from npusim.device.spec import Device
from npusim.kernels.parts.room import piece
from npusim.kernels.parts.spread import Spread
from npusim.kernels.tilings.streams import Stream
from npusim.language import (
    FP32,
    ArgumentError,
    Language,
    Plan,
    Tasks,
    Tensor,
    ceil_div,
    in_runs,
    round_up,
)

#: Largest piece in elements: long enough for full bandwidth in either direction.
CHUNK = 16 * 1024
#: Pieces are multiples of this many elements: 512 B of a 16-bit type, the GM granule.
GRANULE = 256


class Chunk(NamedTuple):
    """``size`` elements."""

    size: int


@dataclass(frozen=True)
class Cast(Spread):
    """Convert ``x`` to the type of ``y``; both hold equally many elements, at least one.

    ``saturate`` gives the largest finite value where an fp16 result overflows, not infinity
    (``Device.saturates`` says which a chip does).
    """

    x: Tensor
    y: Tensor
    saturate: bool = False

    name: ClassVar[str] = "cast"
    library: ClassVar[tuple[str, ...]] = ("Cast",)

    def __post_init__(self) -> None:
        x, y = self.x, self.y
        if not self.count or self.count != prod(y.shape):
            raise ArgumentError(
                f"cast: {x.name} has shape {x.shape}, {y.name} {y.shape}; both must hold the same "
                "number of elements, at least one"
            )
        if x.dtype == y.dtype or "int" in (x.dtype.kind, y.dtype.kind):
            raise ArgumentError(
                f"cast: {x.name} is {x.dtype}, {y.name} {y.dtype}; they must be two different "
                "types of fp16, bf16, fp32"
            )

    @property
    def tiling_text(self) -> str:
        return f"chunk up to {CHUNK}"

    @property
    def count(self) -> int:
        """Elements to convert."""
        return prod(self.x.shape)

    def stream(self, device: Device, cores: int) -> Stream:
        read, written = self.x.size_bytes, self.y.size_bytes
        share = np.ceil(self.count / np.arange(1, cores + 1))
        return Stream(
            read=read,
            written=written,
            tasks=np.ceil(self.count / np.clip(share, GRANULE, CHUNK)),
            vector=(("cast", max(read, written)),),
            cold=self.x.role == "in",
        )

    def plan(self, k: Language, cores: int) -> Plan[Chunk]:
        for tensor in self.tensors:
            if tensor.dtype.name not in k.dtypes:
                raise ArgumentError(
                    f"cast: {tensor.name} is {tensor.dtype}, which {k.device_name} does not know "
                    f"(it has {', '.join(k.dtypes)})"
                )
        dtype, to = self.x.dtype, self.y.dtype
        by_fp32 = dtype.bytes == to.bytes  # 16 to 16 bits takes two steps, the first exact
        element = 2 * (dtype.bytes + to.bytes) + (4 if by_fp32 else 0)
        most = piece(k, self.name, CHUNK, element, multiple=GRANULE)
        src = k.buffer("UB", (most,), dtype, slots=2, name="x_ub")
        dst = k.buffer("UB", (most,), to, slots=2, name="y_ub")
        wide = k.buffer("UB", (most,), FP32, name="fp32_ub") if by_fp32 else None

        def emit(chunk: Chunk) -> None:
            x = self.x.at(0, chunk.size * dtype.bytes, base="x")
            y = self.y.at(0, chunk.size * to.bytes, base="y")
            held = src.next().at(0, x.size)
            result = dst.next().at(0, y.size)
            k.data_move(held, x, dtype)
            if wide is not None:
                exact = wide.next().at(0, chunk.size * 4)
                k.vec_cast(exact, held, dtype, FP32)
                k.vec_cast(result, exact, FP32, to, saturate=self.saturate)
            else:
                k.vec_cast(result, held, dtype, to, saturate=self.saturate)
            k.data_move(y, result, to)

        step = min(most, round_up(ceil_div(self.count, cores), GRANULE))
        start = np.arange(0, self.count, step)
        tasks = Tasks(
            in_runs(len(start), cores),
            Chunk,
            {"size": np.minimum(step, self.count - start)},
            {"x": start * dtype.bytes, "y": start * to.bytes},
        )
        return Plan(tasks, emit)

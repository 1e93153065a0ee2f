"""Convert a tensor from one float type to another, rounded to nearest even.

    y[i] = x[i] as the type of y

Layouts: any; x and y are read and written in the order of their bytes.

for chunk of this core:                                # one *unit*
    UB x chunk <- GM                                   # MTE2
    UB y chunk <- convert (16 to 16 bits: by way of fp32)   # V
    GM y chunk <- UB                                   # MTE3
"""

from __future__ import annotations

from math import prod
from types import SimpleNamespace
from typing import ClassVar

import numpy as np

from npusim.dtypes import FP32
from npusim.errors import ArgumentError
from npusim.integers import ceil_div
from npusim.isa.operands import Tensor
from npusim.program.kernel import Kernel, Units
from npusim.program.language import Language

#: Largest piece in elements: long enough for full bandwidth in either direction.
CHUNK = 16 * 1024
#: Pieces are multiples of this many elements: 512 B of a 16-bit type, the GM granule.
GRANULE = 256


class Cast(Kernel):
    """Convert ``x`` to the type of ``y``; both hold equally many elements, at least one.

    ``saturate`` gives the largest finite value where an fp16 result overflows, not infinity
    (``Device.saturates`` says which a chip does).
    """

    name: ClassVar[str] = "cast"
    role: ClassVar[str] = "vector"

    def __init__(self, x: Tensor, y: Tensor, *, saturate: bool = False) -> None:
        count = prod(x.shape)
        if not count or count != prod(y.shape):
            raise ArgumentError(
                f"cast: {x.name} has shape {x.shape}, {y.name} {y.shape}; both must hold the same "
                "number of elements, at least one"
            )
        if x.dtype == y.dtype or "int" in (x.dtype.kind, y.dtype.kind):
            raise ArgumentError(
                f"cast: {x.name} is {x.dtype}, {y.name} {y.dtype}; they must be two different "
                "types of fp16, bf16, fp32"
            )
        self.x, self.y, self.count, self.saturate = x, y, count, saturate
        self.tiling_text = f"chunk up to {CHUNK}"

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.x, self.y)

    @property
    def by_fp32(self) -> bool:
        """Between two 16-bit types the vector unit converts in two steps, the first exact."""
        return self.x.dtype.bytes == self.y.dtype.bytes

    def units(self, cores: int) -> Units:
        share = ceil_div(ceil_div(self.count, cores), GRANULE) * GRANULE
        chunk = min(self.chunk, share)
        start = np.arange(0, self.count, chunk)
        return Units(
            np.arange(len(start)) * min(cores, len(start)) // len(start),
            {"count": np.minimum(chunk, self.count - start)},
            {"x": start * self.x.dtype.bytes, "y": start * self.y.dtype.bytes},
        )

    def buffers(self, k: Language) -> None:
        for tensor in self.tensors:
            if tensor.dtype.name not in k.device.dtypes:
                raise ArgumentError(
                    f"cast: {tensor.name} is {tensor.dtype}, which {k.device.name} does not know "
                    f"(it has {', '.join(k.device.dtypes)})"
                )
        e, to = self.x.dtype.bytes, self.y.dtype.bytes
        element = 2 * (e + to) + (4 if self.by_fp32 else 0)
        fit = k.device.memories["UB"].size_bytes // element
        self.chunk = min(CHUNK, fit // GRANULE * GRANULE)
        self.src = k.buffer("UB", (self.chunk,), self.x.dtype, slots=2, name="x_ub")
        self.dst = k.buffer("UB", (self.chunk,), self.y.dtype, slots=2, name="y_ub")
        if self.by_fp32:
            self.wide = k.buffer("UB", (self.chunk,), FP32, name="fp32_ub")

    def emit(self, k: Language, unit: SimpleNamespace) -> None:
        size, to = unit.count * self.x.dtype.bytes, self.y.dtype
        src, dst = self.src.next().at(0, size), self.dst.next().at(0, unit.count * to.bytes)
        k.data_move(src, self.x.at(0, size, base="x"), self.x.dtype)
        if self.by_fp32:
            wide = self.wide.next().at(0, unit.count * 4)
            k.vec_cast(wide, src, self.x.dtype, FP32)
            k.vec_cast(dst, wide, FP32, to, saturate=self.saturate)
        else:
            k.vec_cast(dst, src, self.x.dtype, to, saturate=self.saturate)
        k.data_move(self.y.at(0, dst.size, base="y"), dst, to)

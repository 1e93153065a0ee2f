"""Tiled matrix product C[M, N] = A[M, K] @ B[K, N], row-major operands.

for tile (m, n) of this core:                                  # one *unit*
    for slab of K (step_k base blocks):
        L1 <- A slab, L1 <- B slab, both as NZ                 # MTE2
        for k in slab step base_k:
            L0A <- A block   L0B <- B block                    # MTE1
            L0C += L0A @ L0B                                   # M
    C tile <- L0C                                              # FIX, or V and MTE3
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar

import numpy as np

from npusim.dtypes import FP32
from npusim.isa.base import ceil_div
from npusim.isa.dma import Window
from npusim.isa.operands import Slot, Tensor
from npusim.kernels.tiling_checks import check_tiling
from npusim.program.builder import Builder
from npusim.program.kernel import Kernel, Units


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """One mmad is base_m x base_k x base_n; a slab brings ``step_k`` base blocks to L1.

    ``unit_flag`` overlaps a tile's last mmad with its drain, and the drain with the next tile.
    """

    base_m: int
    base_n: int
    base_k: int
    step_k: int = 4
    l1_slots: int = 2
    l0_slots: int = 2
    l0c_slots: int = 1
    unit_flag: bool = False

    def __post_init__(self) -> None:
        check_tiling(
            self,
            sixteens=("base_m", "base_n", "base_k"),
            positive=("step_k", "l1_slots", "l0_slots", "l0c_slots"),
        )

    def __str__(self) -> str:
        return (
            f"base {self.base_m}x{self.base_n}x{self.base_k}, step {self.step_k}, slots "
            f"L1 {self.l1_slots} L0 {self.l0_slots} L0C {self.l0c_slots}"
            f"{', unit flag' if self.unit_flag else ''}"
        )


class Matmul(Kernel):
    """The kernel for tensors ``a`` (M, K), ``b`` (K, N), ``c`` (M, N)."""

    name: ClassVar[str] = "matmul"
    role: ClassVar[str] = "cube"

    def __init__(self, tiling: Tiling, a: Tensor, b: Tensor, c: Tensor) -> None:
        self.tiling, self.a, self.b, self.c = tiling, a, b, c
        (self.m, self.k), self.n = a.shape, b.shape[1]
        self.dtype = a.dtype
        self.tiling_text = str(tiling)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.a, self.b, self.c)

    def units(self, cores: int) -> Units:
        """Tiles in contiguous runs per core, m fastest so that neighbours share B."""
        t, e = self.tiling, self.dtype.bytes
        rows, columns = np.arange(0, self.m, t.base_m), np.arange(0, self.n, t.base_n)
        n0, m0 = (grid.reshape(-1) for grid in np.meshgrid(columns, rows, indexing="ij"))
        core = np.arange(len(m0)) * min(cores, len(m0)) // len(m0)
        return Units(
            core,
            {"m": np.minimum(t.base_m, self.m - m0), "n": np.minimum(t.base_n, self.n - n0)},
            {"a": m0 * self.k * e, "b": n0 * e, "c": (m0 * self.n + n0) * self.c.dtype.bytes},
        )

    def buffers(self, k: Builder) -> None:
        t = self.tiling
        m, n = (min(t.base_m, ceil_div(self.m, 16) * 16), min(t.base_n, ceil_div(self.n, 16) * 16))
        base_k = min(t.base_k, ceil_div(self.k, 16) * 16)
        slab = min(t.base_k * t.step_k, ceil_div(self.k, 16) * 16)
        self.a1 = k.buffer("L1", (m, slab), self.dtype, slots=t.l1_slots, name="a_l1")
        self.b1 = k.buffer("L1", (slab, n), self.dtype, slots=t.l1_slots, name="b_l1")
        self.a0 = k.buffer("L0A", (m, base_k), self.dtype, slots=t.l0_slots, name="a_l0a")
        self.b0 = k.buffer("L0B", (base_k, n), self.dtype, slots=t.l0_slots, name="b_l0b")
        self.c0 = k.buffer(
            "L0C", (m, n), FP32, slots=t.l0c_slots, name="c_l0c", unit_flag=t.unit_flag
        )
        self.staging = k.fixpipe_staging(m, self.c.dtype, columns=n // 16)

    def emit(self, k: Builder, unit: SimpleNamespace) -> None:
        m, n, t = unit.m, unit.n, self.tiling
        e, slab = self.dtype.bytes, t.base_k * t.step_k
        c = self.c0.next()
        for s0 in range(0, self.k, slab):
            size = min(slab, self.k - s0)
            a1, b1 = self.a1.next(), self.b1.next()
            self._load_nz(k, a1, self.a, "a", s0 * e, (m, size))
            self._load_nz(k, b1, self.b, "b", s0 * self.n * e, (size, n))
            for k0 in range(0, size, t.base_k):
                kk = min(t.base_k, size - k0)
                a0, b0 = self.a0.next(), self.b0.next()
                self._load_a(k, a0, a1, (m, size), (k0, kk))
                for block in range(ceil_div(kk, 16)):
                    k.load2d(
                        b0,
                        b1,
                        self.dtype,
                        start=k0 // 16 + block,
                        repeat=ceil_div(n, 16),
                        stride=ceil_div(size, 16),
                        at=block * ceil_div(n, 16),
                        transpose=True,
                    )
                k.mmad(c, a0, b0, m, kk, n, self.dtype, init=s0 == 0 and k0 == 0)
        out = self.c.at(
            0, n * self.c.dtype.bytes, base="c", rows=m, pitch=self.n * self.c.dtype.bytes
        )
        k.fixpipe(out, c, m, n, self.c.dtype, staging=self.staging, nd=True)

    def _load_nz(
        self, k: Builder, dst: Slot, src: Tensor, base: str, offset: int, shape: tuple[int, int]
    ) -> None:
        """A row-major block to L1 as NZ: one nd2nz, or a strided move per 16 columns."""
        rows, columns = shape
        e, pitch = src.dtype.bytes, src.shape[1] * src.dtype.bytes
        padded = ceil_div(rows, 16) * 512
        if k.has_path("GM", "L1", "nd2nz"):
            k.nd2nz(
                dst.at(0, ceil_div(columns, 16) * padded),
                src.at(offset, columns * e, base=base, rows=rows, pitch=pitch),
                src.dtype,
            )
            return
        for j in range(0, columns, 16):
            width = min(16, columns - j) * e
            k.data_move(
                dst.at(j // 16 * padded, width, rows=rows, pitch=32),
                src.at(offset + j * e, width, base=base, rows=rows, pitch=pitch),
                src.dtype,
            )

    def _load_a(
        self, k: Builder, a0: Slot, a1: Slot, shape: tuple[int, int], steps: tuple[int, int]
    ) -> None:
        """A block of NZ columns to L0A: a load3d with a 1x1 filter walks rows as positions."""
        m, size = shape
        k0, kk = steps
        m16 = ceil_div(m, 16) * 16
        flat = Window(
            h=1, w=m16, pad_left=0, pad_right=0, pad_top=0, pad_bottom=0, kernel_h=1, kernel_w=1
        )
        k.load3d(
            a0.at(0, m16 // 16 * ceil_div(kk, 16) * 512),
            a1.at(0, ceil_div(size, 16) * m16 * 32),
            flat,
            self.dtype,
            m=(0, m),
            k=(k0, kk),
        )

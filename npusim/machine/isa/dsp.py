"""The vector core of a DSP: the matrix micro-kernel, and conversion in array memory (AM).

The micro-kernel broadcasts elements of A from scalar memory (SM) against rows of B in AM and
keeps a block of the accumulator in registers while k runs, one fused multiply-add at a time.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from npusim.base.dtypes import FP32, DType
from npusim.base.errors import ProgramError
from npusim.base.integers import ceil_div
from npusim.base.records import Record
from npusim.machine.device.parts import CubeRate, Gemm
from npusim.machine.device.spec import Device
from npusim.machine.isa.base import STARTUP, Cost, Instruction, MemoryView, Numbers, Told
from npusim.machine.isa.operands import Region, SlotRegion
from npusim.machine.isa.vector import VecCast


class DspGemm(Instruction, Record, frozen=True):
    """acc (AM, fp32, m x n) = A (SM or AM, m x k) @ B (AM, k x n), added to acc unless ``init``.

    All three are row-major; with ``transpose_a`` A is stored k x m. Every element of acc takes
    its k products in order, each rounded once into fp32: cutting m, n or k changes no bit.
    """

    acc: SlotRegion
    a: SlotRegion
    b: SlotRegion
    m: int
    k: int
    n: int
    dtype: DType
    init: bool
    transpose_a: bool = False

    unit: ClassVar[str] = "gemm"
    additions: ClassVar[tuple[tuple[str, str], ...]] = ((STARTUP, "overhead_cycles"),)

    @staticmethod
    def cycles(
        gemm: Gemm, rate: CubeRate, blocks: Numbers, k: Numbers, *, calls: Numbers = 1
    ) -> Numbers:
        """Cycles of ``blocks`` of sums over ``k`` products each, in several ``calls`` or one."""
        return blocks * (calls * gemm.overhead_cycles + k * rate.cycles)

    @staticmethod
    def sizes(m: int, k: int, n: int, dtype: DType) -> tuple[int, int, int]:
        """Bytes of acc, A and B; ``ProgramError`` for extents below 1."""
        if min(m, k, n) < 1:
            raise ProgramError(f"dsp_gemm of m {m}, k {k}, n {n}: every extent must be at least 1")
        return m * n * FP32.bytes, m * k * dtype.bytes, k * n * dtype.bytes

    @property
    def about(self) -> str:
        return f"m {self.m:,}, k {self.k:,}, n {self.n:,}"

    def check(self, device: Device) -> None:
        operands = ((self.acc, ("AM",)), (self.a, ("SM", "AM")), (self.b, ("AM",)))
        sizes = self.sizes(self.m, self.k, self.n, self.dtype)
        for (region, memories), size in zip(operands, sizes, strict=True):
            self._need_memory(memories, region)
            self._need_size(region, size)

    pipe = "VPU"

    def typed(self, told: Told) -> list[tuple[Region, DType]]:
        return [(self.acc, FP32), (self.a, self.dtype), (self.b, self.dtype)]

    def reads(self) -> tuple[Region, ...]:
        return (self.a, self.b) if self.init else (self.a, self.b, self.acc)

    def writes(self) -> tuple[Region, ...]:
        return (self.acc,)

    def cost(self, device: Device) -> Cost:
        gemm = device.gemm
        if gemm is None or self.dtype.name not in gemm.rates:
            have = ", ".join(gemm.rates) if gemm else "no micro-kernel"
            raise ProgramError(f"{device.name} has no {self.dtype} dsp_gemm (it has: {have})")
        rate = gemm.rates[self.dtype.name]
        blocks = ceil_div(self.m, rate.m) * ceil_div(self.n, rate.n)
        return Cost(
            cycles=self.cycles(gemm, rate, blocks, self.k),
            issue=gemm.issue_cycles,
            macs=self.m * self.k * self.n,
        )

    def figures(self) -> tuple[str, ...]:
        return ("gemm", f"gemm.rates.{self.dtype.name}")

    def execute(self, memory: MemoryView) -> None:
        shape = (self.k, self.m) if self.transpose_a else (self.m, self.k)
        a = memory.read(self.a, self.dtype, shape).astype(np.float64)
        b = memory.read(self.b, self.dtype, (self.k, self.n)).astype(np.float64)
        columns = a if self.transpose_a else a.swapaxes(1, 2)
        acc = np.zeros((memory.batch, self.m, self.n), np.float32)
        if not self.init:
            acc[...] = memory.read(self.acc, FP32, (self.m, self.n))
        wide = np.empty(acc.shape)
        for i in range(self.k):  # exact products: two fp32 significands fit fp64
            np.multiply(columns[:, i, :, None], b[:, i, None, :], out=wide)
            wide += acc
            acc[...] = wide
        memory.write(self.acc, acc, FP32)


class DspCast(VecCast, frozen=True):
    """dst (AM, ``to``) = src (AM, ``dtype``), rounded to nearest even; overflow gives infinity."""

    home: ClassVar[str] = "AM"

    pipe = "VPU"

    op = "dsp_cast"

    @property
    def walks(self) -> int:
        return max(self.src.size, self.dst.size)

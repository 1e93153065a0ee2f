"""The backward of img2col on the vector unit: positions are added to the pixels they came from."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from npusim.base.dtypes import FP16, FP32, DType
from npusim.base.errors import ProgramError
from npusim.base.records import Record
from npusim.base.rounding import round_to
from npusim.machine.device.spec import Device
from npusim.machine.isa.base import MemoryView
from npusim.machine.isa.dma import Window
from npusim.machine.isa.operands import SlotRegion
from npusim.machine.isa.vector import VectorInstruction

#: Elements of a pixel: a block of channels.
_BLOCK = 16


class Col2img(VectorInstruction, Record, frozen=True):
    """dst (H, W, 16) += src (positions, 16) at the pixels that ``tap`` of ``window`` reads.

    The window has no padding; its taps count row by row. A repeat takes as many bytes of ``src``
    as of any instruction.
    """

    inputs: ClassVar[tuple[str, ...]] = ("src",)
    prices: ClassVar[str] = "col2img"

    dst: SlotRegion
    src: SlotRegion
    dtype: DType
    window: Window
    tap: int

    @staticmethod
    def sizes(window: Window, dtype: DType) -> tuple[int, int]:
        """Bytes of the image and of the positions; raises ``ProgramError`` for a bad window."""
        window.check()
        pixel = _BLOCK * dtype.bytes
        return window.h * window.w * pixel, window.out_h * window.out_w * pixel

    @property
    def op(self) -> str:
        return "col2img"

    @property
    def sources(self) -> tuple[SlotRegion, ...]:
        return (self.src, self.dst)

    @property
    def measured(self) -> tuple[SlotRegion, ...]:
        return (self.src,)

    def check(self, device: Device) -> None:
        super().check(device)
        w = self.window
        if self.dtype not in (FP16, FP32):
            raise ProgramError(f"{self} in {self.dtype}; it adds fp16 and fp32: use vec_cast")
        if w.pad_left or w.pad_right or w.pad_top or w.pad_bottom:
            raise ProgramError(f"{self}: the window is padded; give the image its padding instead")
        taps = w.kernel_h * w.kernel_w
        if not 0 <= self.tap < taps:
            raise ProgramError(f"{self}: tap is {self.tap}; the window has taps 0 to {taps - 1}")
        image, positions = self.sizes(w, self.dtype)
        self._need_size(self.dst, image)
        self._need_size(self.src, positions)

    def execute(self, memory: MemoryView) -> None:
        w = self.window
        down, across = divmod(self.tap, w.kernel_w)
        rows = np.arange(w.out_h) * w.stride_h + down * w.dilation_h
        columns = np.arange(w.out_w) * w.stride_w + across * w.dilation_w
        image = memory.read(self.dst, self.dtype, (w.h, w.w, _BLOCK)).astype(np.float32)
        positions = memory.read(self.src, self.dtype, (w.out_h, w.out_w, _BLOCK))
        image[:, rows[:, None], columns] += positions
        memory.write(self.dst, round_to(image, self.dtype, saturate=False), self.dtype)

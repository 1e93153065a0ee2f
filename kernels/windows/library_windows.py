"""What the library's kernels of maximum pooling share: what they take, and their order.

They are those of chips whose rules are known (``Device.library_rules``). Their maps are fp16 in
blocks of 16 channels, their windows are not dilated and all of them reach the map.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from math import prod
from typing import ClassVar, NamedTuple

from npusim.language import (
    FP16,
    INT8,
    ArgumentError,
    Device,
    DType,
    GmRegion,
    Kernel,
    Language,
    Place,
    Tensor,
    Window,
)
from npusim.problem.convolution import Convolution

#: The least number of fp16, which stands for padding.
LOWEST = -65504.0
#: Most taps of a window.
_TAPS = 255


def is_resnet50(s: Convolution) -> bool:
    """Tell whether windows are those of ResNet-50, for which the library has own kernels."""
    sizes = (s.spatial, s.out, s.kernel, s.stride)
    return sizes == ((112, 112), (56, 56), (3, 3), (2, 2))


class Span(NamedTuple):
    """What windows read along one axis: ``size`` pixels from ``start`` on, with padding around."""

    start: int
    size: int
    before: int
    after: int

    @classmethod
    def of(cls, s: Convolution, axis: int, first: int, count: int) -> Span:
        """What ``count`` windows from the ``first`` on read along axis 0 (rows) or 1 (columns)."""
        begin = first * s.stride[axis] - s.padding[axis][0]
        end = begin + (count - 1) * s.stride[axis] + s.kernel[axis]
        start = max(0, begin)
        stop = min(s.spatial[axis], end)
        return cls(start, stop - start, start - begin, end - stop)


def _reaches_map(s: Convolution, axis: int) -> bool:
    """Tell whether every window reads the map, and as many windows as fit are asked for."""
    whole = Span.of(s, axis, 0, s.out[axis])
    last = (s.out[axis] - 1) * s.stride[axis] - s.padding[axis][0]
    left = s.spatial[axis] - whole.start - whole.size
    return s.padding[axis][0] < s.kernel[axis] and last < s.spatial[axis] and left < s.stride[axis]


@dataclass(frozen=True)
class LibraryWindows(Kernel):
    """Windows of planes, from ``read`` to ``out`` with a ``mask`` of bits."""

    shape: Convolution
    read: Tensor
    out: Tensor
    mask: Tensor

    role: ClassVar[str] = "vector"
    #: The product whose schedule and times were published.
    known_for: ClassVar[str] = "910"

    def __post_init__(self) -> None:
        why = self.refusal(self.shape, self.read.dtype)
        if why:
            raise ArgumentError(f"{self.name}: {why}; npusim's own pooling takes it")
        s = self.shape
        pixels = s.n * 16 * FP16.bytes
        windows = self.out if self.windows_are == "out" else self.read
        image = self.read if self.windows_are == "out" else self.out
        for tensor, positions in ((image, prod(s.spatial)), (windows, prod(s.out))):
            if tensor.dtype != FP16 or tensor.size_bytes != positions * pixels:
                raise ArgumentError(
                    f"{self.name}: {tensor.name} is {tensor.dtype} of shape {tensor.shape}; {s} "
                    f"makes it fp16 of {s.n} x {positions} x 16 elements"
                )
        bits = s.taps * prod(s.out) * s.n * 2
        if self.mask.dtype != INT8 or self.mask.size_bytes != bits:
            raise ArgumentError(
                f"{self.name}: {self.mask.name} is {self.mask.dtype} of {self.mask.size_bytes} B; "
                f"a maximum has a bit for each tap and element of the windows: int8, {bits} B"
            )

    @property
    @abstractmethod
    def windows_are(self) -> str:
        """The field with the windows: "read" or "out"."""

    @classmethod
    @abstractmethod
    def fits(cls, s: Convolution, device: Device) -> bool:
        """Tell whether the UB of a device holds a tile of these windows."""

    @classmethod
    @abstractmethod
    def runs_on(cls, device: Device) -> bool:
        """Tell whether a device has the instructions."""

    @classmethod
    def refusal(cls, s: Convolution, dtype: DType) -> str:
        """Why the library's kernel does not take such windows; "" where it does."""
        if dtype is not FP16 or s.cin != 16:
            return f"maps are {dtype} in blocks of {s.cin}; they must be fp16 in blocks of 16"
        if len(s.spatial) != 2 or s.dilation != (1, 1):
            return "windows must have two dimensions and no dilation"
        if s.taps > _TAPS:
            return f"windows have {s.taps} taps; the most are {_TAPS}"
        if s.out[1] == 1 < s.out[0]:
            return "windows are one column of several rows"
        if not (_reaches_map(s, 0) and _reaches_map(s, 1)):
            return "every window must read the map, and none be left out that fits"
        return ""

    @classmethod
    def takes(cls, s: Convolution, dtype: DType, device: Device) -> bool:
        """Tell whether the library's kernel runs such windows on a device."""
        return not cls.refusal(s, dtype) and cls.runs_on(device) and cls.fits(s, device)

    @property
    def before(self) -> tuple[Kernel, ...]:
        """What is launched before it."""
        return ()

    def note(self, device: Device) -> str:
        """Sentences on whose kernel it is, for reports."""
        note = (
            f"{self.name}: pooling as the vendor's library runs it ({self.library[0]}); tiling "
            "'auto' has kernels of npusim's own"
        )
        if device.product != self.known_for:
            note += (
                f". Its tiles are public for the {self.known_for}; on {device.name} they are "
                "extrapolated, with the cores and the UB of this chip"
            )
        return note

    def mask_of(self, tap: int, offset: int, size: int) -> GmRegion:
        """So many bytes of the mask of a tap, ``offset`` bytes behind the task's base."""
        pitch = self.mask.size_bytes // self.shape.taps
        return self.mask.at(tap * pitch + offset, size, base="mask")


class Ordered:
    """Instructions of the vector pipe with a barrier behind each.

    The library's compiler orders them so; they are named as in ``Language``.
    """

    def __init__(self, k: Language) -> None:
        self.k = k

    def _barrier(self) -> None:
        self.k.pipe_barrier("V")

    def data_move(self, dst: Place, src: Place, dtype: DType) -> None:
        """Copy bytes within UB."""
        self.k.data_move(dst, src, dtype)
        self._barrier()

    def vec_binary(self, operation: str, dst: Place, a: Place, b: Place, dtype: DType) -> None:
        """dst = a op b."""
        self.k.vec_binary(operation, dst, a, b, dtype)
        self._barrier()

    def vec_scalar(self, operation: str, dst: Place, a: Place, scalar: float, dtype: DType) -> None:
        """dst = a op scalar."""
        self.k.vec_scalar(operation, dst, a, scalar, dtype)
        self._barrier()

    def vec_unary(self, operation: str, dst: Place, a: Place, dtype: DType) -> None:
        """dst = op(a)."""
        self.k.vec_unary(operation, dst, a, dtype)
        self._barrier()

    def vec_compare(self, operation: str, dst: Place, a: Place, b: Place, dtype: DType) -> None:
        """dst = a bit for each element: a op b."""
        self.k.vec_compare(operation, dst, a, b, dtype)
        self._barrier()

    def vec_select(self, dst: Place, mask: Place, a: Place, b: float, dtype: DType) -> None:
        """dst = a where the mask has a 1, else b."""
        self.k.vec_select(dst, mask, a, b, dtype)
        self._barrier()

    def vec_cast(self, dst: Place, src: Place, dtype: DType, to: DType) -> None:
        """dst = src in another type."""
        self.k.vec_cast(dst, src, dtype, to)
        self._barrier()

    def vec_dup(self, dst: Place, value: float, dtype: DType, *, masked: bool = False) -> None:
        """Fill with a value."""
        self.k.vec_dup(dst, value, dtype, masked=masked)
        self._barrier()

    def col2img(self, dst: Place, src: Place, window: Window, tap: int, dtype: DType) -> None:
        """Add positions to the pixels that a tap reads."""
        self.k.col2img(dst, src, window, tap, dtype)
        self._barrier()

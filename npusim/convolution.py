"""The sizes of a convolution and the index arithmetic every convolution kernel shares.

Lower dimensions are 3-D with size 1. Positions follow one relation: output ``o`` reads input
``o * stride - before + tap * dilation`` through filter tap ``tap``; outside the input is zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from npusim.errors import ArgumentError
from npusim.integers import ceil_div
from npusim.layout import GroupPlan, group_plan

Triple = tuple[int, int, int]
Pads = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """Batch, channels, and (depth, height, width) of input, kernel, stride, pads, dilation.

    ``outputs`` overrides the natural output size where a caller's output has another: positions
    it lacks are not computed, and positions beyond the padding read zeros.
    """

    n: int
    cin: int
    cout: int
    spatial: Triple
    kernel: Triple
    stride: Triple = (1, 1, 1)
    padding: Pads = ((0, 0), (0, 0), (0, 0))
    dilation: Triple = (1, 1, 1)
    groups: int = 1
    c0: int = 16
    outputs: Triple | None = None

    def __post_init__(self) -> None:
        for axis, size in zip("DHW", self.out, strict=True):
            if size < 1:
                i = "DHW".index(axis)
                reach = self.dilation[i] * (self.kernel[i] - 1) + 1
                raise ArgumentError(
                    f"output {axis} would be {size}: the filter reaches {reach} but the padded "
                    f"input has {self.spatial[i] + sum(self.padding[i])}; enlarge input or "
                    "padding, or shrink kernel or dilation"
                )

    @cached_property
    def out(self) -> Triple:
        """(depth, height, width) of the forward output."""
        if self.outputs is not None:
            return self.outputs
        d, h, w = (
            (x + before + after - dil * (k - 1) - 1) // s + 1
            for x, k, s, (before, after), dil in zip(
                self.spatial, self.kernel, self.stride, self.padding, self.dilation, strict=True
            )
        )
        return d, h, w

    @cached_property
    def plan(self) -> GroupPlan:
        """How groups share fractals."""
        return group_plan(self.cin, self.cout, self.groups, self.c0)

    @property
    def cin1(self) -> int:
        """C0 blocks of the input's channels."""
        return ceil_div(self.cin, self.c0)

    @property
    def cout1(self) -> int:
        """C0 blocks of the output's channels."""
        return ceil_div(self.cout, self.c0)

    @property
    def taps(self) -> int:
        """Filter positions in the plane: KH * KW."""
        return self.kernel[1] * self.kernel[2]

    @property
    def macs(self) -> int:
        """Multiply-adds of any one of the three convolutions, padding positions included."""
        d, h, w = self.out
        kd, kh, kw = self.kernel
        return self.n * self.cout * (self.cin // self.groups) * d * h * w * kd * kh * kw

    def reach(self, axis: int, first: int, count: int) -> Span:
        """Input positions that outputs ``first``..``first + count - 1`` of an axis touch."""
        before = self.padding[axis][0]
        low = first * self.stride[axis] - before
        high = (
            (first + count - 1) * self.stride[axis]
            - before
            + (self.kernel[axis] - 1) * self.dilation[axis]
            + 1
        )
        start, stop = max(low, 0), min(high, self.spatial[axis])
        return Span(start, max(0, stop - start), start - low, max(0, high - max(stop, start)))


@dataclass(frozen=True)
class Span:
    """A clipped run of input positions: ``start``, ``size``, and padding read on either side."""

    start: int
    size: int
    before: int
    after: int

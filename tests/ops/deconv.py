"""Problems of deconv_grad_filter, the operator on them, and float64 loops to compare with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from hypothesis import strategies as st

import npusim
from npusim.base.records import replace
from npusim.ops import deconv_grad_filter
from npusim.problem.convolution import Convolution
from npusim.results import Result

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The sizes in the words of the library; pairs are (height, width)."""

    batch: int
    in_size: tuple[int, int]
    in_c: int
    out_size: tuple[int, int]
    out_c: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    pad: tuple[int, int]  # above and left; out_size says where dy ends
    dilation: tuple[int, int]
    group: int

    @property
    def icg(self) -> int:
        return self.in_c // self.group

    @property
    def ocg(self) -> int:
        return self.out_c // self.group

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1]

    @property
    def layer(self) -> Convolution:
        """The transposed layer that the kernel is told."""
        return Convolution(
            n=self.batch,
            cin=self.in_c,
            cout=self.out_c,
            spatial=self.in_size,
            kernel=self.kernel,
            stride=self.stride,
            padding=((self.pad[0], 0), (self.pad[1], 0)),
            dilation=self.dilation,
            groups=self.group,
            transposed=True,
            outputs=self.out_size,
        )


def shape(**sizes: Any) -> Problem:
    """A small problem with some sizes changed; dy has its natural size unless given."""
    s = Problem(
        **{"batch": 2, "in_size": (5, 6), "in_c": 4, "out_size": (0, 0), "out_c": 10,
           "kernel": (3, 2), "stride": (1, 1), "pad": (0, 0), "dilation": (1, 1), "group": 1,
           **sizes}
    )  # fmt: skip
    if "out_size" in sizes:
        return s
    h, w = (
        max(1, (i - 1) * st_ - 2 * p + d * (k - 1) + 1)
        for i, st_, p, d, k in zip(s.in_size, s.stride, s.pad, s.dilation, s.kernel, strict=True)
    )
    return replace(s, out_size=(h, w))


def param(s: Problem, workspace: int = 0) -> list[int]:
    """The parameter array of a problem; a workspace has an address that is not 0."""
    return [
        s.batch, *s.in_size, s.in_c, s.batch, *s.out_size, s.out_c, *s.kernel, *s.stride, *s.pad,
        *s.dilation, s.group, workspace, 0, 0,
    ]  # fmt: skip


def operands(s: Problem, kind: Any = np.float32, seed: int = 0) -> tuple[Array, Array]:
    """Random dy and x."""
    rng = np.random.default_rng(seed)
    sizes = ((s.batch, *s.out_size, s.out_c), (s.batch, *s.in_size, s.in_c))
    dy, x = (rng.standard_normal(size).astype(kind) for size in sizes)
    return dy, x


def reads(s: Problem) -> Iterator[tuple[int, ...]]:
    """(kh, kw, ih, iw, r, c) of every place of dy that exists, as the definition has it."""
    (kh, kw), (h, w) = s.kernel, s.in_size
    for u, v, i, j in product(range(kh), range(kw), range(h), range(w)):
        r = i * s.stride[0] - s.pad[0] + u * s.dilation[0]
        c = j * s.stride[1] - s.pad[1] + v * s.dilation[1]
        if 0 <= r < s.out_size[0] and 0 <= c < s.out_size[1]:
            yield u, v, i, j, r, c


def run(s: Problem, kind: Any = np.float32, **options: Any) -> Result:
    """The operator on random operands."""
    return deconv_grad_filter(*operands(s, kind), param(s), **options)


def timed(s: Problem, kind: str = "fp32", **options: Any) -> Result:
    """The operator without numbers."""
    dy = npusim.spec((s.batch, *s.out_size, s.out_c), kind)
    x = npusim.spec((s.batch, *s.in_size, s.in_c), kind)
    return deconv_grad_filter(dy, x, param(s), **options)


def first(result: Result) -> Array:
    """The gradient."""
    assert result.outputs is not None
    dw = result.outputs[0]
    assert dw is not None
    return dw


def moved(result: Result, operand: str) -> int:
    """Bytes that crossed GM for an operand."""
    return sum(row.bytes for row in result.runs[0].traffic if row.operand == operand)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    def pair(low: int, high: int) -> tuple[int, int]:
        return draw(st.integers(low, high)), draw(st.integers(low, high))

    group = draw(st.integers(1, 3))
    batch, icg, ocg = (draw(st.integers(1, most)) for most in (2, 3, 4))
    return Problem(
        batch=batch, in_size=pair(1, 6), in_c=group * icg, out_size=pair(1, 14),
        out_c=group * ocg, kernel=pair(1, 4), stride=pair(1, 3), pad=pair(0, 4),
        dilation=pair(1, 3), group=group,
    )  # fmt: skip

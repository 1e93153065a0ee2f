"""One convolution layer, its float64 gradients, and how far the chip's may be from them.

Shared by the operator tests through fixtures: ``layer`` makes a ``Layer``, ``drawn`` one within
the limits of the tensor compiler's functions, ``close`` compares, ``cases`` reads the table of
published shapes.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume
from hypothesis import strategies as st

from npusim.base.dtypes import DType
from npusim.base.records import replace
from npusim.machine.numerics.executor import execute
from npusim.machine.program.program import Program
from npusim.machine.program.unwritten import check_mistakes
from npusim.problem.reference import (
    conv_bias_grad,
    conv_filter_grad,
    conv_forward,
    conv_input_grad,
    relative_error,
)

Array = np.ndarray[Any, Any]
Pads = tuple[tuple[int, int], ...]
DATA = Path(__file__).parents[1] / "data"

#: Explicit mantissa bits and the exponent of the smallest normal number.
FORMATS = {"fp16": (10, -14), "bf16": (7, -126)}
ACCUMULATION = 1e-5  # relative Frobenius error allowed to fp32 sums


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A convolution of ``x`` (n, cin, spatial), or a transposed one; pads are (before, after)."""

    n: int = 1
    cin: int = 16
    cout: int = 16
    spatial: tuple[int, ...] = (4, 4)
    kernel: tuple[int, ...] = (1, 1)
    stride: tuple[int, ...] = (1, 1)
    pads: Pads = ((0, 0), (0, 0))
    dilation: tuple[int, ...] = (1, 1)
    groups: int = 1
    transposed: bool = False
    output_padding: tuple[int, ...] = (0, 0)

    @property
    def out(self) -> tuple[int, ...]:
        """The spatial size of grad_output; entries below 1 where the kernel does not fit."""
        axes = zip(self.spatial, self.kernel, self.stride, self.pads, self.dilation, strict=True)
        if self.transposed:
            natural = [(x - 1) * s - sum(p) + d * (k - 1) + 1 for x, k, s, p, d in axes]
            return tuple(y + e for y, e in zip(natural, self.output_padding, strict=True))
        return tuple((x + sum(p) - d * (k - 1) - 1) // s + 1 for x, k, s, p, d in axes)

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Shapes of grad_output, input and weight."""
        first, last = (self.cout, self.cin) if self.transposed else (self.cin, self.cout)
        weight = (last, first // self.groups, *self.kernel)
        return (self.n, self.cout, *self.out), (self.n, self.cin, *self.spatial), weight

    @property
    def macs(self) -> int:
        """Multiply-adds of one of the gradients."""
        small = self.spatial if self.transposed else self.out
        return self.n * self.cout * self.cin // self.groups * prod(small) * prod(self.kernel)

    @property
    def padding(self) -> list[int]:
        """The operator's padding: one per dimension, or in 2-D [up, down, left, right]."""
        if all(before == after for before, after in self.pads):
            return [before for before, _ in self.pads]
        return [p for pair in self.pads for p in pair]

    @property
    def arguments(self) -> dict[str, Any]:
        """convolution_backward's arguments besides the tensors."""
        return {
            "bias_sizes": (self.cout,),
            "stride": list(self.stride),
            "padding": self.padding,
            "dilation": list(self.dilation),
            "transposed": self.transposed,
            "output_padding": list(self.output_padding),
            "groups": self.groups,
        }

    def operands(self, kinds: tuple[DType, DType, DType], seed: int = 0) -> list[Array]:
        """Random grad_output, input and weight of these types."""
        rng = np.random.default_rng(seed)
        pairs = zip(self.shapes, kinds, strict=True)
        return [rng.standard_normal(shape).astype(kind.numpy) for shape, kind in pairs]

    def bias_reference(self, dy: Array) -> Array:
        """The float64 gradient of the bias: zeros for an input without channels."""
        return conv_bias_grad(dy) * (self.cin > 0)

    def reference(self, dy: Array, x: Array, w: Array) -> tuple[Array, Array]:
        """float64 gradients of input and weight."""
        parts = (self.stride, self.pads, self.dilation, self.groups)
        if not self.transposed:
            dx = conv_input_grad(dy, w, x.shape, *parts)
            return dx, conv_filter_grad(x, dy, self.kernel, *parts)
        # Of the plain convolution, dy is the input. Output padding beyond the stride gives it
        # outputs that x does not have: they count as zeros.
        dx = conv_forward(dy, w, *parts)
        inside = tuple(slice(0, size) for size in x.shape)
        whole = np.zeros((*x.shape[:2], *dx.shape[2:]))
        whole[inside] = x
        return dx[inside], conv_filter_grad(dy, whole, self.kernel, *parts)

    def expressible(self) -> tuple[Layer, tuple[slice, ...]]:
        """The same layer with even padding outside 2-D, and where x lies in its larger input."""
        everything = (slice(None), slice(None))
        if len(self.spatial) == 2:
            return self, everything
        common = [min(pair) for pair in self.pads]
        before = [p[0] - c for p, c in zip(self.pads, common, strict=True)]
        grown = [
            x + sum(p) - 2 * c for x, p, c in zip(self.spatial, self.pads, common, strict=True)
        ]
        inside = [slice(b, b + x) for b, x in zip(before, self.spatial, strict=True)]
        even = replace(self, spatial=tuple(grown), pads=tuple((c, c) for c in common))
        return even, (*everything, *inside)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row of the table of published shapes; ``line`` counts from 2, below the header."""

    line: int
    op: str
    layer: Layer
    dtype: str
    source: str

    @property
    def size_bytes(self) -> int:
        """The largest operand as fp32 with whole channel blocks."""
        s = self.layer
        maps = ((s.cin, s.spatial), (s.cout, s.out))
        largest = max(s.n * (c + 16) * prod(size) for c, size in maps)
        return 4 * max(largest, (s.cout + 16) * (s.cin // s.groups + 16) * prod(s.kernel))

    @property
    def runs(self) -> bool:
        """Whether it is small enough to compute: 2e8 multiply-adds, 2 GB."""
        return self.layer.macs < 2e8 and self.size_bytes <= 2e9

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Types to run it in; a source that names none is run in two."""
        if self.dtype == "any":
            return ("float16", "float32") if self.op != "DeconvGradFilter" else ("float32",)
        return (self.dtype,)


def read_cases() -> list[Case]:
    """The table of published shapes."""
    with (DATA / "cases.csv").open(newline="") as file:
        return [_case(line, row) for line, row in enumerate(csv.DictReader(file), 2)]


def _case(line: int, row: dict[str, str]) -> Case:
    sizes = {
        name: tuple(map(int, row[name].split("x")))
        for name in ("spatial", "kernel", "stride", "padding", "dilation", "output_padding")
    }
    pads, dims = sizes.pop("padding"), int(row["dims"])
    even = len(pads) == dims
    layer = Layer(
        n=int(row["N"]),
        cin=int(row["Cin"]),
        cout=int(row["Cout"] or row["Cin"]),
        pads=tuple(zip(pads, pads, strict=True) if even else zip(*[iter(pads)] * 2, strict=True)),
        groups=int(row["groups"]),
        transposed=row["transposed"] == "1",
        **sizes,
    )
    return Case(line=line, op=row["op"], layer=layer, dtype=row["dtype"], source=row["source"])


def half_ulp(values: Array, kind: DType) -> Array:
    """Half the distance between neighbours of ``kind`` at each value."""
    bits, least = FORMATS[kind.name]
    _, exponent = np.frexp(np.abs(values))
    spacing: Array = np.exp2(np.maximum(exponent - 1, least) - bits - 1.0)
    return spacing


def assert_close(
    name: str, got: Array | None, want: Array, rounded: tuple[DType, ...], kind: DType
) -> None:
    """``got`` is of type ``kind`` and within tolerance of ``want``.

    fp32 sums may be off by 1e-5 in the Frobenius norm; every rounding to a type of ``rounded``
    adds half a unit of it to each element.
    """
    assert got is not None, name
    assert got.dtype == kind.numpy, (name, got.dtype, kind)
    assert got.shape == want.shape, (name, got.shape, want.shape)
    off = np.abs(got.astype(np.float64) - want)
    live = want[want != 0]
    scale = float(np.sqrt(np.mean(live**2))) if live.size else 0.0
    narrow = [kind for kind in rounded if kind.bytes == 2]
    if not narrow:
        assert relative_error(got, want) <= ACCUMULATION, name
        return
    allowed = np.full(want.shape, ACCUMULATION * scale) + sum(
        half_ulp(want, kind) for kind in narrow
    )
    worst = np.unravel_index(np.argmax(off - allowed), off.shape) if off.size else ()
    assert (off <= allowed).all(), (name, worst, got[worst], want[worst], allowed[worst])


def drawn_layer(data: st.DataObject, dims: int, *, plane: bool = False) -> Layer:
    """Any small layer that has an output; dilated in the ``plane`` only, or along any axis."""

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(data.draw(st.integers(low, high)) for _ in range(dims))

    groups = data.draw(st.sampled_from((1, 1, 2, 3, 4, 17)))
    dilation = each(1, 2)
    case = Layer(
        n=data.draw(st.integers(1, 3)),
        cin=groups * data.draw(st.integers(1, 40 // groups)),
        cout=groups * data.draw(st.integers(1, 40 // groups)),
        spatial=each(1, 9 if dims == 2 else 6),
        kernel=each(1, 4 if dims == 2 else 3),
        stride=each(1, 3),
        pads=tuple(zip(each(0, 2), each(0, 2), strict=True)),
        dilation=(1, *dilation[1:]) if plane else dilation,
        groups=groups,
        output_padding=(0,) * dims,
    )
    assume(min(case.out) >= 1)
    return case


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests of ``case`` on every row and type, of ``sampled_case`` on forty of them."""
    for name, sample in (("case", None), ("sampled_case", 40)):
        if name not in metafunc.fixturenames:
            continue
        pairs = [(case, dtype) for case in read_cases() if case.runs for dtype in case.dtypes]
        if sample is not None:
            rng = np.random.default_rng(20)
            small = [pair for pair in pairs if pair[0].layer.macs < 2e7]
            pairs = [small[i] for i in sorted(rng.choice(len(small), sample, replace=False))]
        ids = [f"{case.line}-{case.op}-{dtype}" for case, dtype in pairs]
        metafunc.parametrize(name, pairs, ids=ids)


@pytest.fixture(scope="session")
def cases() -> list[Case]:
    return read_cases()


@pytest.fixture(scope="session")
def layer() -> Callable[..., Layer]:
    return Layer


@pytest.fixture(scope="session")
def drawn() -> Callable[..., Layer]:
    return drawn_layer


@pytest.fixture(scope="session")
def close() -> Callable[..., None]:
    return assert_close


@pytest.fixture(autouse=True, scope="module")
def _no_races() -> Iterator[None]:
    """Every kernel that computes numbers here is looked through for its mistakes, asked or not."""

    def executed(program: Program, *rest: Any) -> None:
        execute(program, *rest)
        check_mistakes(program)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("npusim.machine.numerics.executor.execute", executed)
        yield

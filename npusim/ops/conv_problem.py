"""Arguments of a convolution's backward in framework layout, brought to one 3-D form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from npusim.call.spec import Array, Spec
from npusim.convolution import Convolution, Pads, Triple
from npusim.dtypes import DType, dtype
from npusim.errors import ArgumentError

Operand = Array | Spec


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One convolution_backward call; sizes are 3-D, lower dimensions padded with ones.

    ``plain`` is the ordinary convolution underneath: of a transposed one, gradOutput is its
    input and the input its output gradient.
    """

    dims: int
    grad_output: Operand
    input: Operand
    weight: Operand
    kinds: tuple[DType, DType, DType]  # of the three, in that order
    stride: Triple
    padding: Pads
    dilation: Triple
    output_padding: Triple
    transposed: bool
    groups: int

    @property
    def timing_only(self) -> bool:
        """Whether any operand is a ``Spec``."""
        return any(isinstance(t, Spec) for t in (self.grad_output, self.input, self.weight))

    @property
    def empty(self) -> bool:
        """Whether batch or channels are zero: gradients are empty or zero, nothing is launched."""
        return 0 in self.input.shape[:2] or 0 in self.weight.shape[:2]

    def plain(self, c0: int) -> Convolution:
        """The convolution the kernels compute, for channel blocks of ``c0``."""
        first, last = (
            (self.grad_output, self.input) if self.transposed else (self.input, self.grad_output)
        )
        return Convolution(
            n=first.shape[0],
            cin=first.shape[1],
            cout=last.shape[1],
            spatial=_triple(first.shape[2:]),
            kernel=_triple(self.weight.shape[2:]),
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
            c0=c0,
            outputs=_triple(last.shape[2:]),
        )

    def describe(self) -> str:
        """One line for reports."""
        what = "transposed convolution" if self.transposed else "convolution"
        sizes = "x".join(map(str, self.input.shape[2:]))
        kernel = "x".join(map(str, self.weight.shape[2:]))
        groups = f", groups {self.groups}" if self.groups > 1 else ""
        channels = f"{self.input.shape[1]} -> {self.grad_output.shape[1]} channels"
        return (
            f"backward of a {self.dims}-D {what}, {channels}, kernel {kernel}, stride "
            f"{list(self.stride[3 - self.dims :])}, input {self.input.shape[0]} x {sizes}{groups}; "
            f"{self.kinds[1]}"
        )


def make_problem(
    grad_output: Any,
    input: Any,
    weight: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    output_padding: Any,
    transposed: bool,
    groups: int,
) -> Problem:
    """Check ranks, lengths and shapes, and build the ``Problem``; ``ArgumentError`` otherwise."""
    names = ("grad_output", "input", "weight")
    tensors = [t if isinstance(t, Spec) else np.asarray(t) for t in (grad_output, input, weight)]
    ranks = {len(t.shape) for t in tensors}
    if len(ranks) != 1 or not ranks <= {3, 4, 5}:
        shapes = ", ".join(f"{n} {tuple(t.shape)}" for n, t in zip(names, tensors, strict=True))
        raise ArgumentError(f"{shapes}: all three must have one rank of 3 (NCL), 4 or 5 (NCDHW)")
    dims = ranks.pop() - 2
    kinds = tuple(dtype(t.dtype) for t in tensors)
    problem = Problem(
        dims=dims,
        grad_output=tensors[0],
        input=tensors[1],
        weight=tensors[2],
        kinds=cast("tuple[DType, DType, DType]", kinds),
        stride=_triple(_per_dim("stride", stride, dims, 1)),
        padding=_pads(padding, dims),
        dilation=_triple(_per_dim("dilation", dilation, dims, 1)),
        output_padding=_triple(_output_padding(output_padding, dims), fill=0),
        transposed=bool(transposed),
        groups=int(groups),
    )
    _check_shapes(problem)
    return problem


def _check_shapes(p: Problem) -> None:
    """Channels and spatial sizes of the three tensors fit each other."""
    if p.groups < 1:
        raise ArgumentError(f"groups is {p.groups}; it must be at least 1")
    if not p.transposed and any(p.output_padding):
        raise ArgumentError(
            f"output_padding is {p.output_padding[3 - p.dims :]}; it must be 0 unless transposed"
        )
    if p.grad_output.shape[0] != p.input.shape[0]:
        raise ArgumentError(
            f"grad_output has batch {p.grad_output.shape[0]}, input {p.input.shape[0]}; they "
            "must agree"
        )
    first, last = (p.grad_output, p.input) if p.transposed else (p.input, p.grad_output)
    names = ("grad_output", "input") if p.transposed else ("input", "grad_output")
    want = (p.weight.shape[1] * p.groups, p.weight.shape[0])
    for tensor, name, channels in zip((first, last), names, want, strict=True):
        if tensor.shape[1] != channels or channels % p.groups:
            raise ArgumentError(
                f"{name} has {tensor.shape[1]} channels; weight {tuple(p.weight.shape)} with "
                f"groups {p.groups} makes it {channels}, a multiple of groups"
            )
    _check_spatial(p, tuple(first.shape[2:]), tuple(last.shape[2:]))


def _check_spatial(p: Problem, x: tuple[int, ...], y: tuple[int, ...]) -> None:
    """grad_output's size follows from the input's, in the direction of the layer."""
    skip = 3 - p.dims
    for i in range(p.dims):
        (before, after), d, s = p.padding[skip + i], p.dilation[skip + i], p.stride[skip + i]
        reach = d * (p.weight.shape[2 + i] - 1) + 1
        if p.transposed:
            extra = p.output_padding[skip + i]
            want = (y[i] - 1) * s - before - after + reach + extra
            name, got = "grad_output", x[i]
        else:
            want = (x[i] + before + after - reach) // s + 1
            name, got = "grad_output", y[i]
        if got != want or want < 1:
            raise ArgumentError(
                f"{name} has size {got} in spatial dimension {i}; input "
                f"{tuple(p.input.shape[2:])}, kernel {tuple(p.weight.shape[2:])}, stride {s}, "
                f"padding {(before, after)}, dilation {d} make it {want}"
                + (f" with output_padding {p.output_padding[skip + i]}" if p.transposed else "")
            )


def _per_dim(name: str, value: Any, dims: int, least: int) -> tuple[int, ...]:
    """One integer per dimension; a single one serves all."""
    values = list(value) if isinstance(value, Sequence) else [value]
    if len(values) == 1:
        values *= dims
    if len(values) != dims or any(
        not isinstance(v, (int, np.integer)) or isinstance(v, bool) or v < least for v in values
    ):
        raise ArgumentError(
            f"{name} is {value!r}; it must be 1 or {dims} integers, each at least {least}"
        )
    return tuple(int(v) for v in values)


def _output_padding(value: Any, dims: int) -> tuple[int, ...]:
    """One per dimension; the four-element form of 2-D names each twice, [h, h, w, w]."""
    if isinstance(value, Sequence) and dims == 2 and len(value) == 4:
        up, down, left, right = _per_dim("output_padding", value, 4, 0)
        if (up, left) != (down, right):
            raise ArgumentError(
                f"output_padding is {value!r}; in the form of four both entries of an axis agree"
            )
        return up, left
    return _per_dim("output_padding", value, dims, 0)


def _pads(value: Any, dims: int) -> Pads:
    """(before, after) per dimension; 2-D also takes [up, down, left, right]."""
    if isinstance(value, Sequence) and dims == 2 and len(value) == 4:
        up, down, left, right = _per_dim("padding", value, 4, 0)
        return (0, 0), (up, down), (left, right)
    one = _triple(_per_dim("padding", value, dims, 0), fill=0)
    return (one[0], one[0]), (one[1], one[1]), (one[2], one[2])


def _triple(values: Sequence[int], fill: int = 1) -> Triple:
    """The last entries of (depth, height, width); missing leading ones are ``fill``."""
    d, h, w = (*(fill,) * (3 - len(values)), *(int(v) for v in values))
    return d, h, w

"""The sizes of a convolution, and the index arithmetic of everything that computes one.

Axes are in the frameworks' order: one to three of (depth, height, width). Positions follow one
relation: output ``o`` reads input ``o * stride - before + tap * dilation`` through filter tap
``tap``; outside the input is zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from math import prod

from npusim.base.errors import ArgumentError
from npusim.base.records import replace
from npusim.problem.axis import Axis, Use
from npusim.problem.layouts import GroupPlan, group_plan

#: One entry per spatial dimension.
Sizes = tuple[int, ...]
#: (before, after) per spatial dimension.
Sides = tuple[tuple[int, int], ...]


def output_sizes(
    spatial: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int],
) -> Sizes:
    """Places of the filter along each axis; below 1 where it reaches past the padded input."""
    axes = zip(spatial, kernel, stride, padding, dilation, strict=True)
    return tuple((x + sum(pads) - d * (k - 1) - 1) // s + 1 for x, k, s, pads, d in axes)


def transposed_sizes(
    spatial: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int],
    extra: Sequence[int],
) -> Sizes:
    """Output of a transposed convolution along each axis, ``extra`` positions at its end."""
    axes = zip(spatial, kernel, stride, padding, dilation, extra, strict=True)
    return tuple((x - 1) * s - sum(p) + d * (k - 1) + 1 + more for x, k, s, p, d, more in axes)


def sides_of(padding: Sequence[int], axes: int) -> list[tuple[int, int]]:
    """(before, after) per axis of one number per axis, or of two."""
    if len(padding) == 2 * axes:
        return list(zip(padding[::2], padding[1::2], strict=True))
    return [(pad, pad) for pad in padding]


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """Batch, channels, and per axis the sizes of input, filter, stride, padding and dilation.

    ``cin``, ``cout`` and ``spatial`` are what goes into and comes out of the layer, of a
    ``transposed`` one too. ``outputs`` overrides the natural output size where a caller's output
    has another: positions it lacks are not computed, and positions beyond the padding read zeros.
    ``c0`` is the number of channels to a block in the chip's layouts. Raises ``ArgumentError``
    where the layer has no output or groups do not divide channels.
    """

    n: int = 1
    cin: int
    cout: int
    spatial: Sizes
    kernel: Sizes
    stride: Sizes = ()
    padding: Sides = ()
    dilation: Sizes = ()
    groups: int = 1
    transposed: bool = False
    output_padding: Sizes = ()
    outputs: Sizes | None = None
    c0: int = 16

    def __post_init__(self) -> None:
        dims = len(self.spatial)
        for name, usual in _USUAL.items():  # what is left out stands for the usual, on every axis
            if not getattr(self, name):
                object.__setattr__(self, name, (usual,) * dims)
        if self.cin % self.groups or self.cout % self.groups:
            raise ArgumentError(
                f"groups is {self.groups}, which must divide the {self.cin} input and {self.cout} "
                "output channels"
            )
        if min(self.out) < 1:
            raise ArgumentError(self._no_output())

    @classmethod
    def unchecked(
        cls,
        *,
        n: int,
        cin: int,
        cout: int,
        spatial: Sizes,
        kernel: Sizes,
        stride: Sizes,
        padding: Sides,
        dilation: Sizes,
        groups: int,
    ) -> Convolution:
        """An ordinary layer of sizes that nobody has judged yet, every axis stated.

        ``replace(layer)`` makes the same layer with the checks.
        """
        stated = {
            "n": n,
            "cin": cin,
            "cout": cout,
            "spatial": spatial,
            "kernel": kernel,
            "stride": stride,
            "padding": padding,
            "dilation": dilation,
            "groups": groups,
        }
        layer = object.__new__(cls)
        for size in fields(cls):
            object.__setattr__(layer, size.name, stated.get(size.name, size.default))
        return layer

    def _no_output(self) -> str:
        """Description of the first axis that has no output."""
        axis = next(i for i, size in enumerate(self.out) if size < 1)
        name, size = "DHW"[3 - self.dims + axis], self.out[axis]
        reach = self.dilation[axis] * (self.kernel[axis] - 1) + 1
        if self.transposed:
            return (
                f"output {name} of the transposed layer would be {size}; use less padding, or a "
                "larger input or filter"
            )
        return (
            f"output {name} would be {size}: the filter reaches {reach} but the padded input has "
            f"{self.spatial[axis] + sum(self.padding[axis])}; enlarge input or padding, or shrink "
            "filter or dilation"
        )

    @property
    def dims(self) -> int:
        """Number of spatial dimensions, 1 to 3."""
        return len(self.spatial)

    @property
    def extra(self) -> Sizes:
        """Output padding of every axis."""
        return self.output_padding or (0,) * self.dims

    @cached_property
    def out(self) -> Sizes:
        """Spatial size of the forward output."""
        if self.outputs is not None:
            return self.outputs
        sizes = (self.spatial, self.kernel, self.stride, self.padding, self.dilation)
        if self.transposed:
            return transposed_sizes(*sizes, self.extra)
        return output_sizes(*sizes)

    # -- as frameworks see it ------------------------------------------------------------------

    @property
    def x_shape(self) -> Sizes:
        """The input, channels first."""
        return (self.n, self.cin, *self.spatial)

    @property
    def dy_shape(self) -> Sizes:
        """The gradient of the output, channels first."""
        return (self.n, self.cout, *self.out)

    @property
    def w_shape(self) -> Sizes:
        """The weight: (Cout, Cin/groups, ...), of a transposed layer (Cin, Cout/groups, ...)."""
        first, last = (self.cin, self.cout) if self.transposed else (self.cout, self.cin)
        return (first, last // self.groups, *self.kernel)

    @property
    def reads(self) -> Sides:
        """Of a transposed layer: padding with which the plain one has exactly the input's places.

        Below and to the right it may be less than none, where the output goes on after the last
        position that is read.
        """
        axes = zip(
            *(self.spatial, self.out, self.kernel, self.stride, self.padding, self.dilation),
            strict=True,
        )
        return tuple(
            (before, (x - 1) * s + d * (k - 1) + 1 - before - y)
            for x, y, k, s, (before, _), d in axes
        )

    @property
    def sides(self) -> list[int]:
        """Padding as [before, after, before, ...]."""
        return [side for both in self.padding for side in both]

    @property
    def unusual(self) -> str:
        """Dilation and groups in words, where there are any: the end of a line for reports."""
        dilation = f", dilation {list(self.dilation)}" if set(self.dilation) != {1} else ""
        return dilation + (f", groups {self.groups}" if self.groups > 1 else "")

    # -- as kernels see it ---------------------------------------------------------------------

    def plain(self) -> Convolution:
        """The ordinary convolution underneath: of a transposed layer, the one that it transposes.

        That one reads the layer's output at exactly the layer's input positions.
        """
        return self.exchanged() if self.transposed else self

    def exchanged(self) -> Convolution:
        """The layer whose output is this one's input gradient, with the same weight.

        That of an ordinary layer is transposed, that of a transposed one ordinary.
        """
        natural = transposed_sizes(
            *(self.out, self.kernel, self.stride, self.padding, self.dilation),
            (0,) * self.dims,
        )
        extra = tuple(x - y for x, y in zip(self.spatial, natural, strict=True))
        return replace(
            self,
            cin=self.cout,
            cout=self.cin,
            spatial=self.out,
            outputs=self.spatial,
            output_padding=() if self.transposed else extra,
            transposed=not self.transposed,
        )

    def lifted(self, c0: int = 16) -> Convolution:
        """The same convolution with three axes, the missing ones of size 1, in blocks of ``c0``."""
        if self.dims == 3:
            return self if c0 == self.c0 else replace(self, c0=c0)
        ones = (1,) * (3 - self.dims)
        return replace(
            self,
            spatial=ones + self.spatial,
            kernel=ones + self.kernel,
            stride=ones + self.stride,
            padding=((0, 0),) * len(ones) + self.padding,
            dilation=ones + self.dilation,
            output_padding=(0,) * len(ones) + self.extra,
            outputs=None if self.outputs is None else ones + self.outputs,
            c0=c0,
        )

    @cached_property
    def plan(self) -> GroupPlan:
        """Plan of how groups share fractals."""
        return group_plan(self.cin, self.cout, self.groups, self.c0)

    @property
    def fractals(self) -> Sizes:
        """The weight in FRACTAL_Z: blocks of input channels by taps, of output channels, 16, C0."""
        rows = self.plan.real_groups * self.plan.cin1_g * prod(self.kernel)
        return (rows, self.plan.cout_g // 16, 16, self.c0)

    @cached_property
    def cin1(self) -> int:
        """C0 blocks of the input's channels."""
        return -(-self.cin // self.c0)

    @cached_property
    def cout1(self) -> int:
        """C0 blocks of the output's channels."""
        return -(-self.cout // self.c0)

    @property
    def cin_per_group(self) -> int:
        """Input channels of a group."""
        return self.cin // self.groups

    @property
    def cout_per_group(self) -> int:
        """Output channels of a group."""
        return self.cout // self.groups

    @cached_property
    def taps(self) -> int:
        """Filter positions in the plane: KH * KW."""
        return prod(self.kernel[-2:])

    @property
    def macs(self) -> int:
        """Multiply-adds of any one of the three convolutions, padding positions included."""
        places = self.spatial if self.transposed else self.out
        return self.n * self.cout * self.cin_per_group * prod(places + self.kernel)

    @cached_property
    def uses(self) -> tuple[Use, ...]:
        """Used parts of each spatial axis of the plain convolution."""
        plain = self.plain()
        return tuple(plain.axis(i).use for i in range(self.dims))

    @property
    def is_depth_wise(self) -> bool:
        """True where each group has one input or one output channel."""
        return self.groups > 1 and self.groups == min(self.cin, self.cout)

    @property
    def useful_macs(self) -> int:
        """Multiply-adds of any one of the three convolutions on elements that are there.

        Those on zeros of padding, and on zeros between strided positions, are left out.
        """
        pairs = prod(use.pairs for use in self.uses)
        return self.n * self.cout * self.cin_per_group * pairs

    @property
    def one_window(self) -> bool:
        """True if the filter of an ordinary layer is as large as its input, which nothing pads.

        There is one output position then, a sum over the whole image, as of a fully connected
        layer.
        """
        return self.side_by_side and set(self.out) == {1}

    @property
    def side_by_side(self) -> bool:
        """True if windows of an ordinary layer without groups cover its input, each element once.

        The filter is as large as the stride, or as the input.
        """
        unpadded = set(self.padding) == {(0, 0)} and self.groups == 1 and not self.transposed
        axes = zip(self.spatial, self.out, self.kernel, self.stride, self.dilation, strict=True)
        return unpadded and all(
            size == out * taps and (out == 1 or step == taps) and (taps == 1 or apart == 1)
            for size, out, taps, step, apart in axes
        )

    def channel_blocks(self, c0: int) -> dict[str, tuple[int, int]]:
        """Channels by name, and what whole fractals of the cube make of them.

        Where groups share fractals, that is of all the channels that are multiplied together.
        """
        plan = self.plain().lifted(c0).plan
        read, written = ("Cout", "Cin") if self.transposed else ("Cin", "Cout")
        if plan.groups == 1:
            return {read: (plan.cin, plan.cin1_g * c0), written: (plan.cout, plan.cout_g)}
        return {
            f"{read}/groups": (plan.cin_per_group, plan.cin1_g * c0),
            f"{written} of {plan.mag_factor} group{'s' * (plan.mag_factor > 1)}": (
                plan.mag_factor * plan.cout_per_group,
                plan.cout_g,
            ),
        }

    @property
    def reads_any(self) -> bool:
        """True if any output reads any input at all, and not just padding."""
        return all(self.axis(i).reads_any for i in range(self.dims))

    def used(self, what: str, size: int) -> int:
        """Of ``size`` bytes of an operand of the plain convolution, those that take part.

        ``what`` is "inputs", "outputs" or "taps"; its channels and images are spread evenly.
        """
        plain = self.plain()
        extents = {"inputs": plain.spatial, "outputs": plain.out, "taps": plain.kernel}[what]
        live: list[int] = [getattr(use, what) for use in self.uses]
        return size // prod(extents) * prod(live)

    def axis(self, i: int) -> Axis:
        """Reading of the inputs by the outputs along spatial axis ``i``."""
        return Axis(
            size=self.spatial[i],
            out=self.out[i],
            kernel=self.kernel[i],
            stride=self.step(i),
            before=self.padding[i][0],
            dilation=self.dilation[i],
        )

    def step(self, i: int) -> int:
        """The stride along axis ``i``; 1 where the only output leaves it without a meaning."""
        return self.stride[i] if self.out[i] > 1 else 1

    def gradient_axis(self, i: int) -> Axis:
        """Axis ``i`` as the input's gradient reads the output's; taps run backwards."""
        return Axis(
            size=self.out[i],
            out=self.spatial[i],
            kernel=self.kernel[i],
            before=self.dilation[i] * (self.kernel[i] - 1) - self.padding[i][0],
            dilation=self.dilation[i],
            insert=self.step(i),
        )


#: What an axis has where nothing is said.
_USUAL = {"stride": 1, "padding": (0, 0), "dilation": 1}

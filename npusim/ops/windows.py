"""Sliding windows over images, which im2col and its backward share: one adds back the other's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

from npusim.base.dtypes import FP16, FP32, DType, dtype
from npusim.base.errors import ArgumentError
from npusim.base.integers import ceil_div
from npusim.call.call import Call
from npusim.call.spec import Operand
from npusim.call.tiling import own_tiling
from npusim.isa.operands import Tensor
from npusim.kernels.parts.spread import Spread
from npusim.kernels.trans_data import Conversion, TransData
from npusim.ops.arguments import frozen
from npusim.ops.card import Card, Stated
from npusim.ops.layer import per_axis
from npusim.results import Result
from npusim.shapes.convolution import Convolution, Sizes, output_sizes

#: Channels in a block of the conversion, also for fp32 (this conversion knows no other).
C0 = 16


class Windows(NamedTuple):
    """The windows as a convolution that gives each tap its channel, and (N,) or ()."""

    c: Convolution
    lead: Sizes

    @property
    def image(self) -> str:
        """Axes of the image."""
        return "N, C, H, W" if self.lead else "C, H, W"

    @property
    def patches(self) -> str:
        """Axes of the patches."""
        return "N, C*KH*KW, L" if self.lead else "C*KH*KW, L"

    @property
    def image_shape(self) -> Sizes:
        """Shape of the image."""
        return (*self.lead, self.c.cin, *self.c.spatial)

    @property
    def settings(self) -> tuple[Sizes, Sizes, Sizes, Sizes]:
        """Kernel, dilation, padding and stride, in the order of the calls' arguments."""
        c = self.c
        return c.kernel, c.dilation, tuple(before for before, _ in c.padding), c.stride

    @classmethod
    def stated(cls, stated: Stated, lead: Sizes, channels: int, size: Sizes) -> Windows:
        """Those of a command line over images of known shape."""
        settings = {
            "stride": per_axis(stated, "stride", 2, (1,)),
            "padding": _padding(stated),
            "dilation": per_axis(stated, "dilation", 2, (1,)),
        }
        return cls(windows(lead, channels, size, stated_kernel(stated), settings), lead)


def windows(
    lead: Sizes, channels: int, size: Sizes, kernel: Sizes, settings: Mapping[str, Any]
) -> Convolution:
    """The convolution that cuts patches: one channel out per channel and tap.

    ``settings`` has stride, padding (the same on opposite sides) and dilation.
    """
    return Convolution(
        n=prod(lead),
        cin=channels,
        cout=channels * prod(kernel),
        spatial=size,
        kernel=kernel,
        stride=settings["stride"],
        padding=tuple((p, p) for p in settings["padding"]),
        dilation=settings["dilation"],
        groups=channels,
    )


def window_facts(kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> dict[str, Any]:
    """What the limits are told of windows."""
    names = ("kernel_size", "dilation", "padding", "stride")
    given = map(frozen, (kernel_size, dilation, padding, stride))
    return dict(zip(names, given, strict=True))


def planes(c: Convolution, n: int, block: int) -> Convolution:
    """The same windows over ``n`` planes of ``block`` channels, as the kernels see them."""
    return replace(c, n=n, cin=block, cout=block * c.taps, groups=block)


class Passage(NamedTuple):
    """What makes patches of an image, or one of patches, in a call of the operator ``card``.

    ``layer`` reads facts that the limits have let pass. ``tiled`` gives the kernel for planes on so
    many cores, with that tiling or the best there is.
    """

    card: Card[Windows]
    reads: str
    makes: str
    layer: Callable[[Mapping[str, Any]], Convolution]
    tiled: Callable[[Call, Convolution, Tensor, Tensor, int, Any], Spread]

    def run(
        self, call: Call, array: Operand, checked: Mapping[str, Any], shape: Sizes, size: Sizes
    ) -> Result:
        """The result of ``shape``, of an image of ``size`` and facts that the limits let pass."""
        own = require_vector(call, self.reads, array)
        out, source = call.output("out", shape, own), call.input(self.reads, array, own)
        count = 0
        if 0 in array.shape:
            call.notes.append(f"{self.reads} is empty: nothing is launched or written")
        else:
            c = self.layer(checked)
            count = c.n * c.cin
            self._convert(call, c, source, out)
        problem = f"{windows_problem(count, size, checked)}; {own}"
        return call.result({self.makes: call.arrays.get("out")}, problem, own)

    def _convert(self, call: Call, c: Convolution, source: Tensor, out: Tensor) -> None:
        """The kernel, between conversions to 5HD and back where it reads nothing else."""
        blocks = c.n * ceil_div(c.cin, C0)
        if len(source.shape) == 5:
            self._launch(call, planes(c, blocks, C0), source, out)
        elif call.device.overlap_sums == "fp32":  # this generation reads the framework layout
            self._launch(call, planes(c, c.n * c.cin, 1), source, out)
        else:
            both = c.x_shape, (c.n, c.cin, c.taps, prod(c.out))
            first, last = both if self.reads == "image" else both[::-1]
            source, out = replace(source, shape=first), replace(out, shape=last)
            to_5hd = Conversion(kind="to_blocked", c0=C0)
            from_5hd = Conversion(kind="from_blocked", c0=C0)
            named = f"{self.reads.removesuffix('_output')}_5hd"
            read = call.workspace(named, to_5hd.blocked_shape(source.shape), source.dtype)
            made = call.workspace("out_5hd", from_5hd.blocked_shape(out.shape), source.dtype)
            call.launch_spread(TransData(to_5hd, source, replace(read, role="out")))
            self._launch(call, planes(c, blocks, C0), replace(read, role="in"), made)
            call.launch_spread(TransData(from_5hd, replace(made, role="in"), out))

    def _launch(self, call: Call, shape: Convolution, source: Tensor, out: Tensor) -> None:
        """The kernel on tensors of planes, tiled for the cores that it uses."""
        ((kernel, kind),) = self.card.tilings.items()
        given = own_tiling(call.options.tiling, kernel.name, kind)
        cores = call.vector_cores
        made: Any = self.tiled(call, shape, source, out, cores, given)
        if given is None:
            made = call.spread(made)
            best: Any = self.tiled(call, shape, source, out, made.used(cores), None)
            made = replace(made, tiling=best.tiling)
        call.launch(made)


def require_vector(call: Call, name: str, given: Operand) -> DType:
    """The operand's type; raise unless the device has vector units that know it."""
    found = dtype(given.dtype)
    call.device.core_kind("vector")  # a device without one is refused for that, not for a type
    known = [one.name for one in (FP16, FP32) if one.name in call.device.dtypes]
    if found.name not in known:
        raise ArgumentError(
            f"{name} is {found}; {call.operator} takes {' or '.join(known)} on {call.device.name}"
        )
    return found


def windows_problem(count: int, size: Sizes, checked: Mapping[str, Any]) -> str:
    """One line for reports, of ``count`` planes; also of empty operands."""
    (h, w), (kh, kw), pads = size, checked["kernel_size"], checked["padding"]
    strides, gaps = checked["stride"], checked["dilation"]
    lh, lw = output_sizes((h, w), (kh, kw), strides, [(p, p) for p in pads], gaps)
    dilation = f", dilation {list(gaps)}" if gaps != (1, 1) else ""
    return (
        f"{count} planes of {h}x{w} from {lh}x{lw} windows of {kh}x{kw}, stride "
        f"{list(strides)}, pad {list(pads)}{dilation}"
    )


def stated_kernel(stated: Stated) -> Sizes:
    """The size of a window, which a command line must state."""
    if stated["kernel"] is None:
        raise ArgumentError(f"{stated.operator} needs --kernel HxW; give it")
    return per_axis(stated, "kernel", 2, ())


def _padding(stated: Stated) -> Sizes:
    """(height, width), the same on opposite sides."""
    value = stated["padding"] or 0
    sides = ((value, value),) * 2 if isinstance(value, int) else value
    if len(sides) != 2 or any(before != after for before, after in sides):
        raise ArgumentError(
            f"--padding of {stated.operator} is one number, or HxW such as 1x2: the same on "
            "opposite sides"
        )
    return tuple(before for before, _ in sides)

"""convolution: the forward pass of a layer on framework layouts, 1-D to 3-D."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any

from npusim.base.dtypes import BF16, FP16, FP32, dtype, promote
from npusim.base.errors import ArgumentError
from npusim.base.integers import ceil_div
from npusim.base.records import replace
from npusim.call.spec import Array, Operand, Spec
from npusim.kernels.implicit_gemm.forward import ConvForward
from npusim.kernels.implicit_gemm.implicit_gemm import Tiling
from npusim.kernels.implicit_gemm.input_gradient import ConvBackpropInput
from npusim.kernels.matmul.matmul import Matmul
from npusim.kernels.matmul.matmul import Tiling as ProductTiling
from npusim.kernels.vector.bias_add import BiasAdd
from npusim.machine.isa.operands import Tensor
from npusim.ops.arguments import flag, operand, per_dim, scalar
from npusim.ops.blocked_gradients import launch, product
from npusim.ops.card import LIMITS, Card, Input, Output, Sample
from npusim.ops.conv_backward import FACTS, arguments, facts
from npusim.ops.conv_launch import ConvolutionLauncher
from npusim.ops.cube_math import cube_math, cube_math_number
from npusim.ops.layer import Wanted, computed, sample_math, sample_type, stated_plain
from npusim.ops.options import (
    BATCH,
    BIAS,
    CIN,
    COUT,
    CUBE_MATH_TYPE,
    DILATION,
    GROUPS,
    KERNEL,
    LAYER,
    OUTPUT_PADDING,
    PADDING,
    SIZE,
    STRIDE,
    TRANSPOSED,
)
from npusim.problem.convolution import Convolution
from npusim.problem.limits.table import Undocumented
from npusim.results import Result

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from npusim.call.options import Keywords

_TYPES = (FP16, BF16, FP32)

#: Said where a bias is added: the library adds it before the result is rounded.
_BIAS = (
    "the bias is added by the vector unit to the rounded result; the library adds it to the cube's "
    "fp32 sums, without a kernel of its own"
)


def convolution(
    input: Array | Spec,
    weight: Array | Spec,
    bias: Array | Spec | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    transposed: bool = False,
    output_padding: Any = 0,
    groups: int = 1,
    cube_math_type: int | str = "keep_dtype",
    **options: Unpack[Keywords],
) -> Result:
    """A convolution (or transposed convolution) of 1 to 3 spatial dimensions.

    ``input`` is (N, Cin, ...) and ``weight`` (Cout, Cin / groups, ...), transposed (Cin,
    Cout / groups, ...), ``bias`` (Cout,) if there is one: arrays in fp16, bf16 or fp32, or
    ``npusim.spec``s (timing only). ``padding`` is one number, one per dimension, or in 2-D [up,
    down, left, right]. The output has the wider type of input and weight.

    The call launches conversions to blocked layouts, the kernel of the product, the addition of the
    bias, casts, and the conversion back. No page of its limits is at hand: what the kernels can
    compute is taken, and a note says so, and what the limits of the gradients would not permit.
    ``rules="strict"`` refuses the operator for that, ``rules="hardware"`` leaves the note out.
    Keywords are those of ``npusim.call.Options``. Raises ``ArgumentError`` where
    the arguments do not fit each other, or the device cannot compute the call.
    """
    operands = {"input": operand(input), "weight": operand(weight)}
    if bias is not None:
        operands["bias"] = operand(bias)
    call = CARD.begin(options, **operands)
    c = layer_of(
        {name: tuple(value.shape) for name, value in operands.items()},
        stride=stride,
        padding=padding,
        dilation=dilation,
        transposed=flag("transposed", transposed),
        output_padding=output_padding,
        groups=scalar("groups", groups),
    )
    for name, value in operands.items():
        if dtype(value.dtype) not in _TYPES:
            names = ", ".join(kind.name for kind in _TYPES)
            raise ArgumentError(f"{name} is {value.dtype}; it must be one of {names}")
    x, w = operands["input"], operands["weight"]
    promoted = promote((dtype(x.dtype), dtype(w.dtype)), FP32)
    number = cube_math_number(cube_math_type)
    call.check_undocumented(
        facts(
            Spec(c.dy_shape, promoted),
            x,
            w,
            bias_sizes=None,
            stride=stride,
            padding=padding,
            dilation=dilation,
            transposed=transposed,
            output_padding=output_padding,
            groups=groups,
            output_mask=(False, False, False),
            cube_math_type=number,
        )
    )
    math = cube_math(promoted, number, call.device)
    launcher = Forward(call, c, operands, math)
    launcher.decide("output")
    launcher.require_room(promoted)
    tensor = launcher.output(promoted)
    # What an input gradient's kernel computes here is the output.
    call.runs = [replace(run, computes="output" if run.computes else "") for run in call.runs]
    array = call.arrays.get(tensor.name)
    outputs = {"output": None if array is None else array.reshape(c.dy_shape)}
    if bias is not None and not launcher.multiplied:
        call.notes.append(_BIAS)
    problem = _problem(c, promoted.name) + math.remark(promoted)
    return call.result(
        outputs, problem, math.dtype, math.rate, launcher.needed(), launcher.sizes(c, 1)
    )


class Forward(ConvolutionLauncher):
    """Launches the kernels of a layer's forward pass.

    Of an ordinary layer the kernel is that of a transposed layer's input gradient, and the other
    way round.
    """

    def require_room(self, result: Any) -> None:
        """Raise ``CapacityError`` unless operands, copies and the output have room."""
        sizes = {name: self._size(name, {"output"}, result="") for name in ("input", "weight")}
        channels, size = self._output_size
        elements = self.shape.n * prod(size)
        blocked = elements * ceil_div(channels, self.c0) * self.c0 * self.math.dtype.bytes
        if self.products is not None and self.multiplied:
            blocked = self.products.copy_bytes("grad_output")
        sizes["output"] = blocked + elements * channels * result.bytes
        self.call.require_memory(sizes)
        self.require_time({"output"})

    def output(self, result: Any) -> Tensor:
        """The output in the type ``result``, bias included where there is one."""
        if self.products is not None and self.multiplied:
            return self.products.output(result)
        s = self.shape
        call = self.call
        kind = self.math.dtype
        channels, size = self._output_size
        source = self.blocked("input")
        weights = self.fractal(exchanged=self.transposed and kind is FP32)
        shape = (s.n, channels, *size)
        back = self._conversion("from_blocked")
        blocked_shape = back.blocked_shape(shape)
        blocked = call.workspace("output_blocked", blocked_shape, kind)
        kernel = ConvBackpropInput if self.transposed else ConvForward
        launch(call, product(call, kernel, s, source, weights, blocked, self.math.hf32), blocked)
        if "bias" in self.operands:
            flat = call.view(blocked, (*blocked_shape[:3], prod(size[1:]), self.c0))
            call.launch_spread(BiasAdd(flat, self._bias(), saturate=call.device.saturates))
            blocked = call.view(blocked, blocked_shape)
        return self._leave("output", blocked, shape, result, back)

    @property
    def _output_size(self) -> tuple[int, tuple[int, ...]]:
        """Channels and spatial size of the output."""
        s = self.shape
        return (s.cin, s.spatial) if self.transposed else (s.cout, s.out)

    def _bias(self) -> Tensor:
        """The bias in the type that the cube's result has."""
        value = self.operands["bias"]
        kind = self.math.dtype
        tensor = self.call.input("bias", value, dtype(value.dtype))
        return tensor if tensor.dtype is kind else self._cast(tensor, f"bias_{kind}", kind)


def layer_of(
    shapes: Mapping[str, tuple[int, ...]], *, transposed: bool, groups: Any, **per_axis: Any
) -> Convolution:
    """The layer that operands of these shapes and the arguments describe.

    Raises ``ArgumentError`` where they do not fit each other.
    """
    x, w = shapes["input"], shapes["weight"]
    dims = len(w) - 2
    if dims not in (1, 2, 3) or len(x) != len(w):
        raise ArgumentError(
            f"input has shape {x}, weight {w}; both must have 3 axes (1-D), 4 (2-D) or 5 (3-D)"
        )
    if min(*x, *w) < 1:
        raise ArgumentError(f"input has shape {x}, weight {w}; every size must be at least 1")
    if not isinstance(groups, int) or isinstance(groups, bool) or groups < 1:
        raise ArgumentError(f"groups is {groups!r}; it must be an integer of at least 1")
    entries = {name: _entries(name, value, dims) for name, value in per_axis.items()}
    pads = entries["padding"]
    sides = (pads[::2], pads[1::2]) if len(pads) != dims else (pads, pads)
    cin, cout = x[1], w[1] * groups if transposed else w[0]
    wanted = w[0] if transposed else w[1] * groups
    if cin != wanted:
        raise ArgumentError(
            f"input has {cin} channels; a weight of shape {w} with groups {groups} takes {wanted}"
        )
    bias = shapes.get("bias", (cout,))
    if bias != (cout,):
        raise ArgumentError(f"bias has shape {bias}; the layer has ({cout},) output channels")
    extra = entries["output_padding"]
    if any(extra) and not transposed:
        raise ArgumentError(f"output_padding is {list(extra)}; only transposed layers have one")
    limits = zip(extra, entries["stride"], entries["dilation"], strict=True)
    if any(more >= max(step, apart) for more, step, apart in limits):
        raise ArgumentError(
            f"output_padding is {list(extra)}; it must be below stride or dilation on every axis"
        )
    return Convolution(
        n=x[0],
        cin=cin,
        cout=cout,
        spatial=x[2:],
        kernel=w[2:],
        stride=entries["stride"],
        padding=tuple(zip(*sides, strict=True)),
        dilation=entries["dilation"],
        groups=groups,
        transposed=transposed,
        output_padding=extra,
    )


def _entries(name: str, value: Any, dims: int) -> tuple[int, ...]:
    """One entry per dimension, of ``padding`` in 2-D also one per side."""
    entries = per_dim(value, dims)
    least = 1 if name in ("stride", "dilation") else 0
    lengths = (2, 4) if name == "padding" and dims == 2 else (dims,)
    good = isinstance(entries, tuple) and len(entries) in lengths
    if not good or not all(isinstance(n, int) and n >= least for n in entries):
        count = len(entries) if isinstance(entries, tuple) else 0
        by_side = name == "padding" and dims != 2 and count == 2 * dims
        way_out = ": where both sides of an axis differ, pad the input before" if by_side else ""
        raise ArgumentError(
            f"{name} is {value!r}; it must be an integer of at least {least}, or "
            f"{' or '.join(map(str, lengths))} of them{way_out}"
        )
    return tuple(entries)


def _problem(c: Convolution, kind: str) -> str:
    """One line for reports."""
    what = "transposed convolution" if c.transposed else "convolution"
    return (
        f"{c.dims}-D {what}, {c.cin} -> {c.cout} channels, kernel {'x'.join(map(str, c.kernel))}, "
        f"stride {list(c.stride)}, input {c.n} x {'x'.join(map(str, c.spatial))}{c.unusual}; {kind}"
    )


# -- the card ------------------------------------------------------------------------------


def _call(p: Wanted, operands: Mapping[str, Operand], options: dict[str, Any]) -> Result:
    """The call of a command line's problem."""
    return convolution(
        operands["x"],
        operands["w"],
        operands.get("bias"),
        **arguments(p.c),
        cube_math_type=p.cube_math_type,
        **options,
    )


def _limit(sample: Sample[Wanted]) -> float:
    """Of two roundings with a bias, to the type computed with and to that of the result."""
    computed, wider = sample_math(sample, "x", "w").dtype, sample_type(sample, "x", "w")
    most = max(LIMITS[kind.name] for kind in (computed, wider))
    return most * (2 if sample.problem.bias else 1)


CARD: Card[Wanted] = Card(
    function=convolution,
    problem=stated_plain,
    inputs=(
        Input(name="x", axes="N, Cin, ...", shape=lambda p: p.c.x_shape),
        Input(name="w", axes=Wanted.weight_axes, shape=lambda p: p.c.w_shape),
        Input(name="bias", axes="Cout,", shape=lambda p: (p.c.cout,), wanted=lambda p: p.bias),
    ),
    outputs=lambda _: (
        Output(
            name="output",
            axes="(N, Cout, ...)",
            expected=computed("output", "x", "w"),
            limit=_limit,
        ),
    ),
    call=_call,
    dtypes=_TYPES,
    tilings={ConvForward: Tiling, ConvBackpropInput: Tiling, Matmul: ProductTiling},
    without=("deterministic",),
    strided=("input", "weight", "bias", "output"),
    options=(
        LAYER,
        BATCH,
        CIN,
        COUT,
        SIZE,
        KERNEL,
        STRIDE,
        PADDING,
        DILATION,
        GROUPS,
        TRANSPOSED,
        OUTPUT_PADDING,
        BIAS,
        CUBE_MATH_TYPE,
    ),
    example=(
        "npusim run convolution --device ascend910b2 --layer resnet50/res4_3x3 --batch 2 --bias "
        "--check"
    ),
    undocumented=Undocumented(title="aclnnConvolution", sister="convolution_backward", facts=FACTS),
)

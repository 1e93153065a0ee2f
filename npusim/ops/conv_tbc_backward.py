"""conv_tbc_backward: gradients of a 1-D convolution whose tensors have the time axis first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from npusim.base.dtypes import BF16, FP16, FP32, DType, dtype, promote
from npusim.base.records import replace
from npusim.call.call import Call
from npusim.call.spec import Array, Operand, Spec
from npusim.kernels.filter_gradient.filter_gradient import ConvBackpropFilter
from npusim.kernels.filter_gradient.filter_gradient import Tiling as FilterTiling
from npusim.kernels.implicit_gemm.implicit_gemm import Tiling as GemmTiling
from npusim.kernels.implicit_gemm.input_gradient import ConvBackpropInput
from npusim.kernels.layout.layout_change import Change
from npusim.kernels.layout.transpose import Transpose
from npusim.machine.isa.operands import Tensor
from npusim.ops.arguments import CubeMath, cube_math, frozen, operand, scalar, stated_cube_math
from npusim.ops.card import Card, Input, Output, Sample, Stated
from npusim.ops.conv_launch import Launcher
from npusim.ops.convolution_backward import gradients
from npusim.ops.layer import Wanted, stated_layer, wanted
from npusim.problem.convolution import Convolution
from npusim.problem.limits.facts import tensor_facts
from npusim.results import Result

#: Axes of (T, N, C) in the order (N, C, T), of (K, Cin, Cout) in the order (Cout, Cin, K), by
#: operand and gradient; and back.
_ORDER = {
    **dict.fromkeys(("grad_output", "input", "grad_input", "dy", "x"), (1, 2, 0)),
    **dict.fromkeys(("weight", "grad_weight", "w"), (2, 1, 0)),
}
_BACK = {name: tuple(order.index(i) for i in range(3)) for name, order in _ORDER.items()}


def conv_tbc_backward(
    grad_output: Array | Spec,
    input: Array | Spec,
    weight: Array | Spec,
    bias: Array | Spec,
    pad: Any = 0,
    cube_math_type: int | str = "keep_dtype",
    **options: Any,
) -> Result:
    """Gradients of a time-first 1-D convolution.

    ``input`` is (T, N, Cin), ``weight`` (K, Cin, Cout), ``bias`` (Cout,), ``grad_output``
    (T + 2 * pad - K + 1, N, Cout), in fp16, bf16 or fp32 (or ``npusim.spec``s: timing only); the
    bias is looked at for its shape only. The results grad_input, grad_weight and grad_bias have the
    shapes of input, weight and bias, and the types that convolution_backward gives them.

    The call launches transpositions to channels first, what convolution_backward launches for the
    1-D layer of stride 1, and transpositions back. No page of it was at hand: its limits are
    assumed to be those of aclnnConvolutionBackward. Keywords are those of ``npusim.call.Options``.
    Raises ``RuleError`` or ``ArgumentError`` naming the argument.
    """
    dy, x, w = operand(grad_output), operand(input), operand(weight)
    given = {"grad_output": dy, "input": x, "weight": w}
    call = CARD.begin(options, **given)
    checked = facts(dy, x, w, operand(bias), pad, cube_math_type)
    call.check(checked)
    promoted = promote([dtype(one.dtype) for one in given.values()], FP32)
    math, c = cube_math(promoted, checked["cube_math_type"], call.device), convolution(checked)
    launcher = _TimeFirst(call, c, given, math)
    launcher.require((True,) * 3)
    found = (launcher.input_grad(), launcher.weight_grad(), launcher.bias_grad())
    outputs = {tensor.name: call.arrays.get(tensor.name) for tensor in found}
    text = (
        f"backward of a time-first convolution, {c.cin} -> {c.cout} channels, kernel "
        f"{c.kernel[0]}, pad {checked['pad']}, input {c.spatial[0]} x {c.n}; {promoted}"
    )
    sizes = c.channel_blocks(32 // math.dtype.bytes)
    return call.result(outputs, text, math.dtype, math.rate, sizes=sizes)


class _TimeFirst(Launcher):
    """Launches of the channels-first layer between transpositions."""

    lies_plain: ClassVar[bool] = False

    def __init__(
        self, call: Call, c: Convolution, given: Mapping[str, Operand], math: CubeMath
    ) -> None:
        super().__init__(call, c, {name: _turned(name, one) for name, one in given.items()}, math)
        self.given = given

    def operand(self, name: str) -> Tensor:
        """An operand with channels first, 3-D."""
        if name not in self.ready:
            value, order = self.given[name], _ORDER[name]
            x = self.call.input(name, value, dtype(value.dtype))
            shape = tuple(x.shape[axis] for axis in order)
            turned = self.call.workspace(f"{name}_turned", shape, x.dtype)
            self.call.launch_spread(Transpose(order, x, turned))
            self.ready[name] = self.call.view(turned, (*shape[:2], 1, 1, shape[2]))
        return self.ready[name]

    def _result(self, name: str, shape: tuple[int, ...], dtype: DType) -> Tensor:
        """Memory for a gradient with channels first."""
        return self.call.workspace(f"{name}_turned", shape, dtype)

    def _leave(
        self, name: str, blocked: Tensor, shape: tuple[int, ...], dtype: DType, back: Change
    ) -> Tensor:
        turned = super()._leave(name, blocked, shape, dtype, back)
        flat = self.call.view(turned, (*shape[:2], shape[-1]))
        order = _BACK[name]
        y = self.call.output(name, tuple(flat.shape[axis] for axis in order), dtype)
        self.call.launch_spread(Transpose(order, flat, y))
        return y


def _turned(name: str, value: Operand) -> Operand:
    """An operand or gradient with channels first."""
    order = _ORDER[name]
    if isinstance(value, Spec):
        return Spec(tuple(value.shape[axis] for axis in order), value.dtype)
    return value.transpose(order)


def facts(
    grad_output: Any, input: Any, weight: Any, bias: Any, pad: Any, cube_math_type: Any
) -> dict[str, Any]:
    """What the limits are checked against; operands are anything with ``shape`` and ``dtype``."""
    return {
        **tensor_facts(grad_output=grad_output, input=input, weight=weight, bias=bias),
        "pad": scalar("pad", frozen(pad)),
        "cube_math_type": stated_cube_math(cube_math_type),
    }


def convolution(checked: Mapping[str, Any]) -> Convolution:
    """The channels-first layer that facts describe which the limits have let pass."""
    length, n, cin = checked["input.shape"]
    taps, _, cout = checked["weight.shape"]
    pad = checked["pad"]
    return Convolution(
        n=n, cin=cin, cout=cout, spatial=(length,), kernel=(taps,), padding=((pad, pad),)
    )


def _stated(stated: Stated) -> Wanted:
    """The call of a command line; operands given as files show sizes."""
    turned = {
        name: array.transpose(_ORDER[name]) if array.ndim == 3 else array
        for name, array in stated.arrays.items()
    }
    shown = {name: array.shape for name, array in turned.items()}
    c = stated_layer(replace(stated, arrays=turned), shown, 1, layers=False)
    return wanted(stated, c)


def _call(p: Wanted, given: Mapping[str, Operand], options: dict[str, Any]) -> Result:
    bias, pad = Spec((p.c.cout,), dtype(given["dy"].dtype)), p.c.padding[0][0]
    operands = (given["dy"], given["x"], given["w"], bias)
    return conv_tbc_backward(*operands, pad, p.cube_math_type, **options)


def _time_first(one: Output[Wanted], axes: str) -> Output[Wanted]:
    """A gradient of convolution_backward with the time axis first."""

    def expected(sample: Sample[Wanted]) -> Array:
        turned = {name: np.transpose(a, _ORDER[name]) for name, a in sample.arrays.items()}
        found = one.expected(replace(sample, arrays=turned))
        return found.transpose(_BACK[one.name]) if one.name in _BACK else found

    return replace(one, axes=axes, expected=expected)


def _shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape with channels first as the call has it."""
    return tuple(shape[axis] for axis in _BACK[name])


CARD: Card[Wanted] = Card(
    function=conv_tbc_backward,
    problem=_stated,
    inputs=(
        Input(name="x", axes="T, N, Cin", shape=lambda p: _shape("x", p.c.x_shape)),
        Input(name="w", axes="K, Cin, Cout", shape=lambda p: _shape("w", p.c.w_shape)),
        Input(name="dy", axes="T, N, Cout", shape=lambda p: _shape("dy", p.c.dy_shape)),
    ),
    outputs=lambda p: tuple(
        _time_first(one, axes)
        for one, axes in zip(
            gradients(p), ("(T, N, Cin)", "(K, Cin, Cout)", "(Cout,)"), strict=True
        )
    ),
    call=_call,
    dtypes=(FP16, BF16, FP32),
    tilings={ConvBackpropInput: GemmTiling, ConvBackpropFilter: FilterTiling},
    strided=("grad_output", "input", "weight", "grad_input", "grad_weight", "grad_bias"),
)

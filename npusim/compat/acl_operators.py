"""The operators of the C interface, a class each: what phase one checks and plans, two runs.

Signatures stand in ``npusim.compat.aclnn``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from npusim.base.dtypes import dtype
from npusim.base.errors import ArgumentError
from npusim.base.records import replace
from npusim.call.call import Call
from npusim.call.options import Options
from npusim.call.spec import Operand, Spec
from npusim.compat.acl_phases import CallPlan, Feed, layouts_of, usable
from npusim.compat.acl_types import aclScalar, aclTensor
from npusim.kernels.layout.cast import cast
from npusim.ops.conv_forward import layer_of
from npusim.ops.matrix_product import CARD as MATMUL
from npusim.results import Result


class ConvolutionBackwardCall(CallPlan):
    """The gradients of a convolution; ``outputMask`` says which of the three."""

    operator = "convolution_backward"
    inputs = ("gradOutput", "input", "weight")
    outputs: ClassVar = {
        "gradInput": ("input", "gradOutput"),
        "gradWeight": ("weight", "gradOutput"),
        "gradBias": ("gradOutput",),
    }


class ConvolutionCall(CallPlan):
    """A convolution, whose output the caller has to give the right shape."""

    operator = "convolution"
    inputs = ("input", "weight", "bias")
    outputs: ClassVar = {"output": ("input", "weight")}
    optional = ("bias", "outputPadding")

    def run(self, feed: Feed, options: dict[str, Any]) -> Result:
        """Raise ``ArgumentError`` unless the caller's output has the shape of the layer's."""
        result = super().run(feed, options)
        settings = self.values
        shapes = {name: settings.pop(name).shape for name in ("input", "weight", "output")}
        for name in ("bias", "cube_math_type"):
            del settings[name]
        written = layer_of(shapes, **settings).dy_shape
        if shapes["output"] != written:
            raise ArgumentError(f"output has shape {shapes['output']}; the call writes {written}")
        return result


class Im2colCall(CallPlan):
    """The patches of an image; the limits are assumed to be those of aclnnIm2colBackward."""

    operator = "im2col"
    inputs = ("self",)
    outputs: ClassVar = {"out": ("self",)}
    words: ClassVar = {"image.shape": "self.shape", "image.dtype": "self.dtype"}


class Im2colBackwardCall(CallPlan):
    """The sum of patches, which is cast where ``out`` has another dtype than the patches."""

    operator = "im2col_backward"
    inputs = ("gradOutput",)
    outputs: ClassVar = {"out": ("out",)}

    @property
    def casts(self) -> bool:
        """True if the result is cast to the dtype of ``out``."""
        gradient, out = self.arguments["gradOutput"], self.arguments["out"]
        return out.dtype != gradient.dtype and 0 not in gradient.shape

    def layouts(self, names: Sequence[str]) -> dict[str, Spec]:
        """The memory layouts of the operator's tensors; ``out`` is not one if it is cast to."""
        return super().layouts([name for name in names if name != "out" or not self.casts])

    def run(self, feed: Feed, options: dict[str, Any]) -> Result:
        """Run the operator and, where the result is cast, the kernel that casts behind it."""
        result = super().run(feed, options)
        return self._cast(result, options) if self.casts else result

    def _cast(self, result: Result, options: dict[str, Any]) -> Result:
        """Run the kernel that casts, which finds the operator's result in the L2 if it has room."""
        out = self.arguments["out"]
        computed = dtype(self.arguments["gradOutput"].dtype)
        shared = ("cores", "engine", "timeline", "progress")
        call = Call(
            "cast",
            Options(
                device=result.device,
                start="cold" if result.device.l2 is None else "warm",
                check=True,
                layouts=layouts_of({"out": out}),
                **{name: options[name] for name in shared if name in options},
            ),
            timing_only=result.outputs is None,
        )
        image: Operand = Spec(out.shape, computed)
        if result.outputs is not None and result.outputs[0] is not None:
            image = result.outputs[0]
        source = call.input("image", image, computed)
        target = call.output("out", out.shape, dtype(out.dtype))
        call.launch_spread(cast(source, target, saturate=result.device.saturates))
        rounded = call.result({"out": call.arrays.get("out")}, result.problem, target.dtype)
        workspace_bytes = result.workspace_bytes + source.size_bytes + rounded.workspace_bytes
        return replace(
            result,
            runs=(*result.runs, *rounded.runs),
            outputs=rounded.outputs,
            workspace_bytes=workspace_bytes,
        )


class ProductCall(CallPlan):
    """A product of two matrices or of two batches of them: ``out`` = ``self`` @ ``mat2``.

    A tensor whose last two axes are swapped by its strides is read as it lies, by a kernel that
    transposes on the way; one that lies otherwise is copied first.
    """

    operator = "matmul"
    inputs: ClassVar[tuple[str, ...]] = ("self", "mat2")
    outputs: ClassVar = {"out": ("out",)}
    words: ClassVar[Mapping[str, str]] = {
        "a": "self",
        "b": "mat2",
        "bias": "self",
        "out_dtype": "out",
    }

    @property
    def bias(self) -> aclTensor | None:
        """The row that is added to the product, None where nothing is."""
        return None

    def run(self, feed: Feed, options: dict[str, Any]) -> Result:
        """Run the operator; ``ArgumentError`` for another factor than 1 or shape of ``out``."""
        for name, value in self.arguments.items():
            if isinstance(value, aclScalar) and value.value != 1:
                text = f"{name} is {value.value}; only 1 is modelled: scale its operand before"
                raise ArgumentError(text)
        a: aclTensor = self.arguments[self.words["a"]]
        b: aclTensor = self.arguments["mat2"]
        out: aclTensor = self.arguments["out"]
        written = (*a.shape[:-1], b.shape[-1])
        if out.shape != written:
            raise ArgumentError(f"out has shape {out.shape}; the call writes {written}")
        strided = {
            "a": None if a.transposed else a,
            "b": None if b.transposed else b,
            "bias": self.bias,
            "c": out,
        }
        return MATMUL.function(
            _as_it_lies(feed(a), transposed=a.transposed),
            _as_it_lies(feed(b), transposed=b.transposed),
            None if self.bias is None else feed(self.bias),
            transpose_a=a.transposed,
            transpose_b=b.transposed,
            out_dtype=out.dtype,
            cube_math_type=self.arguments["cubeMathType"],
            layouts=layouts_of(strided),
            **usable(options, MATMUL.without),
        )


def _as_it_lies(operand: Operand, *, transposed: bool) -> Operand:
    """An operand with its axes in the order of memory: its last two are swapped if transposed."""
    if not transposed:
        return operand
    if isinstance(operand, Spec):
        return replace(operand, shape=(*operand.shape[:-2], *operand.shape[:-3:-1]))
    return operand.swapaxes(-1, -2)


class ProductSumCall(ProductCall):
    """A product of two matrices and a row: ``out`` = ``self`` + ``mat1`` @ ``mat2``."""

    inputs = ("self", "mat1", "mat2")
    words: ClassVar = {**ProductCall.words, "a": "mat1"}

    @property
    def bias(self) -> aclTensor | None:
        """The row that is added to the product."""
        row: aclTensor = self.arguments["self"]
        return row

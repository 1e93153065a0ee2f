"""The operators of the C interface, a row each: what phase one checks and plans, two runs.

Of the products of matrices no page is at hand: signatures are those of the library's public
headers, and instead of limits of its own what the operator ``matmul`` takes is taken. A tensor
whose last two axes are swapped by its strides is read as it lies, by a kernel that transposes on
the way; one that lies otherwise is copied first. What is not modelled is refused by name: vectors,
batches that are not alike, empty tensors, and of aclnnAddmm factors other than 1 and a
matrix that is added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from npusim.base.dtypes import dtype
from npusim.base.errors import ArgumentError
from npusim.base.records import replace
from npusim.call.call import Call
from npusim.call.options import Options
from npusim.call.spec import Operand, Spec
from npusim.compat.acl_phases import Feed, Plan, layouts_of, usable
from npusim.compat.acl_types import aclScalar
from npusim.kernels.layout.cast import cast
from npusim.ops.conv_forward import layer_of
from npusim.ops.matrix_product import CARD as MATMUL
from npusim.results import Result

_GRADIENTS = {
    "gradInput": "input gradOutput",
    "gradWeight": "weight gradOutput",
    "gradBias": "gradOutput",
}


class ConvolutionBackward(Plan):
    """Check and plan a convolution's gradients: (status, workspace size in bytes, executor).

    Tensors are NCL, NCHW or NCDHW; ``outputMask`` says which of the three gradients to compute,
    and the tensors of the others may be None. ``biasSizes`` is read for empty inputs only.
    """

    arguments = (
        "gradOutput input weight biasSizes stride padding dilation transposed outputPadding groups "
        "outputMask cubeMathType gradInput gradWeight gradBias"
    )
    operator = "convolution_backward"
    outputs: ClassVar = _GRADIENTS
    makes = "Compute the gradients and write them in place"


class Convolution(Plan):
    """Check and plan a convolution: (status, workspace size in bytes, executor).

    Tensors are NCL, NCHW or NCDHW; ``bias`` may be None. No page of its limits is at hand: what the
    arguments and the kernels allow is taken, as a note of the result says.
    """

    arguments = (
        "input weight bias stride padding dilation transposed outputPadding groups output "
        "cubeMathType"
    )
    operator = "convolution"
    outputs: ClassVar = {"output": "input weight"}
    makes = "Compute the convolution and write it in place"
    optional = ("bias", "outputPadding")

    def run(self, feed: Feed, options: dict[str, Any]) -> Result:
        """Raise unless the caller's output has the shape of the layer's."""
        result, given = super().run(feed, options), self.values
        shapes = {name: given.pop(name).shape for name in ("input", "weight", "output")}
        layer = {n: v for n, v in given.items() if n not in ("bias", "cube_math_type")}
        made = layer_of(shapes, **layer).dy_shape
        if shapes["output"] != made:
            raise ArgumentError(f"output has shape {shapes['output']}; the call writes {made}")
        return result


class Im2col(Plan):
    """Check and plan the patches of an image: (status, workspace size in bytes, executor).

    ``self`` is (N, C, H, W) or (C, H, W), ``out`` (N, C * KH * KW, L) or (C * KH * KW, L) of the
    same type. The limits are assumed to be those of aclnnIm2colBackward.
    """

    arguments = "self kernelSize dilation padding stride out"
    operator = "im2col"
    outputs: ClassVar = {"out": "self"}
    makes = "Write the patches to ``out``, in place"
    words: ClassVar = {"image.shape": "self.shape", "image.dtype": "self.dtype"}


class Im2colBackward(Plan):
    """Check and plan the sum of patches: (status, workspace size in bytes, executor).

    ``gradOutput`` is (N, C * KH * KW, L) or (C * KH * KW, L), ``out`` (N, C, H, W) or (C, H, W);
    where ``out`` has another type, the result is cast to it.
    """

    arguments = "gradOutput inputSize kernelSize dilation padding stride out"
    operator = "im2col_backward"
    outputs: ClassVar = {"out": "out"}
    makes = "Sum the patches into the image of ``out``, in place"

    @property
    def casts(self) -> bool:
        """Whether the result is cast to the type of ``out``."""
        gradient, out = self.given["gradOutput"], self.given["out"]
        return out.dtype != gradient.dtype and 0 not in gradient.shape

    def layouts(self, names: Sequence[str]) -> dict[str, Spec]:
        """Those of tensors that the operator touches; what is cast is not ``out`` yet."""
        return super().layouts([name for name in names if name != "out" or not self.casts])

    def run(self, feed: Feed, options: dict[str, Any]) -> Result:
        """The operator, and behind it the kernel that casts, which finds in L2 what has room."""
        result = super().run(feed, options)
        if not self.casts:
            return result
        out, kind = self.given["out"], dtype(self.given["gradOutput"].dtype)
        known = {"cores", "engine", "timeline", "progress"}
        call = Call(
            "cast",
            Options(
                device=result.device,
                start="cold" if result.device.l2 is None else "warm",
                check=True,
                layouts=layouts_of({"out": out}),
                **{name: value for name, value in options.items() if name in known},
            ),
            timing_only=result.outputs is None,
        )
        image: Operand = Spec(out.shape, kind)
        if result.outputs is not None and result.outputs[0] is not None:
            image = result.outputs[0]
        source = call.input("image", image, kind)
        target = call.output("out", out.shape, dtype(out.dtype))
        call.launch_spread(cast(source, target, saturate=result.device.saturates))
        rounded = call.result({"out": call.arrays.get("out")}, result.problem, target.dtype)
        return replace(
            result,
            runs=(*result.runs, *rounded.runs),
            outputs=rounded.outputs,
            workspace_bytes=(result.workspace_bytes + source.size_bytes + rounded.workspace_bytes),
        )


class Product(Plan):
    """Check and plan ``out`` = ``self`` @ ``mat2``: (status, workspace size, executor)."""

    arguments = "self mat2 out cubeMathType"
    operator = "matmul"
    outputs: ClassVar = {"out": "out"}
    makes = "Compute the product and write it in place"
    words: ClassVar = {"a": "self", "b": "mat2", "bias": "self", "out_dtype": "out"}

    def run(self, feed: Feed, options: dict[str, Any]) -> Result:
        """Of a product with a sum, ``self`` is what is added."""
        for name, one in self.given.items():
            if isinstance(one, aclScalar) and one.value != 1:
                text = f"{name} is {one.value}; only 1 is modelled: scale its operand before"
                raise ArgumentError(text)
        a, b, target = (self.given[name] for name in (self.words["a"], "mat2", "out"))
        made = (*a.shape[:-1], b.shape[-1])
        if target.shape != made:
            raise ArgumentError(f"out has shape {target.shape}; the call writes {made}")
        bias = None if self.words["a"] == "self" else self.given["self"]
        copied = {"a": None if a.transposed else a, "b": None if b.transposed else b}
        return MATMUL.function(
            _lying(feed(a), turned=a.transposed),
            _lying(feed(b), turned=b.transposed),
            None if bias is None else feed(bias),
            transpose_a=a.transposed,
            transpose_b=b.transposed,
            out_dtype=target.dtype,
            cube_math_type=self.given["cubeMathType"],
            layouts=layouts_of({**copied, "bias": bias, "c": target}),
            **usable(options, MATMUL.without),
        )


def _lying(operand: Operand, *, turned: bool) -> Operand:
    """An operand as it lies in memory, its last two axes ``turned``."""
    if not turned:
        return operand
    if isinstance(operand, Spec):
        return replace(operand, shape=(*operand.shape[:-2], *operand.shape[:-3:-1]))
    return operand.swapaxes(-1, -2)


class Addmm(Product):
    """Check and plan ``out`` = ``self`` + ``mat1`` @ ``mat2``: (status, workspace size, executor).

    ``self`` is a row (N,), ``beta`` and ``alpha`` are 1.
    """

    arguments = "self mat1 mat2 beta alpha out cubeMathType"
    makes = "Compute the product and the sum, and write it in place"
    words: ClassVar = {**Product.words, "a": "mat1"}

"""Gradients of ordinary and transposed convolutions, NHWC, on a DSP cluster.

Each function is made of its kernel and its name; here stands what one does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter, Signature, getdoc
from typing import Any, NamedTuple

from npusim.base.dtypes import FP16, FP32, dtype
from npusim.base.records import replace
from npusim.call.spec import Array, Operand
from npusim.kernels.dsp.grad_filter import ConvGradFilter, DeconvGradFilter
from npusim.kernels.dsp.grad_filter import Tiling as FilterTiling
from npusim.kernels.dsp.grad_input import ConvGradInput, DeconvGradInput
from npusim.kernels.dsp.grad_input import Tiling as InputTiling
from npusim.ops.arguments import declared
from npusim.ops.card import LIMITS, Card, Input, Output, Sample, Stated
from npusim.ops.dsp import begin, launch_filter, launch_input
from npusim.ops.layer import expected, stated_layer
from npusim.problem.convolution import Convolution, Sizes
from npusim.problem.layouts import nchw_to_nhwc, nhwc_to_nchw
from npusim.problem.limits.facts import weight_shape
from npusim.results import Result

# -- cards -------------------------------------------------------------------------------------


class Wanted(NamedTuple):
    """A call: the layer, where operands lie, and the address of the workspace of im2row."""

    c: Convolution
    storage: str
    workspace: int

    @property
    def param(self) -> list[int]:
        """The parameter array."""
        c, before = self.c, [sides[0] for sides in self.c.padding]
        return [
            *(c.n, *c.spatial, c.cin),
            *(c.n, *c.out, c.cout),
            *(*c.kernel, *c.stride, *before, *c.dilation, c.groups),
            *(self.workspace, 0, 0),
        ]


def _stated(*, transposed: bool) -> Callable[[Stated], Wanted]:
    """A reader of command lines; operands show sizes, and dy's own size counts."""

    def read(stated: Stated) -> Wanted:
        shown: dict[str, Sizes] = {
            name: (array.shape[0], array.shape[3], *array.shape[1:3])
            for name, array in stated.arrays.items()
            if array.ndim == 4 and name != "w"
        }
        c = stated_layer(stated, shown, 2, layers=False, transposed=transposed)
        if "dy" in shown:
            c = replace(c, outputs=shown["dy"][2:])
        elif not transposed:  # padding below or to the right is what dy's size makes it
            c = replace(c, outputs=c.out)
        # Any address will do: the simulator places tensors itself.
        return Wanted(c, stated["storage"] or "shared", int(bool(stated["im2row_workspace"])))

    return read


def _map_nhwc(name: str) -> Input[Wanted]:
    """The operand "x" or "dy", channels last."""

    def shape(p: Wanted) -> Sizes:
        size = p.c.spatial if name == "x" else p.c.out
        return (p.c.n, *size, p.c.cin if name == "x" else p.c.cout)

    return Input(name=name, axes="NHWC", shape=shape)


_WEIGHT: Input[Wanted] = Input(
    name="w", axes="group, Cout/group*KH*KW, Cin/group", shape=lambda p: weight_shape(p.param)
)


def _plain_weight(p: Wanted, w: Array) -> Array:
    """A weight of the library as frameworks have it."""
    c = p.c
    split = w.reshape(c.groups, c.cout // c.groups, *c.kernel, c.cin // c.groups)
    if c.transposed:
        return split.transpose(0, 4, 1, 2, 3).reshape(c.w_shape)
    return split.transpose(0, 1, 4, 2, 3).reshape(c.w_shape)


def _filter_expected(sample: Sample[Wanted]) -> Array:
    maps = {name: nhwc_to_nchw(array) for name, array in sample.arrays.items()}
    return expected(sample.problem.c, "grad_weight", maps)


def _input_expected(sample: Sample[Wanted]) -> Array:
    p, dy = sample.problem, nhwc_to_nchw(sample.arrays["dy"])
    arrays = {"dy": dy, "w": _plain_weight(p, sample.arrays["w"])}
    return nchw_to_nhwc(expected(p.c, "grad_input", arrays))


def _limit(sample: Sample[Wanted]) -> float:
    """That of the operands' type."""
    return LIMITS[dtype(sample.arrays["dy"].dtype).name]


def _output(*, of_filter: bool, transposed: bool) -> Output[Wanted]:
    """The result: channels last, or in the form of the library's weights."""
    if not of_filter:
        return Output(name="grad_input", axes="NHWC", expected=_input_expected, limit=_limit)
    return Output(
        name="dw",
        layout="(group, Cout/group*KH*KW, Cin/group)",
        axes=f"({'Cin, Cout' if transposed else 'Cout, Cin'}/groups, KH, KW)",
        unpack=_plain_weight,
        expected=_filter_expected,
        limit=_limit,
    )


def _card(function: Callable[..., Result], kernel: Any) -> Card[Wanted]:
    """The card of a gradient.

    A filter gradient reads "x" and may have a workspace, an input gradient reads "w".
    """
    name = function.__name__
    transposed, of_filter = name.startswith("deconv"), name.endswith("filter")
    dy, output = _map_nhwc("dy"), _output(of_filter=of_filter, transposed=transposed)

    def call(p: Wanted, given: Mapping[str, Operand], options: dict[str, Any]) -> Result:
        second = given["x" if of_filter else "w"]
        cores = options.pop("cores", None)  # the mask, by the name that other operators have
        return function(given["dy"], second, p.param, cores, p.storage, **options)

    return Card(
        function=function,
        problem=_stated(transposed=transposed),
        inputs=(_map_nhwc("x"), dy) if of_filter else (dy, _WEIGHT),
        outputs=lambda _: (output,),
        call=call,
        dtypes=(FP32, FP16),
        tilings={kernel: FilterTiling if of_filter else InputTiling},
        role="dsp",
        device="ft78ne",
        without=() if of_filter else ("deterministic",),
    )


# -- the functions -----------------------------------------------------------------------------


def _of_kernel(says: Callable[[], None]) -> Callable[..., Result]:
    """The function that computes with the kernel that bears this name, with its card."""
    name = says.__name__
    kernel, transposed = _KERNELS[name], name.startswith("deconv")
    second = "x" if name.endswith("filter") else "w"
    launch: Callable[..., Result] = launch_filter if second == "x" else launch_input

    def run(given: dict[str, Any]) -> Result:
        operands = {one: given.pop(one) for one in ("dy", second)}
        return launch(begin(CARDS[name], operands, **given), kernel, transposed=transposed)

    empty, kind = Parameter.empty, Parameter.POSITIONAL_OR_KEYWORD
    each = [
        Parameter(one, kind, default=usual, annotation=told)
        for one, usual, told in (
            ("dy", empty, "Array | Spec"),
            (second, empty, "Array | Spec"),
            ("param", empty, "Any"),
            ("core_mask", None, "Any"),
            ("storage", "shared", "str"),
            ("device", "ft78ne", "str | Device"),
        )
    ]
    options = Parameter("options", Parameter.VAR_KEYWORD, annotation="Any")
    takes = Signature([*each, options], return_annotation="Result")
    function = declared(name, __name__, getdoc(says), takes, run)
    CARDS[name] = _card(function, kernel)
    return function


CARDS: dict[str, Card[Any]] = {}
_EVERY: tuple[Any, ...] = (DeconvGradFilter, ConvGradFilter, DeconvGradInput, ConvGradInput)
_KERNELS = {kernel.name: kernel for kernel in _EVERY}


@_of_kernel
def deconv_grad_filter() -> None:
    """Gradient of a 2-D transposed convolution's filter.

    ``dy`` (batch, out_h, out_w, out_c) and ``x`` (batch, in_h, in_w, in_c) are arrays of one
    type, fp32 or (MT7004) fp16, or ``npusim.spec``s for a timing-only run. ``param`` has the 18
    integers of the C interface (``npusim.problem.limits.facts.PARAM``), and up to two more that are
    not read. There is no padding below or to the right: dy ends at out_h and out_w, and reads
    beyond it are zero.

    The result ``outputs[0]`` is (group, out_c / group * kernel_h * kernel_w, in_c / group) of the
    operands' type, with out_c before kernel_h and kernel_w in the middle axis: the whole gradient,
    nothing is added to what dw held before.

    ``storage`` "shared" puts the operands into main memory and uses the cores of ``core_mask``
    (bit i is core i; None: all); "gsm" is the same with the operands in the on-chip memory that the
    cores of a cluster share; "private" puts them into the memory of one core and takes no mask.
    Cores share channels, taps and columns of the gradient, or images, whichever is fastest; a note
    says where they share images, because last bits depend on how many do. With ``deterministic``
    none do, and the bits are the same whatever the mask. With an address in ``param[17]`` that is
    not 0 the rows of im2row go through a workspace beside the operands, one chunk for each core,
    which ``Result.workspace_bytes`` counts, as it does the sums of cores that share images; with 0
    they are built in SM and stay there.

    Keywords are those of ``npusim.call.Options``; ``tiling`` is "auto" or a
    ``npusim.kernels.dsp.grad_filter.Tiling``. Raises ``RuleError`` naming the argument that
    does not fit or that the library refuses, ``ArgumentError`` for the rest.
    """


@_of_kernel
def conv_grad_filter() -> None:
    """Gradient of a 2-D convolution's filter, channels last.

    ``dy`` (batch, out_h, out_w, out_c) and ``x`` (batch, in_h, in_w, in_c) are arrays of one type,
    fp32 or (MT7004) fp16, or ``npusim.spec``s for a timing-only run. ``param``, ``core_mask`` and
    ``storage`` are those of ``deconv_grad_filter``, the workspace of im2row in ``param[17]`` too.
    The result ``outputs[0]`` is (group, out_c / group * kernel_h * kernel_w, in_c / group); out_h
    and out_w say where dy ends, x reads as zero around it.

    No page of this function of the library was at hand: signature and limits are assumed to be
    those of DeconvGradFilter. Keywords are those of ``npusim.call.Options``; ``tiling`` is "auto"
    or a ``npusim.kernels.dsp.grad_filter.Tiling``. Raises ``RuleError`` or ``ArgumentError``
    naming the argument.
    """


@_of_kernel
def deconv_grad_input() -> None:
    """Gradient of a 2-D transposed convolution's input.

    ``dy`` (batch, out_h, out_w, out_c) and ``w`` (group, out_c / group * kernel_h * kernel_w,
    in_c / group) are arrays of one type, fp32 or (MT7004) fp16, or ``npusim.spec``s for a
    timing-only run. ``param``, ``core_mask`` and ``storage`` are those of ``deconv_grad_filter``;
    the address of a workspace, ``param[17]``, is not read. The result ``outputs[0]`` is (batch,
    in_h, in_w, in_c); out_h and out_w say where dy ends, reads beyond it are zero.

    No page of this function of the library was at hand: signature and limits are assumed to be
    those of DeconvGradFilter. Keywords are those of ``npusim.call.Options``; ``tiling`` is "auto"
    or a ``npusim.kernels.dsp.grad_input.Tiling``. Raises ``RuleError`` or ``ArgumentError`` naming
    the argument.
    """


@_of_kernel
def conv_grad_input() -> None:
    """Gradient of a 2-D convolution's input.

    ``dy`` (batch, out_h, out_w, out_c) and ``w`` (group, out_c / group * kernel_h * kernel_w,
    in_c / group) are arrays of one type, fp32 or (MT7004) fp16, or ``npusim.spec``s for a
    timing-only run. ``param``, ``core_mask`` and ``storage`` are those of ``deconv_grad_filter``;
    the address of a workspace, ``param[17]``, is not read. The result ``outputs[0]`` is (batch,
    in_h, in_w, in_c); out_h and out_w say where dy ends, reads beyond it are zero.

    No page of this function of the library was at hand: signature and limits are assumed to be
    those of DeconvGradFilter. Keywords are those of ``npusim.call.Options``; ``tiling`` is "auto"
    or a ``npusim.kernels.dsp.grad_input.Tiling``. Raises ``RuleError`` or ``ArgumentError`` naming
    the argument.
    """

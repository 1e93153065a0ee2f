"""Gradients of ordinary and transposed convolutions, NHWC, on a DSP cluster.

Their operands are a map and another one, or a weight, and the parameter array of the C interface.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from npusim.base.dtypes import FP16, FP32, dtype
from npusim.base.records import replace
from npusim.call.spec import Array, Operand, Spec
from npusim.kernels.dsp.grad_filter import ConvGradFilter, DeconvGradFilter
from npusim.kernels.dsp.grad_filter import Tiling as FilterTiling
from npusim.kernels.dsp.grad_input import ConvGradInput, DeconvGradInput
from npusim.kernels.dsp.grad_input import Tiling as InputTiling
from npusim.machine.device.spec import Device
from npusim.machine.program.kernel import Kernel
from npusim.ops.card import LIMITS, Card, Input, Output, Sample, Stated
from npusim.ops.dsp import STORAGES, begin, launch_filter, launch_input
from npusim.ops.layer import expected, stated_layer
from npusim.ops.options import (
    BATCH,
    CIN,
    COUT,
    DILATION,
    GROUPS,
    KERNEL,
    OUTPUT_PADDING,
    PADDING,
    SIZE,
    STRIDE,
    Option,
    word,
)
from npusim.problem.convolution import Convolution, Sizes
from npusim.problem.layouts import nchw_to_nhwc, nhwc_to_nchw
from npusim.problem.limits.facts import PARAM, Facts, OperatorFacts, as_sizes, weight_shape
from npusim.results import Result

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from npusim.call.options import KeywordsBesidesDevice

# -- the functions -----------------------------------------------------------------------------


def deconv_grad_filter(
    dy: Array | Spec,
    x: Array | Spec,
    param: Any,
    core_mask: Any = None,
    storage: str = "shared",
    device: str | Path | Device = "ft78ne",
    **options: Unpack[KeywordsBesidesDevice],
) -> Result:
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
    operands = {"dy": dy, "x": x}
    call = begin(CARDS["deconv_grad_filter"], operands, param, core_mask, storage, device, options)
    return launch_filter(call, DeconvGradFilter, transposed=True)


def conv_grad_filter(
    dy: Array | Spec,
    x: Array | Spec,
    param: Any,
    core_mask: Any = None,
    storage: str = "shared",
    device: str | Path | Device = "ft78ne",
    **options: Unpack[KeywordsBesidesDevice],
) -> Result:
    """Gradient of a 2-D convolution's filter, channels last.

    ``dy`` (batch, out_h, out_w, out_c) and ``x`` (batch, in_h, in_w, in_c) are arrays of one type,
    fp32 or (MT7004) fp16, or ``npusim.spec``s for a timing-only run. ``param``, ``core_mask`` and
    ``storage`` are those of ``deconv_grad_filter``, the workspace of im2row in ``param[17]`` too.
    The result ``outputs[0]`` is (group, out_c / group * kernel_h * kernel_w, in_c / group); out_h
    and out_w say where dy ends, x reads as zero around it.

    Undocumented: signature and limits are assumed to be those of DeconvGradFilter. Keywords are
    those of ``npusim.call.Options``; ``tiling`` is "auto" or a
    ``npusim.kernels.dsp.grad_filter.Tiling``. Raises ``RuleError`` or ``ArgumentError`` naming the
    argument.
    """
    operands = {"dy": dy, "x": x}
    call = begin(CARDS["conv_grad_filter"], operands, param, core_mask, storage, device, options)
    return launch_filter(call, ConvGradFilter, transposed=False)


def deconv_grad_input(
    dy: Array | Spec,
    w: Array | Spec,
    param: Any,
    core_mask: Any = None,
    storage: str = "shared",
    device: str | Path | Device = "ft78ne",
    **options: Unpack[KeywordsBesidesDevice],
) -> Result:
    """Gradient of a 2-D transposed convolution's input.

    ``dy`` (batch, out_h, out_w, out_c) and ``w`` (group, out_c / group * kernel_h * kernel_w,
    in_c / group) are arrays of one type, fp32 or (MT7004) fp16, or ``npusim.spec``s for a
    timing-only run. ``param``, ``core_mask`` and ``storage`` are those of ``deconv_grad_filter``;
    the address of a workspace, ``param[17]``, is not read. The result ``outputs[0]`` is (batch,
    in_h, in_w, in_c); out_h and out_w say where dy ends, reads beyond it are zero.

    Undocumented: signature and limits are assumed to be those of DeconvGradFilter. Keywords are
    those of ``npusim.call.Options``; ``tiling`` is "auto" or a
    ``npusim.kernels.dsp.grad_input.Tiling``. Raises ``RuleError`` or ``ArgumentError`` naming the
    argument.
    """
    operands = {"dy": dy, "w": w}
    call = begin(CARDS["deconv_grad_input"], operands, param, core_mask, storage, device, options)
    return launch_input(call, DeconvGradInput, transposed=True)


def conv_grad_input(
    dy: Array | Spec,
    w: Array | Spec,
    param: Any,
    core_mask: Any = None,
    storage: str = "shared",
    device: str | Path | Device = "ft78ne",
    **options: Unpack[KeywordsBesidesDevice],
) -> Result:
    """Gradient of a 2-D convolution's input.

    ``dy`` (batch, out_h, out_w, out_c) and ``w`` (group, out_c / group * kernel_h * kernel_w,
    in_c / group) are arrays of one type, fp32 or (MT7004) fp16, or ``npusim.spec``s for a
    timing-only run. ``param``, ``core_mask`` and ``storage`` are those of ``deconv_grad_filter``;
    the address of a workspace, ``param[17]``, is not read. The result ``outputs[0]`` is (batch,
    in_h, in_w, in_c); out_h and out_w say where dy ends, reads beyond it are zero.

    Undocumented: signature and limits are assumed to be those of DeconvGradFilter. Keywords are
    those of ``npusim.call.Options``; ``tiling`` is "auto" or a
    ``npusim.kernels.dsp.grad_input.Tiling``. Raises ``RuleError`` or ``ArgumentError`` naming the
    argument.
    """
    operands = {"dy": dy, "w": w}
    call = begin(CARDS["conv_grad_input"], operands, param, core_mask, storage, device, options)
    return launch_input(call, ConvGradInput, transposed=False)


# -- facts for the documented limits -----------------------------------------------------------


def _derived_facts(stated: Facts) -> dict[str, Any]:
    """The entries of ``param`` by name; none of one that is too short."""
    param = as_sizes(stated.get("param"))
    if len(param) < len(PARAM):
        return {}
    return {f"param[{i}] {name}": param[i] for i, name in enumerate(PARAM)}


_FILTER_FACTS = OperatorFacts(
    required=("dtype", "x.shape", "dy.shape", "param", "storage", "core_mask"),
    derive=_derived_facts,
)
_INPUT_FACTS = OperatorFacts(
    required=("dtype", "dy.shape", "w.shape", "param", "storage", "core_mask"),
    derive=_derived_facts,
)

# -- cards -------------------------------------------------------------------------------------


class Wanted(NamedTuple):
    """A call: the layer, where operands lie, and the address of the workspace of im2row."""

    c: Convolution
    storage: str
    workspace: int

    @property
    def param(self) -> list[int]:
        """The parameter array."""
        c = self.c
        before = [first for first, _ in c.padding]
        x_sizes = [c.n, *c.spatial, c.cin]
        dy_sizes = [c.n, *c.out, c.cout]
        windows = [*c.kernel, *c.stride, *before, *c.dilation]
        unread = [0, 0]
        return [*x_sizes, *dy_sizes, *windows, c.groups, self.workspace, *unread]


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
    """A filter's gradient in float64, as frameworks have it."""
    maps = {name: nhwc_to_nchw(array) for name, array in sample.arrays.items()}
    return expected(sample.problem.c, "grad_weight", maps)


def _input_expected(sample: Sample[Wanted]) -> Array:
    """An input's gradient in float64, channels last."""
    p = sample.problem
    dy = nhwc_to_nchw(sample.arrays["dy"])
    arrays = {"dy": dy, "w": _plain_weight(p, sample.arrays["w"])}
    return nchw_to_nhwc(expected(p.c, "grad_input", arrays))


def _limit(sample: Sample[Wanted]) -> float:
    """That of the operands' type."""
    return LIMITS[dtype(sample.arrays["dy"].dtype).name]


_INPUT_GRADIENT: Output[Wanted] = Output(
    name="grad_input", axes="NHWC", expected=_input_expected, limit=_limit
)


def _filter_gradient(channels: str) -> Output[Wanted]:
    """The gradient of a filter in the form of the library's weights.

    Frameworks have its ``channels`` in this order.
    """
    return Output(
        name="dw",
        layout="(group, Cout/group*KH*KW, Cin/group)",
        axes=f"({channels}/groups, KH, KW)",
        unpack=_plain_weight,
        expected=_filter_expected,
        limit=_limit,
    )


_STORAGE = Option(
    name="storage",
    read=word(*STORAGES),
    metavar="{shared,gsm,private}",
    help=(
        "operands in main memory, in the on-chip memory of all cores, or in the memory of one core "
        "(default: shared)"
    ),
)
_IM2ROW_WORKSPACE = Option(
    name="im2row_workspace",
    read=None,
    metavar="",
    help="pass the rows of im2row through a workspace, as param[17] with an address does "
    "(default: no)",
)
_OPTIONS = (BATCH, CIN, COUT, SIZE, KERNEL, STRIDE, PADDING, DILATION, GROUPS)


def _filter_card(
    function: Callable[..., Result],
    kernel: type[Kernel],
    options: tuple[Option, ...],
    example: str,
    *,
    transposed: bool,
) -> Card[Wanted]:
    """The card of a filter gradient, which reads two maps."""

    def call(p: Wanted, operands: Mapping[str, Operand], options: dict[str, Any]) -> Result:
        mask = options.pop("cores", None)  # by the name that other operators have
        return function(operands["dy"], operands["x"], p.param, mask, p.storage, **options)

    output = _filter_gradient("Cin, Cout" if transposed else "Cout, Cin")
    return Card(
        function=function,
        problem=_stated(transposed=transposed),
        inputs=(_map_nhwc("x"), _map_nhwc("dy")),
        outputs=lambda _: (output,),
        call=call,
        dtypes=(FP32, FP16),
        tilings={kernel: FilterTiling},
        role="dsp",
        device="ft78ne",
        options=options,
        example=example,
        facts=_FILTER_FACTS,
    )


def _input_card(
    function: Callable[..., Result],
    kernel: type[Kernel],
    options: tuple[Option, ...],
    example: str,
    *,
    transposed: bool,
) -> Card[Wanted]:
    """The card of an input gradient, which reads a map and a weight."""

    def call(p: Wanted, operands: Mapping[str, Operand], options: dict[str, Any]) -> Result:
        mask = options.pop("cores", None)  # by the name that other operators have
        return function(operands["dy"], operands["w"], p.param, mask, p.storage, **options)

    return Card(
        function=function,
        problem=_stated(transposed=transposed),
        inputs=(_map_nhwc("dy"), _WEIGHT),
        outputs=lambda _: (_INPUT_GRADIENT,),
        call=call,
        dtypes=(FP32, FP16),
        tilings={kernel: InputTiling},
        role="dsp",
        device="ft78ne",
        without=("deterministic",),
        options=options,
        example=example,
        facts=_INPUT_FACTS,
    )


CARDS: Mapping[str, Card[Wanted]] = {
    "deconv_grad_filter": _filter_card(
        deconv_grad_filter,
        DeconvGradFilter,
        (*_OPTIONS, OUTPUT_PADDING, _STORAGE, _IM2ROW_WORKSPACE),
        "npusim run deconv_grad_filter --cin 16 --cout 32 --size 8x8 --kernel 4 --stride 2 "
        "--padding 1 --cores 0-3 --check",
        transposed=True,
    ),
    "conv_grad_filter": _filter_card(
        conv_grad_filter,
        ConvGradFilter,
        (*_OPTIONS, _STORAGE, _IM2ROW_WORKSPACE),
        "npusim run conv_grad_filter --cin 16 --cout 32 --size 16x16 --kernel 3 --padding 1 "
        "--cores 0-3 --check",
        transposed=False,
    ),
    "deconv_grad_input": _input_card(
        deconv_grad_input,
        DeconvGradInput,
        (*_OPTIONS, OUTPUT_PADDING, _STORAGE),
        "npusim run deconv_grad_input --cin 16 --cout 32 --size 8x8 --kernel 4 --stride 2 "
        "--padding 1 --cores 0-3 --check",
        transposed=True,
    ),
    "conv_grad_input": _input_card(
        conv_grad_input,
        ConvGradInput,
        (*_OPTIONS, _STORAGE),
        "npusim run conv_grad_input --cin 16 --cout 32 --size 8x8 --kernel 4 --stride 2 "
        "--padding 1 --cores 0-3 --check",
        transposed=False,
    ),
}

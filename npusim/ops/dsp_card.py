"""What the cards of the DSP library's gradients share: how a call is stated, and checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from npusim.base.dtypes import FP16, FP32, dtype
from npusim.call.spec import Array, Operand
from npusim.ops.card import LIMITS, Card, Case, Input, Option, Output, Sample, Stated, word
from npusim.ops.dsp import STORAGES, weight_shape
from npusim.ops.layer import BATCH, OUTPUT_PADDING, SIZES, stated_layer
from npusim.program.kernel import Kernel
from npusim.results import Result
from npusim.shapes.convolution import Convolution, Sizes


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


WORKSPACE = Option(
    "im2row-workspace",
    None,
    "",
    "pass the rows of im2row through a workspace, as param[17] with an address does (default: no)",
)

STORAGE = Option(
    "storage",
    word(*STORAGES),
    "{shared,gsm,private}",
    "operands in main memory, in the on-chip memory of all cores, or in the memory of one core "
    "(default: shared)",
)


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


def map_nhwc(name: str) -> Input[Wanted]:
    """The operand "x" or "dy", channels last."""

    def shape(p: Wanted) -> Sizes:
        size = p.c.spatial if name == "x" else p.c.out
        return (p.c.n, *size, p.c.cin if name == "x" else p.c.cout)

    return Input(name=name, axes="NHWC", shape=shape)


WEIGHT: Input[Wanted] = Input(
    name="w", axes="group, Cout/group*KH*KW, Cin/group", shape=lambda p: weight_shape(p.param)
)


def plain_weight(p: Wanted, w: Array) -> Array:
    """A weight of the library as frameworks have it."""
    c = p.c
    split = w.reshape(c.groups, c.cout // c.groups, *c.kernel, c.cin // c.groups)
    if c.transposed:
        return split.transpose(0, 4, 1, 2, 3).reshape(c.w_shape)
    return split.transpose(0, 1, 4, 2, 3).reshape(c.w_shape)


def _limit(sample: Sample[Wanted]) -> float:
    """That of the operands' type."""
    return LIMITS[dtype(sample.arrays["dy"].dtype).name]


def input_output(expected: Callable[[Sample[Wanted]], Array]) -> Output[Wanted]:
    """The result of an input gradient, channels last."""
    return Output(name="grad_input", axes="NHWC", expected=expected, limit=_limit)


def filter_output(axes: str, expected: Callable[[Sample[Wanted]], Array]) -> Output[Wanted]:
    """The result of a filter gradient, which frameworks have with ``axes``."""
    return Output(
        name="dw",
        layout="(group, Cout/group*KH*KW, Cin/group)",
        axes=axes,
        unpack=plain_weight,
        expected=expected,
        limit=_limit,
    )


def dsp_card(
    function: Callable[..., Result],
    tilings: Mapping[type[Kernel], type[Any]],
    output: Output[Wanted],
    *,
    transposed: bool,
    layer: str,
) -> Card[Wanted]:
    """The card of a gradient; ``layer`` states its size in the example.

    A filter gradient reads "x" and may have a workspace, an input gradient reads "w".
    """
    of_filter = output.name == "dw"
    dy = map_nhwc("dy")

    def call(p: Wanted, given: Mapping[str, Operand], options: dict[str, Any]) -> Result:
        second = given["x" if of_filter else "w"]
        cores = options.pop("cores", None)  # the mask, by the name that other operators have
        return function(given["dy"], second, p.param, cores, p.storage, **options)

    return Card(
        function=function,
        options=(
            *(BATCH, *SIZES, *((OUTPUT_PADDING,) if transposed else ()), STORAGE),
            *((WORKSPACE,) if of_filter else ()),
        ),
        problem=_stated(transposed=transposed),
        inputs=(map_nhwc("x"), dy) if of_filter else (dy, WEIGHT),
        outputs=lambda _: (output,),
        call=call,
        dtypes=(FP32, FP16),
        tilings=tilings,
        role="dsp",
        device="ft78ne",
        without=("deterministic",),
        cases=tuple(
            Case(
                name=kind.name,
                needs=kind.name,
                parameter="dtype",
                calls=(f"--cin 4 --cout 8 --size 5x6 --kernel 3 --dtype {kind}",),
            )
            for kind in (FP32, FP16)
        ),
        example=f"npusim run {function.__name__} --cin 16 --cout 32 {layer} \\\n"
        "      --cores 0-3 --check",
    )

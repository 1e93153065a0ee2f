"""deconv_grad_filter: filter gradient of a transposed convolution, NHWC, on a DSP cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from npusim.call.call import Call
from npusim.call.spec import Array, Operand, Spec
from npusim.call.tiling import own_tiling
from npusim.convolution import Convolution
from npusim.device.parts import MainMemory
from npusim.device.spec import Device
from npusim.dtypes import FP16, FP32, DType, dtype
from npusim.errors import ArgumentError
from npusim.kernels.deconv_grad_filter import DeconvGradFilter
from npusim.kernels.tilings.deconv_grad_filter import Tiling, ranked_tilings
from npusim.layout import nhwc_to_nchw
from npusim.limits.facts import type_name
from npusim.ops.arguments import frozen, operand
from npusim.ops.card import LIMITS, Card, Case, Input, Option, Output, Sample, Stated, word
from npusim.ops.layer import BATCH, OUTPUT_PADDING, SIZES, stated_layer
from npusim.reference import conv_filter_grad
from npusim.results import Result

_NAME = "deconv_grad_filter"

#: Where operands lie, by word: the memory of the device that takes the place of main memory.
STORAGES = {"shared": "main_memory", "gsm": "shared_memory", "private": "private_memory"}


def deconv_grad_filter(
    dy: Array | Spec,
    x: Array | Spec,
    param: Any,
    core_mask: Any = None,
    storage: str = "shared",
    device: str | Device = "ft78ne",
    **options: Any,
) -> Result:
    """Gradient of a 2-D transposed convolution's filter.

    ``dy`` (batch, out_h, out_w, out_c) and ``x`` (batch, in_h, in_w, in_c) are arrays of one
    type, fp32 or (MT7004) fp16, or ``npusim.spec``s for a timing-only run. ``param`` has the 18
    integers of the C interface (``npusim.limits.facts.PARAM``), and up to two more that are not
    read. There is no padding below or to the right: dy ends at out_h and out_w, and reads beyond
    it are zero.

    The result ``outputs[0]`` is (group, out_c / group * kernel_h * kernel_w, in_c / group) of the
    operands' type: the whole gradient, nothing is added to what dw held before.

    ``storage`` "shared" puts the operands into main memory and uses the cores of ``core_mask``
    (bit i is core i; None: all), with the same bits whatever the mask; "gsm" is the same with the
    operands in the on-chip memory that the cores of a cluster share; "private" puts them into the
    memory of one core and takes no mask. With an address in ``param[17]`` that is not 0 the rows of
    im2row go through a workspace beside the operands, one chunk for each core, which
    ``Result.workspace_bytes`` counts; with 0 they are built in SM and stay there.

    Keywords are those of ``npusim.call.Options``; ``tiling`` is "auto" or a
    ``npusim.kernels.deconv_grad_filter.Tiling``. Raises ``RuleError`` naming the argument that
    does not fit or that the library refuses, ``ArgumentError`` for the rest.
    """
    if storage not in STORAGES:
        raise ArgumentError(f"storage is {storage!r}; it is 'shared', 'gsm' or 'private'")
    grad, read = operand(dy), operand(x)
    mask = _mask(core_mask, options)
    machine = {"device": device, "cores": 1 if storage == "private" else mask}
    call = CARD.begin(options | machine, dy=grad, x=read)
    if isinstance(mask, (int, type(None))) or storage == "private":
        bits = mask
    else:
        bits = sum(1 << group for group in call.groups)
    form = "private" if storage == "private" else "shared"
    checked = facts(grad, read, param, form, bits)
    call.check(checked)
    own_dtype = _require(call, grad)
    c = convolution(checked)
    size = (c.groups, c.cout_per_group * c.taps, c.cin_per_group)
    x_gm, dy_gm = call.input("x", read, own_dtype), call.input("dy", grad, own_dtype)
    dw_gm = call.output("dw", size, own_dtype)
    cores = len(call.groups) * call.device.core_kind("dsp").per_group
    tiling = own_tiling(call.options.tiling, DeconvGradFilter.name, Tiling)
    rows_gm = None
    if checked["param"][17]:  # a chunk for each core, of the size that SM holds two of
        chunk = call.device.memory("SM").size_bytes // 2 // own_dtype.bytes
        rows_gm = call.workspace("im2row", (cores, chunk), own_dtype)
    if storage != "shared":
        _place_operands(call, storage)
    first = tiling or ranked_tilings(c, own_dtype, call.device, cores)[0][1]
    kernel = DeconvGradFilter(c, first, x_gm, dy_gm, dw_gm, rows_gm)
    if tiling is None:
        kernel = call.choose(kernel)
    call.launch(kernel)
    if own_dtype is FP16:
        call.notes.append(
            "hp accumulates in fp32 and rounds once, as dw is stored; the library does not "
            "document its own accumulation"
        )
    problem = _problem(c, own_dtype, storage)
    return call.result({"dw": call.arrays.get("dw")}, problem, own_dtype)


def facts(dy: Any, x: Any, param: Any, storage: str, core_mask: Any) -> dict[str, Any]:
    """What the limits are checked against; operands are anything with ``shape`` and ``dtype``.

    Raises ``ArgumentError`` where the operands are of two types.
    """
    dy_dtype, x_dtype = type_name(dy.dtype), type_name(x.dtype)
    if dy_dtype != x_dtype:
        raise ArgumentError(f"dy is {dy_dtype}, x is {x_dtype}; {_NAME} takes one type for both")
    return {
        "dtype": dy_dtype,
        "x.shape": tuple(x.shape),
        "dy.shape": tuple(dy.shape),
        "param": frozen(param),
        "storage": storage,
        "core_mask": core_mask,
    }


def convolution(checked: Mapping[str, Any]) -> Convolution:
    """The transposed layer that facts describe which the limits have let pass.

    There is no padding below or to the right; where dy ends is stated.
    """
    p = checked["param"]
    return Convolution(
        n=p[0],
        cin=p[3],
        cout=p[7],
        spatial=p[1:3],
        kernel=p[8:10],
        stride=p[10:12],
        padding=((p[12], 0), (p[13], 0)),
        dilation=p[14:16],
        groups=p[16],
        transposed=True,
        outputs=p[5:7],
    )


def _mask(core_mask: Any, options: dict[str, Any]) -> Any:
    """The cores to use; the option ``cores`` of other operators is another word for the mask."""
    cores = options.pop("cores", None)
    if core_mask is not None and cores is not None:
        raise ArgumentError(
            f"core_mask is {core_mask!r} and cores is {cores!r}; they mean the same, give one"
        )
    return cores if core_mask is None else core_mask


def _require(call: Call, dy: Operand) -> DType:
    """The operands' type; raise unless the device is a DSP that multiplies it."""
    found, device = dtype(dy.dtype), call.device
    device.core_kind("dsp")
    rates = device.gemm.rates if device.gemm else {}
    if found.name not in rates:
        form = "hp (fp16)" if found is FP16 else str(found)
        raise ArgumentError(
            f"{_NAME}: {device.name} has no {form} form; it has {', '.join(rates)}"
            f"{': use float32, or device mt7004' if found is FP16 else ''}"
        )
    if device.l2 is None and call.options.start == "warm":
        raise ArgumentError(
            f"start is 'warm'; {device.name} has no L2 that could hold inputs, use 'cold'"
        )
    return found


def _place_operands(call: Call, storage: str) -> None:
    """Let GM mean the on-chip memory of ``storage``, where all that the call holds must fit."""
    name = STORAGES[storage]
    memory: MainMemory | None = getattr(call.device, name)
    called, device = name.replace("_", " "), call.device.name
    if memory is None:
        raise ArgumentError(
            f"storage is {storage!r}; {device} has no {called} for operands, use 'shared'"
        )
    size, whose = sum(call.held.values()), "of a core " if storage == "private" else ""
    if size > memory.size_bytes:
        *others, last = call.held
        held = f"{', '.join(others)} and {last}"
        raise ArgumentError(
            f"storage is {storage!r}; {held} take {size} B, the {called} {whose}of {device} holds "
            f"{memory.size_bytes} B: use a smaller batch or 'shared'"
        )
    call.device = call.device.with_operands_in(name)
    place = "private memory of one core" if storage == "private" else "memory that all cores share"
    call.notes.append(f"operands lie in the {place}; main memory is not used")


def _problem(c: Convolution, dtype: DType, storage: str) -> str:
    """One line for reports."""
    (h, w), (oh, ow), (kh, kw) = c.spatial, c.out, c.kernel
    form, pads = "fp" if dtype is FP32 else "hp", [before for before, _ in c.padding]
    return (
        f"dw of transposed {c.cin} -> {c.cout} channels, {kh}x{kw}, stride {list(c.stride)}, "
        f"pad {pads}{c.unusual}; x {c.n}x{h}x{w}, dy {c.n}x{oh}x{ow}; {form}, {storage}"
    )


class _Wanted(NamedTuple):
    """A call: the transposed layer, where operands lie, and the address of the workspace."""

    c: Convolution
    storage: str
    workspace: int


def _stated(stated: Stated) -> _Wanted:
    """The call of a command line; operands show sizes, and dy's own size counts."""
    shown = {
        name: (array.shape[0], array.shape[3], *array.shape[1:3])
        for name, array in stated.arrays.items()
        if array.ndim == 4
    }
    c = stated_layer(stated, shown, 2, layers=False, transposed=True)
    if "dy" in shown:
        c = replace(c, outputs=shown["dy"][2:])
    # Any address will do: the simulator places tensors itself.
    return _Wanted(c, stated["storage"] or "shared", int(bool(stated["im2row_workspace"])))


def _call(p: _Wanted, given: Mapping[str, Operand], options: dict[str, Any]) -> Result:
    """The call, with the cores as its own mask."""
    c, cores = p.c, options.pop("cores", None)
    before = [sides[0] for sides in c.padding]
    param = [
        *(c.n, *c.spatial, c.cin),
        *(c.n, *c.out, c.cout),
        *(*c.kernel, *c.stride, *before, *c.dilation, c.groups),
        *(p.workspace, 0, 0),
    ]
    return deconv_grad_filter(given["dy"], given["x"], param, cores, p.storage, **options)


def _expected(sample: Sample[_Wanted]) -> Array:
    """Of the plain convolution that reads dy, x is the gradient of the output."""
    c = sample.problem.c
    read, grad = nhwc_to_nchw(sample.arrays["dy"]), nhwc_to_nchw(sample.arrays["x"])
    return conv_filter_grad(read, grad, c.kernel, c.stride, c.reads, c.dilation, c.groups)


def _unpacked(p: _Wanted, dw: Array) -> Array:
    """The weight of a transposed layer, as frameworks have it."""
    c = p.c
    split = dw.reshape(c.groups, c.cout // c.groups, *c.kernel, c.cin // c.groups)
    return split.transpose(0, 4, 1, 2, 3).reshape(c.w_shape)


CARD: Card[_Wanted] = Card(
    function=deconv_grad_filter,
    options=(
        *(BATCH, *SIZES, OUTPUT_PADDING),
        Option(
            "storage",
            word(*STORAGES),
            "{shared,gsm,private}",
            "operands in main memory, in the on-chip memory of all cores, or in the memory of one "
            "core (default: shared)",
        ),
        Option(
            "im2row-workspace",
            None,
            "",
            "pass the rows of im2row through a workspace, as param[17] with an address does "
            "(default: no)",
        ),
    ),
    problem=_stated,
    inputs=(
        Input(name="x", axes="NHWC", shape=lambda p: (p.c.n, *p.c.spatial, p.c.cin)),
        Input(name="dy", axes="NHWC", shape=lambda p: (p.c.n, *p.c.out, p.c.cout)),
    ),
    outputs=lambda _: (
        Output(
            name="dw",
            layout="(group, Cout/group*KH*KW, Cin/group)",
            axes="(Cin, Cout/groups, KH, KW)",
            unpack=_unpacked,
            expected=_expected,
            limit=lambda sample: LIMITS[dtype(sample.arrays["x"].dtype).name],
        ),
    ),
    call=_call,
    dtypes=(FP32, FP16),
    tilings={DeconvGradFilter: Tiling},
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
    example="npusim run deconv_grad_filter --cin 16 --cout 32 --size 8x8 --kernel 4 --stride 2 "
    "--padding 1 \\\n      --cores 0-3 --check",
)

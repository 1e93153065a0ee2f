"""What the DSP library's gradients share: storage, the parameter array, refusals, cards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from npusim.call.call import Call
from npusim.call.spec import Array, Operand
from npusim.call.tiling import own_tiling
from npusim.convolution import Convolution, Sizes
from npusim.device.parts import MainMemory
from npusim.device.spec import Device
from npusim.dtypes import FP16, FP32, DType, dtype
from npusim.errors import ArgumentError
from npusim.kernels.deconv_grad_filter import DeconvGradFilter, Tiling
from npusim.kernels.tilings.deconv_grad_filter import ranked_tilings
from npusim.limits.facts import type_name
from npusim.ops.arguments import frozen
from npusim.ops.card import LIMITS, Card, Case, Input, Option, Sample, Stated, word
from npusim.ops.layer import BATCH, OUTPUT_PADDING, SIZES, stated_layer

#: Where operands lie, by word: the memory of the device that takes the place of main memory.
STORAGES = {"shared": "main_memory", "gsm": "shared_memory", "private": "private_memory"}


class DspCall(NamedTuple):
    """A call that the limits have let pass: its facts, and the type of its operands."""

    call: Call
    checked: dict[str, Any]
    dtype: DType

    @property
    def cores(self) -> int:
        """Cores under the mask."""
        return len(self.call.groups) * self.call.device.core_kind("dsp").per_group


def begin(
    card: Card[Any],
    operands: Mapping[str, Operand],
    param: Any,
    core_mask: Any,
    storage: str,
    device: str | Device,
    options: dict[str, Any],
) -> DspCall:
    """The call of a function of the library, its arguments checked.

    ``core_mask`` has bit i for core i (None: all), or is what the option ``cores`` takes.
    """
    if storage not in STORAGES:
        raise ArgumentError(f"storage is {storage!r}; it is 'shared', 'gsm' or 'private'")
    mask = _mask(core_mask, options)
    machine = {"device": device, "cores": 1 if storage == "private" else mask}
    call = card.begin(options | machine, **operands)
    if isinstance(mask, (int, type(None))) or storage == "private":
        bits = mask
    else:
        bits = sum(1 << group for group in call.groups)
    form = "private" if storage == "private" else "shared"
    checked = facts(card.name, operands, param, form, bits)
    call.check(checked)
    return DspCall(call, checked, _require(call, checked["dtype"]))


def facts(
    operator: str, operands: Mapping[str, Any], param: Any, storage: str, core_mask: Any
) -> dict[str, Any]:
    """What the limits are checked against; operands are anything with ``shape`` and ``dtype``.

    Raises ``ArgumentError`` where the operands are of two types.
    """
    (first, one), (second, other) = operands.items()
    kinds = type_name(one.dtype), type_name(other.dtype)
    if kinds[0] != kinds[1]:
        raise ArgumentError(
            f"{first} is {kinds[0]}, {second} is {kinds[1]}; {operator} takes one type for both"
        )
    return {
        "dtype": kinds[0],
        **{f"{name}.shape": tuple(value.shape) for name, value in operands.items()},
        "param": frozen(param),
        "storage": storage,
        "core_mask": core_mask,
    }


def described_layer(param: Sizes, *, transposed: bool) -> Convolution:
    """The layer of a parameter array that the limits have let pass.

    There is no padding below or to the right; where the output ends is stated.
    """
    p = param
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
        transposed=transposed,
        outputs=p[5:7],
    )


def weight_shape(param: Sequence[int]) -> Sizes:
    """The shape of a weight in the library: (group, Cout/group*KH*KW, Cin/group)."""
    cin, cout, kh, kw, groups = param[3], param[7], param[8], param[9], param[16]
    return (groups, cout // groups * kh * kw, cin // groups)


def place_operands(call: Call, storage: str) -> None:
    """Let GM mean the memory of ``storage``, where all that the call holds must fit."""
    name = STORAGES[storage]
    if name == "main_memory":
        return
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


def launch_filter(
    made: DspCall,
    kernel: type[DeconvGradFilter],
    c: Convolution,
    operands: Mapping[str, Operand],
    roles: tuple[str, str],
    storage: str,
) -> None:
    """A filter gradient's kernel with the output "dw".

    ``c`` is the transposed layer, ``roles`` the operands that are its input and its output.
    """
    call, checked, kind = made
    tensors = {name: call.input(name, operands[name], kind) for name in ("x", "dy")}
    dw = call.output("dw", weight_shape(checked["param"]), kind)
    rows = None
    if checked["param"][17]:  # a chunk for each core, of the size that SM holds two of
        chunk = call.device.memory("SM").size_bytes // 2 // kind.bytes
        rows = call.workspace("im2row", (made.cores, chunk), kind)
    place_operands(call, storage)
    tiling = own_tiling(call.options.tiling, kernel.name, Tiling)
    first = tiling or ranked_tilings(c, kind, call.device, made.cores)[0][1]
    read, grad = (tensors[name] for name in roles)
    chosen = kernel(c, first, read, grad, dw, rows)
    if tiling is None:
        chosen = call.choose(chosen)
    call.launch(chosen)
    note_accumulation(call, kind, "dw")


def note_accumulation(call: Call, dtype: DType, result: str) -> None:
    """Say how hp accumulates, which the library does not document."""
    if dtype is FP16:
        call.notes.append(
            f"hp accumulates in fp32 and rounds once, as {result} is stored; the library does not "
            "document its own accumulation"
        )


def dsp_problem(gradient: str, c: Convolution, dtype: DType, storage: str) -> str:
    """One line for reports."""
    (h, w), (oh, ow), (kh, kw) = c.spatial, c.out, c.kernel
    form, pads = "fp" if dtype is FP32 else "hp", [before for before, _ in c.padding]
    return (
        f"{gradient} of {'transposed ' * c.transposed}{c.cin} -> {c.cout} channels, {kh}x{kw}, "
        f"stride {list(c.stride)}, pad {pads}{c.unusual}; x {c.n}x{h}x{w}, dy {c.n}x{oh}x{ow}; "
        f"{form}, {storage}"
    )


def _mask(core_mask: Any, options: dict[str, Any]) -> Any:
    """The cores to use; the option ``cores`` of other operators is another word for the mask."""
    cores = options.pop("cores", None)
    if core_mask is not None and cores is not None:
        raise ArgumentError(
            f"core_mask is {core_mask!r} and cores is {cores!r}; they mean the same, give one"
        )
    return cores if core_mask is None else core_mask


def _require(call: Call, name: str) -> DType:
    """The operands' type; raise unless the device is a DSP that multiplies it."""
    found, device = dtype(name), call.device
    device.core_kind("dsp")
    rates = device.gemm.rates if device.gemm else {}
    if found.name not in rates:
        form = "hp (fp16)" if found is FP16 else str(found)
        raise ArgumentError(
            f"{call.operator}: {device.name} has no {form} form; it has {', '.join(rates)}"
            f"{': use float32, or device mt7004' if found is FP16 else ''}"
        )
    if device.l2 is None and call.options.start == "warm":
        raise ArgumentError(
            f"start is 'warm'; {device.name} has no L2 that could hold inputs, use 'cold'"
        )
    return found


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


def dsp_options(*, transposed: bool) -> tuple[Option, ...]:
    """The options that state a call."""
    return (BATCH, *SIZES, *((OUTPUT_PADDING,) if transposed else ()), STORAGE)


def stated_dsp(*, transposed: bool) -> Callable[[Stated], Wanted]:
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


def dsp_limit(sample: Sample[Wanted]) -> float:
    """That of the operands' type."""
    return LIMITS[dtype(sample.arrays["dy"].dtype).name]


#: A small call in each type.
CASES = tuple(
    Case(
        name=kind.name,
        needs=kind.name,
        parameter="dtype",
        calls=(f"--cin 4 --cout 8 --size 5x6 --kernel 3 --dtype {kind}",),
    )
    for kind in (FP32, FP16)
)

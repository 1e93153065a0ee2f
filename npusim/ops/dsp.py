"""Calls of the DSP library's gradients: storage, the parameter array, launches."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from npusim.base.dtypes import FP16, FP32, DType, dtype
from npusim.base.errors import ArgumentError
from npusim.base.records import replace
from npusim.call.call import Call
from npusim.call.spec import Array, Operand, Spec
from npusim.call.tilings.words import own_tiling
from npusim.kernels.dsp.grad_filter import ConvGradFilter, DeconvGradFilter
from npusim.kernels.dsp.grad_filter import Tiling as FilterTiling
from npusim.kernels.dsp.grad_input import ConvGradInput, DeconvGradInput
from npusim.kernels.dsp.grad_input import Tiling as InputTiling
from npusim.kernels.dsp.input_tiling import auto_tiling
from npusim.machine.device.parts import MainMemory
from npusim.machine.device.spec import Device
from npusim.machine.isa.operands import Tensor
from npusim.ops.arguments import frozen, operand, scalar
from npusim.ops.card import Card
from npusim.problem.convolution import Convolution, Sizes
from npusim.problem.limits.facts import PARAM, type_name, weight_shape
from npusim.results import Result

#: Where operands lie, by word: the memory of the device that takes the place of main memory.
STORAGES = {"shared": "main_memory", "gsm": "shared_memory", "private": "private_memory"}


class DspCall(NamedTuple):
    """A call that the limits have let pass: its facts, operands, their type, and where they lie."""

    call: Call
    checked: dict[str, Any]
    operands: Mapping[str, Operand]
    dtype: DType
    storage: str

    @property
    def cores(self) -> int:
        """Cores under the mask."""
        return len(self.call.groups) * self.call.device.core_kind("dsp").per_group

    def tensor(self, name: str) -> Tensor:
        """An operand in GM."""
        return self.call.input(name, self.operands[name], self.dtype)

    def result(self, name: str, output: str, c: Convolution) -> Result:
        """The result of a call whose kernels are launched: the tensor ``name`` as ``output``."""
        if self.dtype is FP16:
            self.call.notes.append(
                f"hp accumulates in fp32 and rounds once, as {name} is stored; the library does "
                "not document its own accumulation"
            )
        outputs, problem = {output: self.call.arrays.get(name)}, _problem(self, name, c)
        return self.call.result(outputs, problem, self.dtype)


def begin(
    card: Card[Any],
    arguments: Mapping[str, Array | Spec],
    param: Any,
    core_mask: Any,
    storage: str,
    device: str | Path | Device,
    options: Mapping[str, Any],
) -> DspCall:
    """The call of a function of the library, its arguments checked; operands are ``arguments``.

    ``core_mask`` has bit i for core i (None: all), or is what the option ``cores`` takes.
    """
    if not isinstance(storage, str) or storage not in STORAGES:
        raise ArgumentError(f"storage is {storage!r}; it is 'shared', 'gsm' or 'private'")
    operands = {name: operand(value) for name, value in arguments.items()}
    private = storage == "private"
    mask = _mask(core_mask, options.get("cores"))
    machine = {"device": device, "cores": 1 if private else mask}
    call = card.begin({**options, **machine}, **operands)
    bits = mask
    if not private and mask is not None and not isinstance(mask, int):
        bits = sum(1 << group for group in call.groups)
    checked = facts(card.name, operands, param, "private" if private else "shared", bits)
    call.check(checked)
    return DspCall(call, checked, operands, _require(call, checked["dtype"]), storage)


def facts(
    operator: str, operands: Mapping[str, Any], param: Any, storage: str, core_mask: Any
) -> dict[str, Any]:
    """The facts of a call; operands are anything with ``shape`` and ``dtype``.

    Raises ``ArgumentError`` where the operands are of two types, or an entry of ``param`` is no
    single value.
    """
    entries = _entries(param)
    types = {name: type_name(value.dtype) for name, value in operands.items()}
    if len(set(types.values())) > 1:
        words = ", ".join(f"{name} is {kind}" for name, kind in types.items())
        raise ArgumentError(f"{words}; {operator} takes one type for both")
    return {
        "dtype": next(iter(types.values())),
        **{f"{name}.shape": tuple(value.shape) for name, value in operands.items()},
        "param": entries,
        "storage": storage,
        "core_mask": core_mask,
    }


def _entries(param: Any) -> Any:
    """The parameter array as a tuple of integers; what is no list, or too short, as it is."""
    values = frozen(param)
    if values is None:
        raise ArgumentError(f"param is None; it takes {len(PARAM)} integers")
    if not isinstance(values, tuple) or len(values) < len(PARAM):
        return values
    address = len(PARAM) - 1  # which is null for none, and what follows is not read
    numbers = [scalar(f"param[{i}] {name}", values[i]) for i, name in enumerate(PARAM[:address])]
    return (*numbers, *values[address:])


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
    size = sum(call.held.values())
    if size > memory.size_bytes:
        *others, last = call.held
        tensors = f"{', '.join(others)} and {last}"
        owner = f"a core of {device}" if storage == "private" else device
        raise ArgumentError(
            f"storage is {storage!r}; {tensors} take {size} B, the {called} of {owner} holds "
            f"{memory.size_bytes} B: use a smaller batch or 'shared'"
        )
    call.device = call.device.with_operands_in(name)
    place = "private memory of one core" if storage == "private" else "memory that all cores share"
    call.notes.append(f"operands lie in the {place}; main memory is not used")


def launch_filter(
    dsp_call: DspCall, kernel: type[ConvGradFilter | DeconvGradFilter], *, transposed: bool
) -> Result:
    """A filter gradient, with the result "dw", of an ordinary or a ``transposed`` layer."""
    call = dsp_call.call
    param = dsp_call.checked["param"]
    c = described_layer(param, transposed=transposed)
    x = dsp_call.tensor("x")
    dy = dsp_call.tensor("dy")
    dw = call.output("dw", weight_shape(param), dsp_call.dtype)
    rows = None
    if param[17]:  # a chunk for each core, of the size that SM holds two of
        chunk = call.device.memory("SM").size_bytes // 2 // dsp_call.dtype.bytes
        rows = call.workspace("im2row", (dsp_call.cores, chunk), dsp_call.dtype)
    place_operands(call, dsp_call.storage)
    # The layer that reads dy and makes x is transposed; its filter gradient is an ordinary one's,
    # turned.
    plain = c if transposed else c.exchanged()
    read, grad = (x, dy) if transposed else (dy, x)
    tiling = own_tiling(call.options.tiling, kernel.name, FilterTiling)
    # Sums of runs of images round elsewhere than the sum of all of them does.
    spare_bytes = call.device.main_memory.size_bytes - sum(call.held.values())
    if call.options.deterministic:
        spare_bytes = 0
    start = tiling or FilterTiling(channels=1, taps=1, columns=1, rows=1, width=1)
    chosen = kernel(plain, start, read, grad, dw, rows, spare_bytes)
    if tiling is None:
        chosen = call.choose(chosen, simulated=True)
        _note_idle_cores(call, chosen.used(dsp_call.cores), dsp_call.cores)
    elif chosen.sums is not None and call.options.deterministic:
        raise ArgumentError(
            f"deterministic is True and the tiling shares images among {chosen.ran.image_cores} "
            "cores, where last bits depend on the mask; give it image_cores 1"
        )
    if chosen.sums is not None:
        call.workspace(chosen.sums.name, chosen.sums.shape, chosen.sums.dtype)
        call.notes.append(
            f"{chosen.sums.shape[0]} runs of the images are summed apart and then added in their "
            "order: last bits depend on how many cores share images (none: deterministic=True)"
        )
    call.launch(chosen)
    return dsp_call.result("dw", "dw", c)


def _note_idle_cores(call: Call, working: int, cores: int) -> None:
    """Note where a chosen tiling leaves cores of the mask without work."""
    if working < cores:
        call.notes.append(
            f"{working} of {cores} cores of the mask work: of the tilings that were "
            "compared none on more of them is faster"
        )


def launch_input(
    dsp_call: DspCall, kernel: type[ConvGradInput | DeconvGradInput], *, transposed: bool
) -> Result:
    """An input gradient, with the result "grad_input", of an ordinary or ``transposed`` layer."""
    call = dsp_call.call
    c = described_layer(dsp_call.checked["param"], transposed=transposed)
    dy = dsp_call.tensor("dy")
    w = dsp_call.tensor("w")
    dx = call.output("dx", (c.n, *c.spatial, c.cin), dsp_call.dtype)
    place_operands(call, dsp_call.storage)
    start = InputTiling(rows=1, width=1, columns=1, taps=1, channels=1)
    chosen = kernel(c.plain(), start, dy, w, dx)
    tiling = own_tiling(call.options.tiling, kernel.name, InputTiling)
    if tiling is None:
        tiling = auto_tiling(chosen.extents, dsp_call.dtype, call.device, dsp_call.cores)
    call.launch(replace(chosen, tiling=tiling))
    return dsp_call.result("dx", "grad_input", c)


def _problem(call: DspCall, gradient: str, c: Convolution) -> str:
    """One line for reports."""
    layer = "transposed " if c.transposed else ""
    kernel, size, out = ("x".join(map(str, sizes)) for sizes in (c.kernel, c.spatial, c.out))
    pads = [before for before, _ in c.padding]
    form = "fp" if call.dtype is FP32 else "hp"
    return (
        f"{gradient} of {layer}{c.cin} -> {c.cout} channels, {kernel}, stride {list(c.stride)}, "
        f"pad {pads}{c.unusual}; x {c.n}x{size}, dy {c.n}x{out}; {form}, {call.storage}"
    )


def _mask(core_mask: Any, cores: Any) -> Any:
    """The cores to use; the option ``cores`` of other operators is another word for the mask."""
    if core_mask is not None and cores is not None:
        raise ArgumentError(
            f"core_mask is {core_mask!r} and cores is {cores!r}; they mean the same, give one"
        )
    return cores if core_mask is None else core_mask


def _require(call: Call, name: str) -> DType:
    """The operands' type; raise unless the device is a DSP that multiplies it."""
    kind = dtype(name)
    device = call.device
    device.core_kind("dsp")
    rates = device.gemm.rates if device.gemm else {}
    if kind.name not in rates:
        form, way_out = str(kind), ""
        if kind is FP16:
            form, way_out = "hp (fp16)", ": use float32, or device mt7004"
        raise ArgumentError(
            f"{call.operator}: {device.name} has no {form} form; it has {', '.join(rates)}{way_out}"
        )
    if device.l2 is None and call.options.start == "warm":
        raise ArgumentError(
            f"start is 'warm'; {device.name} has no L2 that could hold inputs, use 'cold'"
        )
    return kind

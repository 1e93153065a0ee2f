"""What calls of the DSP library's gradients share: storage, the parameter array, launches."""

from __future__ import annotations

from collections.abc import Mapping
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
    device: str | Device,
    options: dict[str, Any],
) -> DspCall:
    """The call of a function of the library, its arguments checked; operands are ``arguments``.

    ``core_mask`` has bit i for core i (None: all), or is what the option ``cores`` takes.
    """
    if not isinstance(storage, str) or storage not in STORAGES:
        raise ArgumentError(f"storage is {storage!r}; it is 'shared', 'gsm' or 'private'")
    operands = {name: operand(value) for name, value in arguments.items()}
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
    return DspCall(call, checked, operands, _require(call, checked["dtype"]), storage)


def facts(
    operator: str, operands: Mapping[str, Any], param: Any, storage: str, core_mask: Any
) -> dict[str, Any]:
    """What the limits are checked against; operands are anything with ``shape`` and ``dtype``.

    Raises ``ArgumentError`` where the operands are of two types, or an entry of ``param`` is no
    single value.
    """
    param = frozen(param)
    if param is None:
        raise ArgumentError(f"param is None; it takes {len(PARAM)} integers")
    if isinstance(param, tuple) and len(param) >= len(PARAM):
        named = zip(PARAM[:-1], param, strict=False)  # the last is an address, null for none
        param = (*(scalar(f"param[{i}] {n}", v) for i, (n, v) in enumerate(named)), *param[17:])
    (first, one), (second, other) = operands.items()
    kinds = type_name(one.dtype), type_name(other.dtype)
    if kinds[0] != kinds[1]:
        raise ArgumentError(
            f"{first} is {kinds[0]}, {second} is {kinds[1]}; {operator} takes one type for both"
        )
    return {
        "dtype": kinds[0],
        **{f"{name}.shape": tuple(value.shape) for name, value in operands.items()},
        "param": param,
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
    made: DspCall, kernel: type[ConvGradFilter | DeconvGradFilter], *, transposed: bool
) -> Result:
    """A filter gradient, with the result "dw"; ``transposed`` tells of the layer."""
    call, param = made.call, made.checked["param"]
    c = described_layer(param, transposed=transposed)
    tensors = {name: made.tensor(name) for name in ("x", "dy")}
    dw = call.output("dw", weight_shape(param), made.dtype)
    rows = None
    if param[17]:  # a chunk for each core, of the size that SM holds two of
        chunk = call.device.memory("SM").size_bytes // 2 // made.dtype.bytes
        rows = call.workspace("im2row", (made.cores, chunk), made.dtype)
    place_operands(call, made.storage)
    # The layer that reads dy and makes x is transposed; its filter gradient is an ordinary one's,
    # turned.
    seen, roles = (c, ("x", "dy")) if transposed else (c.exchanged(), ("dy", "x"))
    read, grad = (tensors[name] for name in roles)
    tiling = own_tiling(call.options.tiling, kernel.name, FilterTiling)
    any_tiling = FilterTiling(channels=1, taps=1, columns=1, rows=1, width=1)
    # Sums of runs of images round elsewhere than the sum of all of them does.
    spare_bytes = call.device.main_memory.size_bytes - sum(call.held.values())
    if call.options.deterministic:
        spare_bytes = 0
    chosen = kernel(seen, tiling or any_tiling, read, grad, dw, rows, spare_bytes)
    if tiling is None:
        chosen = call.choose(chosen, simulated=True)
        working = chosen.used(made.cores)
        if working < made.cores:
            call.notes.append(
                f"{working} of {made.cores} cores of the mask work: of the tilings that were "
                "compared none on more of them is faster"
            )
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
    return made.result("dw", "dw", c)


def launch_input(
    made: DspCall, kernel: type[ConvGradInput | DeconvGradInput], *, transposed: bool
) -> Result:
    """An input gradient, with the result "grad_input"; ``transposed`` tells of the layer."""
    call = made.call
    c = described_layer(made.checked["param"], transposed=transposed)
    dy, w = made.tensor("dy"), made.tensor("w")
    dx = call.output("dx", (c.n, *c.spatial, c.cin), made.dtype)
    place_operands(call, made.storage)
    any_tiling = InputTiling(rows=1, width=1, columns=1, taps=1, channels=1)
    chosen = kernel(c.plain(), any_tiling, dy, w, dx)
    tiling = own_tiling(call.options.tiling, kernel.name, InputTiling)
    if tiling is None:
        tiling = auto_tiling(chosen.extents, made.dtype, call.device, made.cores)
    call.launch(replace(chosen, tiling=tiling))
    return made.result("dx", "grad_input", c)


def _problem(made: DspCall, gradient: str, c: Convolution) -> str:
    """One line for reports."""
    (h, w), (oh, ow), (kh, kw) = c.spatial, c.out, c.kernel
    form, pads = "fp" if made.dtype is FP32 else "hp", [before for before, _ in c.padding]
    return (
        f"{gradient} of {'transposed ' * c.transposed}{c.cin} -> {c.cout} channels, {kh}x{kw}, "
        f"stride {list(c.stride)}, pad {pads}{c.unusual}; x {c.n}x{h}x{w}, dy {c.n}x{oh}x{ow}; "
        f"{form}, {made.storage}"
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

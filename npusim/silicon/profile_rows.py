"""Kernels of a profile as the same kernels here: shapes, formats and choices become a loop nest.

Kernels are made, and their tilings chosen, for the device as it is shipped, whatever figures of it
are changed, so that a fit compares one program with itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import lru_cache, partial
from math import gcd, prod
from typing import Any, NamedTuple, TypeVar

from npusim.base.dtypes import FP32, dtype
from npusim.base.errors import NpusimError, told_as
from npusim.base.records import replace
from npusim.call.call import Call
from npusim.call.options import Options
from npusim.call.tilings.choice import chosen
from npusim.kernels.filter_gradient.filter_gradient import ConvBackpropFilter
from npusim.kernels.filter_gradient.filter_gradient import Tiling as FilterTiling
from npusim.kernels.implicit_gemm.implicit_gemm import Tiling as InputTiling
from npusim.kernels.implicit_gemm.input_gradient import ConvBackpropInput
from npusim.kernels.layout.cast import Cast, cast
from npusim.kernels.layout.conversion import Conversion
from npusim.kernels.layout.trans_data import TransData
from npusim.kernels.layout.transpose import Transpose
from npusim.kernels.matmul.matmul import Matmul, Tiling
from npusim.kernels.vector.stream import Elementwise, StreamTiling
from npusim.machine.device.catalog import load_device
from npusim.machine.device.spec import Device
from npusim.machine.isa.operands import Tensor
from npusim.machine.program.kernel import Kernel
from npusim.ops.blocked_gradients import filter_gradient, launches_of, product
from npusim.ops.linear import START
from npusim.problem.convolution import Convolution
from npusim.silicon.choices import AUTO, VENDOR
from npusim.silicon.profiler import groups_of, reported
from npusim.silicon.rows import Declined, ProfiledOperand, ProfiledRow, SimulatedRow

T = TypeVar("T")

#: Kinds of task whose cores are simulated.
_TASKS = ("", "AI_CORE", "AI_VECTOR_CORE", "MIX_AIC", "MIX_AIV")
_MIXED = ("MIX_AIC", "MIX_AIV")

#: Makes the kernels that are launched, and adds notes on choices and assumptions.
_Make = Callable[[Call, ProfiledRow, list[str]], list[Kernel]]


def simulate_profiled_row(row: ProfiledRow, device: Device) -> SimulatedRow:
    """Simulate the kernel of a row on a device.

    Raises ``Declined`` with file and line of the profile and the part without a counterpart here.
    """
    with told_as(Declined, f"{row.where}: ", (Declined, NpusimError)):
        return _simulated(row, device)


def _simulated(row: ProfiledRow, device: Device) -> SimulatedRow:
    if row.task not in _TASKS:
        raise Declined(f"task type {row.task} runs on no core that is simulated")
    kernel = _kind(row).kernel
    call = _call(row, device)
    kernels, notes = _kernels_of(row)
    for launched in kernels:
        call.launch(launched)
    more = []
    if row.task in _MIXED:
        more.append(f"task type {row.task}: only the {kernel.role} cores' part is simulated")
    if row.cores is None:
        more.append("the profile does not say on how many cores: all")
    run = next(run for run in call.runs if run.name == kernel.name)
    return reported(run, row, device, kernel.role, [*notes, *more], cores=row.cores)


@lru_cache(maxsize=4096)
def _kernels_of(row: ProfiledRow) -> tuple[list[Kernel], list[str]]:
    """The kernels that are launched for a row, and notes, from the device without changes."""
    notes: list[str] = []
    call = _call(row, load_device(row.chip))
    return _kind(row).make(call, row, notes), notes


def _call(row: ProfiledRow, device: Device) -> Call:
    """A call on the cores of a row."""
    kernel = _kind(row).kernel
    groups = groups_of(row, device, kernel.role, "block dim")
    options = Options(device=device, cores=groups, rules="hardware", timeline=False)
    return Call(kernel.name, options, timing_only=True)


def _fields_of(row: ProfiledRow, kind: type[T]) -> T:
    """The tiling of a kernel whose fields the file beside the profile gives."""
    values = dict(row.choice.tiling)  # type: ignore[arg-type]
    names = [f.name for f in fields(kind)]  # type: ignore[arg-type]
    for name in values:
        if name not in names:
            raise Declined(f"{row.choice.where}: tiling has no {name!r}; it has {', '.join(names)}")
    with told_as(Declined, f"{row.choice.where}: tiling: ", (TypeError, NpusimError)):
        return kind(**values)


# -- products of matrices ----------------------------------------------------------------------


def _matmul(call: Call, row: ProfiledRow, notes: list[str]) -> list[Kernel]:
    """A product of two matrices, with the tiling stated beside the profile or the best of ours."""
    a, b, *more = row.operands
    c = row.results[0]
    if c.layout != "ND" or len(c.shape) != 2:
        raise Declined(f"the result is {c.layout} of shape {c.shape}; two axes of ND are simulated")
    if more:
        notes.append("the bias is not simulated")
    layout_a, k = _layout_of_a(row, a, c.shape[0], notes)
    layout_b = _layout_of_b(row, b, k, c.shape[1], notes)
    kernel = Matmul(
        START,
        _tensor("a", a),
        _tensor("b", b),
        _tensor("c", c, "out"),
        layouts=(layout_a, layout_b),
    )
    source = "by auto"
    if isinstance(row.choice.tiling, tuple):
        kernel = replace(kernel, tiling=_fields_of(row, Tiling))
        source = f"of {row.choice.where}"
    elif row.choice.tiling in ("", AUTO):
        kernel = chosen(kernel, call.device, call.groups)
    else:
        raise Declined(f"{row.choice.where}: the vendor's rule for products is not known; use auto")
    notes.append(f"tiling {source}: {kernel.tiling}")
    return [kernel]


def _layout_of_a(row: ProfiledRow, a: ProfiledOperand, m: int, notes: list[str]) -> tuple[str, int]:
    """The layout of A, and K."""
    if a.layout == "FRACTAL_NZ" and len(a.shape) == 4:
        raise Declined("A in FRACTAL_NZ does not tell K; it is simulated as ND only")
    if len(a.shape) != 2:
        raise Declined(f"A has shape {a.shape}; products of several matrices are not simulated")
    if a.shape[0] == a.shape[1] and row.choice.get("transpose_a") is None:
        notes.append("A is square: taken as stored M x K, as no transpose_a is given")
    if row.choice.get("transpose_a", a.shape[0] != m):
        return "ND_km", a.shape[0]
    return "ND", a.shape[1]


def _layout_of_b(row: ProfiledRow, b: ProfiledOperand, k: int, n: int, notes: list[str]) -> str:
    """The layout of B."""
    if b.layout == "FRACTAL_NZ" and len(b.shape) == 4:
        return "NZ"
    if len(b.shape) != 2 or sorted(b.shape) != sorted((k, n)):
        raise Declined(f"B has shape {b.shape}; with A and C of these shapes it must be {(k, n)}")
    if k == n and row.choice.get("transpose_b") is None:
        notes.append("B is square: taken as stored K x N, as no transpose_b is given")
    transposed = row.choice.get("transpose_b", b.shape != (k, n))
    return "ND_nk" if transposed else "ND"


# -- gradients of convolutions -----------------------------------------------------------------


def _input_gradient(call: Call, row: ProfiledRow, notes: list[str]) -> list[Kernel]:
    """The gradient of a convolution's input."""
    filters, maps = _by_layout(row.operands)
    dy, dx = maps[0], row.results[0]
    c = _layer(row, dx, dy)
    if len(filters) != 1:
        raise Declined("expected one filter in FRACTAL_Z or FRACTAL_Z_3D among the inputs")
    make = partial(
        product,
        call,
        ConvBackpropInput,
        c,
        _blocked("dy", dy),
        Tensor("filter", c.fractals, dtype(filters[0].dtype)),
        _blocked("dx", dx, "out"),
    )
    return _tiled(call, row, notes, InputTiling, make)


def _filter_gradient(call: Call, row: ProfiledRow, notes: list[str]) -> list[Kernel]:
    """The gradient of a convolution's filter."""
    _, maps = _by_layout(row.operands)
    if len(maps) != 2:
        raise Declined("expected input and gradient of the output, both NC1HWC0 or NDC1HWC0")
    x, dy = maps
    c = _layer(row, x, dy)
    make = partial(
        filter_gradient,
        call,
        c,
        _blocked("x", x),
        _blocked("dy", dy),
        Tensor("dw", c.fractals, FP32, "out"),
    )
    return _tiled(call, row, notes, FilterTiling, make)


def _tiled(
    call: Call, row: ProfiledRow, notes: list[str], kind: type[Any], make: Callable[[], Any]
) -> list[Kernel]:
    """A gradient with its tiling; where nothing is said, the vendor's rule where it is known."""
    tiling: Any = row.choice.tiling
    if isinstance(tiling, tuple):
        tiling = _fields_of(row, kind)
    rules: tuple[Any, ...] = (tiling,)
    if tiling == "":
        rules = ("production", "library")
    elif tiling == VENDOR:
        rules = ("production",)
    fallback = ""
    for rule in rules:
        call.options = replace(call.options, tiling=rule)
        call.notes.clear()
        try:
            kernel = make()
            break
        except NpusimError as error:
            if rule == rules[-1]:
                raise
            fallback = f"the vendor's rule is not known here: {error}"
    notes.append(f"tiling {_source(rule, row.choice.where)}: {kernel.tiling}")
    if call.notes:
        notes.append("; ".join(call.notes))
    if fallback:
        notes.append(fallback)
    return launches_of(kernel)


def _source(rule: Any, where: str) -> str:
    """The words for the source of a tiling: a rule, or the file beside the profile."""
    if rule == "production":
        return "by the vendor's rule"
    if rule in ("library", AUTO):
        return "by auto"
    return f"of {where}"


def _by_layout(
    operands: tuple[ProfiledOperand, ...],
) -> tuple[list[ProfiledOperand], list[ProfiledOperand]]:
    """Filters and feature maps among operands; the sizes that a call passes are neither."""
    filters: list[ProfiledOperand] = []
    maps: list[ProfiledOperand] = []
    others: list[str] = []
    for operand in operands:
        if operand.layout in _MAPS:
            maps.append(operand)
        elif operand.layout.startswith("FRACTAL_Z") and len(operand.shape) == 4:
            filters.append(operand)
        elif len(operand.shape) > 1:
            others.append(operand.layout)
    if others or not maps:
        layouts = ", ".join(others) or "no blocked format"
        raise Declined(f"operands in {layouts}: only NC1HWC0, NDC1HWC0 and FRACTAL_Z are simulated")
    return filters, maps


#: Blocked formats of feature maps, and their axes.
_MAPS = {"NC1HWC0": ("N", "C1", "H", "W", "C0"), "NDC1HWC0": ("N", "D", "C1", "H", "W", "C0")}


def _with_depth(operand: ProfiledOperand) -> tuple[int, ...]:
    """The shape of a blocked map as (N, D, C1, H, W, C0)."""
    if operand.layout not in _MAPS or len(operand.shape) != len(_MAPS[operand.layout]):
        raise Declined(f"{operand.layout} of shape {operand.shape} is no blocked feature map")
    if operand.layout == "NDC1HWC0":
        return operand.shape
    n, *rest = operand.shape
    return (n, 1, *rest)


def _blocked(name: str, operand: ProfiledOperand, role: Any = "in") -> Tensor:
    return Tensor(name, _with_depth(operand), dtype(operand.dtype), role)


def _layer(row: ProfiledRow, x: ProfiledOperand, dy: ProfiledOperand) -> Convolution:
    """The layer between two blocked maps, with the attributes of the file beside the profile."""
    n, d, c1, h, w, c0 = _with_depth(x)
    _, do, co1, ho, wo, _ = _with_depth(dy)
    get = row.choice.get
    if get("kernel") is None:
        raise Declined(
            "a profile does not hold a convolution's attributes; give kernel, and stride, padding, "
            "dilation and groups where they are not 1, 0, 1 and 1, in the file beside it"
        )
    pads = _three(get("padding", (0,)), 0)
    c = Convolution(
        n=n,
        cin=get("cin", c1 * c0),
        cout=get("cout", co1 * c0),
        spatial=(d, h, w),
        kernel=_three(get("kernel"), 1),
        stride=_three(get("stride", (1,)), 1),
        padding=tuple((pad, pad) for pad in pads),
        dilation=_three(get("dilation", (1,)), 1),
        groups=get("groups", 1),
        c0=c0,
    )
    if dtype(dy.dtype).bytes != 2:
        raise Declined(f"{dy.dtype} operands: only 16-bit gradients are simulated from a profile")
    if c.out != (do, ho, wo):
        raise Declined(
            f"{row.choice.where}: with these attributes the output is {c.out}, but the profile has "
            f"{(do, ho, wo)}; correct kernel, stride, padding or dilation"
        )
    return c


def _three(sizes: tuple[int, ...], usual: int) -> tuple[int, ...]:
    """Depth, height and width; one number is for height and width."""
    if len(sizes) == 1:
        sizes *= 2
    return (usual,) * (3 - len(sizes)) + sizes


# -- vector kernels ----------------------------------------------------------------------------


def _trans_data(call: Call, row: ProfiledRow, notes: list[str]) -> list[Kernel]:
    """A conversion between a plain and a blocked map."""
    source, target = row.operands[0], row.results[0]
    if target.layout in _MAPS:
        kind, plain, blocked = "to_blocked", source, target
    else:
        kind, plain, blocked = "from_blocked", target, source
    if blocked.layout not in _MAPS or plain.layout not in ("NCHW", "NCDHW"):
        raise Declined(f"{source.layout} to {target.layout} is not simulated as one conversion")
    conversion = Conversion(kind=kind, c0=blocked.shape[-1])
    size = _with_depth(blocked)
    src = _tensor("src", source, shape=size if kind == "from_blocked" else None)
    dst = _tensor("dst", target, "out", shape=size if kind == "to_blocked" else None)
    return [TransData(conversion, src, dst)]


def _transpose(call: Call, row: ProfiledRow, notes: list[str]) -> list[Kernel]:
    """A transpose, whose permutation follows from the shapes where all sizes differ."""
    x, y = row.operands[0], row.results[0]
    perm = row.choice.get("perm")
    if perm is None:
        if len(set(x.shape)) != len(x.shape):
            raise Declined("axes of equal size: give the permutation, such as perm: 0x2x1")
        perm = tuple(x.shape.index(size) for size in y.shape if size in x.shape)
    if sorted(perm) != list(range(len(x.shape))):
        raise Declined(f"perm is {perm}: it must name each of the {len(x.shape)} axes once")
    return [Transpose(perm, _tensor("x", x), _tensor("y", y, "out"))]


def _cast(call: Call, row: ProfiledRow, notes: list[str]) -> list[Kernel]:
    """A conversion of dtypes."""
    x = _tensor("x", row.operands[0])
    y = _tensor("y", row.results[0], "out")
    return [cast(x, y, saturate=call.device.saturates)]


def _elementwise(
    operation: str, count: int, call: Call, row: ProfiledRow, notes: list[str]
) -> list[Kernel]:
    """An element-wise operation of ``count`` operands of one shape."""
    z = row.results[0]
    if any(x.shape != z.shape for x in row.operands) or len(row.operands) != count:
        raise Declined(f"{row.op} of {len(row.operands)} operands, or with broadcast")
    slots = 2
    kind = dtype(z.dtype)
    size = prod(z.shape)
    line = gcd(size, 256)
    most = call.device.memory("UB").size_bytes // (slots * (count + 1) * kind.bytes)
    piece = max(16, min(most, size) // 16 * 16)
    notes.append(f"tiling by {AUTO}: pieces of {piece} elements, {slots} slots")
    rows = (size // line, line)
    operands = tuple(Tensor(f"x{i}", rows, kind) for i in range(count))
    tiling = StreamTiling(piece=piece, slots=slots)
    return [Elementwise(operation, tiling, operands, Tensor("z", rows, kind, "out"))]


def _tensor(
    name: str, operand: ProfiledOperand, role: Any = "in", shape: tuple[int, ...] | None = None
) -> Tensor:
    return Tensor(name, shape or operand.shape, dtype(operand.dtype), role)


# -- op types ----------------------------------------------------------------------------------


class _Kind(NamedTuple):
    """The kernel of an op type, and the function that makes the kernels of a row."""

    kernel: type[Kernel]
    make: _Make


#: Op types of profiles, without the version that a library appends.
_KINDS: Mapping[str, _Kind] = {
    "MatMul": _Kind(Matmul, _matmul),
    "Conv2DBackpropInput": _Kind(ConvBackpropInput, _input_gradient),
    "Conv3DBackpropInput": _Kind(ConvBackpropInput, _input_gradient),
    "Conv2DBackpropFilter": _Kind(ConvBackpropFilter, _filter_gradient),
    "Conv3DBackpropFilter": _Kind(ConvBackpropFilter, _filter_gradient),
    "TransData": _Kind(TransData, _trans_data),
    "Transpose": _Kind(Transpose, _transpose),
    "Cast": _Kind(Cast, _cast),
    "Add": _Kind(Elementwise, partial(_elementwise, "add", 2)),
    "Relu": _Kind(Elementwise, partial(_elementwise, "relu", 1)),
}


def _kind(row: ProfiledRow) -> _Kind:
    """The kernel of an op type; ``MatMulV3`` and ``Conv3DBackpropInputD`` are versions."""
    name = row.op.rstrip("0123456789").removesuffix("V") if row.op[-1:].isdigit() else row.op
    for op_type in (name, name.removesuffix("D")):
        if op_type in _KINDS:
            return _KINDS[op_type]
    raise Declined(f"op type {row.op} has no kernel here; known are {', '.join(_KINDS)}")

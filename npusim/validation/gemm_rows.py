"""Measured matrix products as kernels: the words and columns of a row become a tiling.

Whatever is said in a way unknown here is declined.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd
from typing import Any

from npusim.base.dtypes import BF16, FP16, FP32, INT8, INT32, MX_BLOCK, MXFP4, MXFP8, DType
from npusim.base.errors import NpusimError
from npusim.base.integers import ceil_div
from npusim.call.call import Call
from npusim.call.options import Options
from npusim.device.spec import Device
from npusim.isa.operands import Tensor
from npusim.kernels.matmul import Matmul, Tiling
from npusim.kernels.matmul_mix import PER_BLOCK, MatmulFinish, MatmulSum
from npusim.kernels.parts.hand_over import HandOver
from npusim.kernels.parts.matmul_operands import LAYOUTS_A, LAYOUTS_B
from npusim.kernels.sum_parts import SumParts
from npusim.validation.profiler import reported
from npusim.validation.rows import Declined, KernelRow, Simulated, needed
from npusim.validation.sheet import spelled_order, told

_DTYPES = {dtype.name: dtype for dtype in (FP16, BF16, FP32, INT8, INT32, MXFP8, MXFP4)}

#: Words for results that vector cores finish from global memory, within the same kernel.
_FINISHED = ("per_token_dequant_on_aiv", "cv_fused_via_gm")
#: Operations whose vector cores compute GELU.
_GATED = ("gemm_gelu", "grouped_gemm_dequant_gelu")
#: Of these, those that scale before, and have a B for each of ``batch`` equal parts of the rows.
_GROUPED = ("grouped_gemm_dequant_gelu",)
#: Rows that a vector core of these takes at a time, as their source says.
_GROUPED_STEP = 24
#: Blocks in which a core hands over tiles, where nothing says how many.
_BLOCKS = 2
#: Words for library templates: these parse their tiling at run time, and walk tiles along M first.
_LIBRARY = ("norm_template", "mdl_template")


def simulate_gemm_row(row: KernelRow, device: Device) -> Simulated:
    """Simulate the measured kernel of a row on a device.

    Raises ``Declined`` with the word or column that cannot be simulated.
    """
    kernel, cores, notes = _plan(row, device)
    call = Call(
        row.id, Options(device=device, cores=range(cores), timeline=False), timing_only=True
    )
    try:
        call.launch(kernel)
    except NpusimError as error:
        raise Declined(f"the tiling does not run: {error}") from error
    (run,) = call.runs
    parses = "constant_tiling" not in row.switches and bool(set(_LIBRARY) & set(row.switches))
    # The launch starts cores of both kinds, whether or not there is a tile for each.
    started = cores * sum(device.core_kind(role).per_group for role in kernel.roles)
    return reported(run, row, device, "cube", notes, started=started, parses=parses)


# -- from words and columns to kernels -----------------------------------------------------


#: A product, alone or with the vector cores that finish its tiles or add the parts of K.
_Kernel = Matmul | MatmulFinish | MatmulSum


def _plan(row: KernelRow, device: Device) -> tuple[_Kernel, int, list[str]]:
    """The kernel of a row, the core groups it runs on, and what was taken for granted."""
    sets = told(row, "gemm")
    if row.op not in ("gemm", *_GATED):
        raise Declined(f"op: {row.op} is not simulated; gemm is, and {', '.join(_GATED)}")
    if row.batch not in (None, 1) and row.op not in _GROUPED:
        raise Declined(f"batch: {row.batch} products at once are not simulated")
    cores = device.groups if row.cores is None else row.cores
    if cores > device.groups:
        raise Declined(f"cores: {cores} of {device.name}, which has {device.groups}")
    dtype, out = _dtype("dtype_in", row.dtype_in), _dtype("dtype_out", row.dtype_out)
    needed(row, "M", "N", "K", "base_m", "base_n", "base_k")
    notes: list[str] = []
    values = {
        **_blocks(row, dtype),
        **_slabs(row, dtype, device, notes, sets.pop("scale", "")),
        **_slots(row),
        **_order(row, notes),
    }
    mixed = sets.pop("readers", 0), sets.pop("slots", 0)
    values |= sets
    if "share_b_in_l1" in row.switches:
        values["base_m"] = ceil_div(row.M, 16) * 16
        values["single_core_m"] = 0
        notes.append("share_b_in_l1: the blocks of both callers are one tile")
    values |= _tail(row, values, cores)
    values |= _split(row, values, cores)
    shape = row.M, row.K // dtype.values, row.N
    problem = _Problem(row, device, dtype, out, shape, *mixed)
    try:
        return problem.kernel(Tiling(**values), cores, notes), cores, notes
    except NpusimError as error:
        raise Declined(f"the tiling is not legal: {error}") from error


def _dtype(column: str, name: str | None) -> DType:
    if name not in _DTYPES:
        raise Declined(f"{column}: {name} is not simulated; known are {', '.join(_DTYPES)}")
    return _DTYPES[name]


@dataclass(frozen=True)
class _Problem:
    """The operands of a row; ``shape`` is (M, K, N), K in stored elements.

    ``readers`` vector cores work with a cube core, in so many ``slots`` of GM; 0 if not stated.
    """

    row: KernelRow
    device: Device
    dtype: DType
    out: DType
    shape: tuple[int, int, int]
    readers: int
    slots: int

    def kernel(self, tiling: Tiling, cores: int, notes: list[str]) -> _Kernel:
        """The product, with the vector cores that finish its tiles or add the parts of K."""
        m, k, n = self.shape
        layouts = (self._layout("layout_a", LAYOUTS_A), self._layout("layout_b", LAYOUTS_B))
        a = Tensor("a", self._stored((m, k), layouts[0] == "NZ"), self.dtype)
        b_shape = (n, k) if layouts[1] == "ND_nk" else (k, n)
        groups = self.row.batch or 1 if self.row.op in _GROUPED else 1
        first, *rest = self._stored(b_shape, layouts[1] == "NZ")
        b = Tensor("b", (groups * first, *rest), self.dtype)
        c = Tensor("c", (m, n), self.out, "out")
        scales: tuple[Tensor, ...] = ()
        if self.dtype in (MXFP8, MXFP4):
            columns = ceil_div(k * self.dtype.values, MX_BLOCK)
            scales = tuple(
                Tensor(f"scale_{name}", (rows, columns), INT8)
                for name, rows in (("m", m), ("n", n))
            )
        product = Matmul(tiling, a, b, c, layouts=layouts, scales=scales, groups=groups)
        parts = ceil_div(k, tiling.single_core_k or k)
        finished = bool(set(_FINISHED) & set(self.row.switches)) or self.row.op in _GATED
        if parts > 1:
            if finished:
                notes.append("the factors of rows and columns are not part of the sum")
            sums = Tensor("parts", (parts, m, n), FP32, "out")
            return MatmulSum(replace(product, c=sums, meets=True), SumParts(sums, c, meets=True))
        if not finished:
            return product
        return self._finished(product, cores, notes)

    def _finished(self, product: Matmul, cores: int, notes: list[str]) -> MatmulFinish:
        """The product with the vector cores of each group on its tiles."""
        m, n = product.c.shape
        readers = self.readers or self.device.core_kind("vector").per_group
        slots = self.slots
        if not slots:
            slots = _BLOCKS
            notes.append(f"tiles are taken to go through {slots} blocks of GM per core")
        work = Tensor("work", (cores * slots, product.ran.base_m, product.ran.base_n), FP32, "out")
        handed = HandOver(m, n, slots, readers)
        gated, grouped = self.row.op in _GATED, self.row.op in _GROUPED
        factors = (Tensor("rows", (m, PER_BLOCK), FP32), Tensor("columns", (n,), FP32))
        if gated:
            notes.append(f"{self.row.op}: a gate of straight lines takes the place of exponentials")
        return MatmulFinish(
            replace(product, c=work, handed=handed),
            product.c,
            factors=() if gated and not grouped else factors,
            gated=gated,
            step=_GROUPED_STEP if grouped else 0,
            whole=self.dtype.kind == "int",
        )

    def _layout(self, column: str, known: tuple[str, ...]) -> str:
        layout = getattr(self.row, column)
        if layout not in known:
            raise Declined(f"{column}: {layout} is not simulated; known are {', '.join(known)}")
        return str(layout)

    def _stored(self, shape: tuple[int, int], blocked: bool) -> tuple[int, ...]:
        """The shape in memory: as it is, or (columns of 32 B, rows in sixteens, C0)."""
        if not blocked:
            return shape
        c0 = 32 // self.dtype.bytes
        return ceil_div(shape[1], c0), ceil_div(shape[0], 16) * 16, c0


def _blocks(row: KernelRow, dtype: DType) -> dict[str, int]:
    """The base block and the single-core block."""
    return {
        "base_m": row.base_m,
        "base_n": row.base_n,
        "base_k": row.base_k // dtype.values,
        "single_core_m": row.single_core_m or 0,
        "single_core_n": row.single_core_n or 0,
    }


def _slots(row: KernelRow) -> dict[str, int]:
    """Slots per level; what is not stated is the pipelined template's two, one for L0C."""
    a, b = row.buffers_l1 or ((1, 1) if "norm_template" in row.switches else (2, 2))
    return {
        "l1a_slots": a,
        "l1b_slots": b,
        "l0_slots": row.buffers_l0 or 2,
        "l0c_slots": row.buffers_l0c or 1,
    }


def _slabs(
    row: KernelRow, dtype: DType, device: Device, notes: list[str], scale: str
) -> dict[str, int]:
    """Base blocks per copy of A, of B and of scales; these are for ``scale``, "8 base block"."""
    step_a, step_b = row.step_ka, row.step_kb
    if step_a is None or step_b is None:
        step_a = step_b = _unstated_step(row, dtype, device, notes)
    steps = {"step_ka": step_a, "step_kb": step_b}
    if row.scale_steps is not None:
        return steps | {"step_scale": row.scale_steps}
    if scale:
        number, what = scale.split(" ", 1)
        count = int(number)
        blocks = {"slab of A": count * step_a, "base block": count}
        steps["step_scale"] = blocks.get(what, count // row.base_k)
    if "scale_coalesced" in row.switches:
        steps["step_scale"] = ceil_div(row.K, row.base_k)
        notes.append("scale_coalesced: one copy of scales is taken to serve all of K")
    return steps


def _unstated_step(row: KernelRow, dtype: DType, device: Device, notes: list[str]) -> int:
    """The library's, where it chose: as many base blocks as fit L1 twice, of rows in few pieces."""
    if not {"mdl_template", "mix_mode"} & set(row.switches):
        raise Declined("step_ka and step_kb are empty: the depth of a copy is not stated")
    base = row.base_m + row.base_n
    deep = row.base_k * dtype.bytes // dtype.values
    step = device.memory("L1").size_bytes // 2 // (base * deep)
    piece = device.path("GM", "L1", "nd2nz").piece_bytes
    whole = piece // gcd(piece, deep) if piece else 1  # blocks that end with a piece
    step -= step % whole if step > whole else 0
    notes.append(f"steps are not stated: {step} base blocks, as many as fit L1 twice")
    return int(max(1, min(step, ceil_div(row.K, row.base_k))))


def _order(row: KernelRow, notes: list[str]) -> dict[str, Any]:
    """The order of blocks, and of the tiles inside one."""
    stated = _stated_order(row)
    if (stated.order, stated.fastest, stated.window) == (None, None, None):
        notes.append("the order of tiles is not stated: along M first, core stride")
    order: dict[str, Any] = {
        "strided": stated.order != "contiguous",
        "n_fastest": stated.fastest == "n",
        "n_inner": stated.inner == "n",
        "window": stated.window or 0,
        "last_wide": stated.last_window == "joined",
        "snake": bool(stated.snake),
    }
    if any(word in row.switches for word in ("l2_split", "l2_split_m2")):
        order |= _halves(row)
    return order


def _stated_order(row: KernelRow) -> KernelRow:
    """The row with the columns of its order, which an older file spells in ``swizzle``."""
    if row.order is not None or row.swizzle is None:
        return row
    columns = spelled_order(row.swizzle)
    if columns is None:
        raise Declined(f"swizzle: {row.swizzle!r} is not known; state order, fastest and window")
    if any(word in row.switches for word in _LIBRARY):
        columns.pop("inner", None)
    return replace(row, **columns)


def _halves(row: KernelRow) -> dict[str, Any]:
    """Two passes, the upper half of M before the lower."""
    (block,) = needed(row, "single_core_m")
    blocks = ceil_div(row.M, block)
    return {"window": ceil_div(blocks, 2), "snake": False, "n_fastest": False}


def _tiles(row: KernelRow) -> int:
    return int(ceil_div(row.M, row.base_m) * ceil_div(row.N, row.base_n))


def _tail(row: KernelRow, values: dict[str, Any], cores: int) -> dict[str, int]:
    """How the tiles of a last round that leaves cores idle are cut.

    In two along N; or into equal parts along M and N by the rule of the adaptive sliding window,
    which is also what evening out a round comes to.
    """
    left = _tiles(row) % cores
    if not left or not values["strided"]:
        return {}
    if "tail_tile_split_n2" in row.switches:
        return {"tail_n": 2} if 2 * left <= cores else {}
    if not any(word in row.switches for word in ("aswt_tail_split", "tail_rebalance")):
        return {}
    along_m, along_n = window_tail(cores // left, _last(row, "M"), _last(row, "N"))
    return {"tail_m": along_m, "tail_n": along_n}


def _last(row: KernelRow, axis: str) -> int:
    """Elements of the last tile along an axis."""
    size: int = getattr(row, axis)
    return int((size - 1) % getattr(row, f"base_{axis.lower()}")) + 1


def window_tail(cores: int, rows: int, columns: int) -> tuple[int, int]:
    """Parts along M and N of a tile of the last round for which there are ``cores`` cores.

    The rule of catlass' adaptive sliding window: as many parts as cores along both axes, at most
    one per element of the last tile, and then fewer along the axis with more parts, M if they are
    as many, until there is a core for each.
    """
    along_m, along_n = min(rows, cores), min(columns, cores)
    while along_m * along_n > cores:
        if along_m >= along_n:
            along_m -= 1
        else:
            along_n -= 1
    return along_m, along_n


def _split(row: KernelRow, values: dict[str, Any], cores: int) -> dict[str, int]:
    """The depth of a part of K, where its parts are computed by different cores."""
    if "streamk2" in row.switches:
        if _tiles(row) * 2 > cores:
            raise Declined(
                f"switches: streamk2 with {_tiles(row)} tiles on {cores} cores would split only "
                "those of the last round, which is not simulated"
            )
        parts = 2
    elif "multi_core_split_k" in row.switches:
        parts = cores // _tiles(row)
    else:
        return {}
    unit = values["base_k"] * max(values["step_ka"], values["step_kb"])
    depth: int = row.K * values["base_k"] // row.base_k
    return {"single_core_k": ceil_div(ceil_div(depth, max(parts, 1)), unit) * unit}

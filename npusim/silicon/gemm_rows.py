"""Measured matrix products as kernels: the words and columns of a row become a tiling.

A word or column that is not understood here is declined.
"""

from __future__ import annotations

from dataclasses import dataclass

from npusim.base.dtypes import BF16, FP16, FP32, INT8, INT32, MX_BLOCK, MXFP4, MXFP8, DType
from npusim.base.errors import ArgumentError, told_as
from npusim.base.integers import ceil_div
from npusim.base.records import replace
from npusim.call.call import Call
from npusim.call.options import Options
from npusim.kernels.matmul.matmul import Matmul, Tiling
from npusim.kernels.matmul.measured import FINISHED, LIBRARY, template_values
from npusim.kernels.matmul.mix import PER_BLOCK, MatmulFinish, MatmulSum
from npusim.kernels.matmul.operands import LAYOUTS_A, LAYOUTS_B
from npusim.kernels.parts.hand_over import HandOver
from npusim.kernels.parts.sum_parts import SumParts
from npusim.machine.device.spec import Device
from npusim.machine.isa.operands import Tensor
from npusim.silicon.profiler import reported
from npusim.silicon.rows import Declined, KernelRow, SimulatedRow, needed, switch_settings

_DTYPES = {dtype.name: dtype for dtype in (FP16, BF16, FP32, INT8, INT32, MXFP8, MXFP4)}

#: Operations whose vector cores compute GELU.
_GATED = ("gemm_gelu", "grouped_gemm_dequant_gelu")
#: Of these, those that scale before, and have a B for each of ``batch`` equal parts of the rows.
_GROUPED = ("grouped_gemm_dequant_gelu",)
#: Rows that a vector core of these takes at a time, as their source says.
_GROUPED_STEP = 24
#: Blocks in which a core hands over tiles, where nothing says how many.
_BLOCKS = 2


def simulate_gemm_row(row: KernelRow, device: Device) -> SimulatedRow:
    """Simulate the measured kernel of a row on a device.

    Raises ``Declined`` with the word or column that cannot be simulated.
    """
    kernel, cores, notes = kernel_of_row(row, device)
    call = Call(
        row.id, Options(device=device, cores=range(cores), timeline=False), timing_only=True
    )
    with told_as(Declined, "the tiling does not run: "):
        call.launch(kernel)
    (run,) = call.runs
    of_library = any(word in row.switches for word in LIBRARY)
    # The launch starts cores of both kinds, whether or not there is a tile for each.
    started = cores * sum(device.core_kind(role).per_group for role in kernel.roles)
    return reported(
        run,
        row,
        device,
        "cube",
        notes,
        started=started,
        parses=of_library and "constant_tiling" not in row.switches,
    )


# -- from words and columns to kernels -----------------------------------------------------


#: A product, alone or with the vector cores that finish its tiles or add the parts of K.
_Kernel = Matmul | MatmulFinish | MatmulSum


def kernel_of_row(row: KernelRow, device: Device) -> tuple[_Kernel, int, list[str]]:
    """The kernel of a row, the core groups it runs on, and notes on assumptions.

    Raises as ``simulate_gemm_row`` does.
    """
    sets = switch_settings(row, "gemm")
    cores = _cores(row, device)
    dtype = _dtype("dtype_in", row.dtype_in)
    out = _dtype("dtype_out", row.dtype_out)
    m, n, k, *_ = needed(row, "M", "N", "K", "base_m", "base_n", "base_k")
    readers = sets.pop("readers", 0)
    slots = sets.pop("slots", 0)
    with told_as(Declined, caught=ArgumentError):
        values, notes = template_values(row, sets, device, dtype, cores)
    problem = _Problem(row, device, dtype, out, m, n, k // dtype.values, readers, slots)
    with told_as(Declined, "the tiling is not legal: "):
        return problem.kernel(Tiling(**values), cores, notes), cores, notes


def _cores(row: KernelRow, device: Device) -> int:
    """The core groups of a row; ``Declined`` for a row that is not one product on the device."""
    if row.op not in ("gemm", *_GATED):
        raise Declined(f"op: {row.op} is not simulated; gemm is, and {', '.join(_GATED)}")
    if row.batch not in (None, 1) and row.op not in _GROUPED:
        raise Declined(f"batch: {row.batch} products at once are not simulated")
    cores = device.groups if row.cores is None else row.cores
    if cores > device.groups:
        raise Declined(f"cores: {cores} of {device.name}, which has {device.groups}")
    return cores


def _dtype(column: str, name: str | None) -> DType:
    if name not in _DTYPES:
        raise Declined(f"{column}: {name} is not simulated; known are {', '.join(_DTYPES)}")
    return _DTYPES[name]


@dataclass(frozen=True)
class _Problem:
    """The operands of a row; ``k`` counts stored elements.

    ``readers`` vector cores work with a cube core, through ``slots`` blocks of GM; 0 if not stated.
    """

    row: KernelRow
    device: Device
    dtype: DType
    out: DType
    m: int
    n: int
    k: int
    readers: int
    slots: int

    def kernel(self, tiling: Tiling, cores: int, notes: list[str]) -> _Kernel:
        """The product, with the vector cores that finish its tiles or add the parts of K."""
        product = self._product(tiling)
        parts = ceil_div(self.k, tiling.single_core_k or self.k)
        switches = set(self.row.switches)
        finished = self.row.op in _GATED or not switches.isdisjoint(FINISHED)
        if parts > 1:
            if finished:
                notes.append("the factors of rows and columns are not part of the sum")
            sums = Tensor("parts", (parts, self.m, self.n), FP32, "out")
            return MatmulSum(
                replace(product, c=sums, meets=True), SumParts(sums, product.c, meets=True)
            )
        if not finished:
            return product
        return self._finished(product, cores, notes)

    def _product(self, tiling: Tiling) -> Matmul:
        """The product alone, of operands as they lie in memory."""
        layout_a = self._layout("layout_a", LAYOUTS_A)
        layout_b = self._layout("layout_b", LAYOUTS_B)
        a = Tensor("a", self._stored(self.m, self.k, blocked=layout_a == "NZ"), self.dtype)
        if layout_b == "ND_nk":
            first, *rest = self._stored(self.n, self.k, blocked=False)
        else:
            first, *rest = self._stored(self.k, self.n, blocked=layout_b == "NZ")
        groups = self.row.batch or 1 if self.row.op in _GROUPED else 1
        b = Tensor("b", (groups * first, *rest), self.dtype)
        c = Tensor("c", (self.m, self.n), self.out, "out")
        layouts = (layout_a, layout_b)
        return Matmul(tiling, a, b, c, layouts=layouts, scales=self._scales(), groups=groups)

    def _scales(self) -> tuple[Tensor, ...]:
        """The scales of both operands of block-scaled dtypes; none of others."""
        if self.dtype not in (MXFP8, MXFP4):
            return ()
        columns = ceil_div(self.k * self.dtype.values, MX_BLOCK)
        scale_m = Tensor("scale_m", (self.m, columns), INT8)
        scale_n = Tensor("scale_n", (self.n, columns), INT8)
        return scale_m, scale_n

    def _finished(self, product: Matmul, cores: int, notes: list[str]) -> MatmulFinish:
        """The product with the vector cores of each group on its tiles."""
        m, n = product.c.shape
        readers = self.readers or self.device.core_kind("vector").per_group
        slots = self.slots
        if not slots:
            slots = _BLOCKS
            notes.append(f"tiles are taken to go through {slots} blocks of GM per core")
        work = Tensor("work", (cores * slots, product.ran.base_m, product.ran.base_n), FP32, "out")
        hand_over = HandOver(m, n, slots, readers)
        gated = self.row.op in _GATED
        grouped = self.row.op in _GROUPED
        factors = (Tensor("rows", (m, PER_BLOCK), FP32), Tensor("columns", (n,), FP32))
        if gated:
            notes.append(f"{self.row.op}: a gate of straight lines takes the place of exponentials")
        return MatmulFinish(
            replace(product, c=work, handed=hand_over),
            product.c,
            factors=() if gated and not grouped else factors,
            gated=gated,
            step=_GROUPED_STEP if grouped else 0,
            whole=self.dtype.kind == "int",
        )

    def _layout(self, column: str, layouts: tuple[str, ...]) -> str:
        """The layout in a column; ``Declined`` for one that the kernel cannot read."""
        layout = getattr(self.row, column)
        if layout not in layouts:
            raise Declined(f"{column}: {layout} is not simulated; known are {', '.join(layouts)}")
        return str(layout)

    def _stored(self, rows: int, columns: int, *, blocked: bool) -> tuple[int, ...]:
        """The shape in memory: as it is, or (columns of 32 B, rows in sixteens, C0)."""
        if not blocked:
            return rows, columns
        c0 = 32 // self.dtype.bytes
        return ceil_div(columns, c0), ceil_div(rows, 16) * 16, c0

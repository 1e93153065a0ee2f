"""The kernel language: buffers with slots, and one method per instruction.

Every method checks the move against the device's legal paths and remembers the kernel line
that issued it. Waits are not written by the author: lowering derives them from the slots.
"""

from __future__ import annotations

import sys
from math import prod
from pathlib import Path as FilePath

from npusim.device.spec import CoreKind, Device, Path
from npusim.dtypes import FP32, DType
from npusim.errors import ProgramError
from npusim.isa import (
    CoreBarrier,
    CoreSetFlag,
    CoreWaitFlag,
    DataMove,
    Drain,
    DspCast,
    DspGemm,
    Fill,
    Instruction,
    Load2d,
    Load3d,
    Mmad,
    Nd2nz,
    PipeBarrier,
    SetFlag,
    VecBinary,
    VecCast,
    VecDup,
    VecReduce,
    VecScalar,
    VecTranspose,
    WaitFlag,
)
from npusim.isa.base import FRACTAL_BYTES, ceil_div
from npusim.isa.dma import Window
from npusim.isa.operands import Buffer, GmRegion, Region, Slot, SlotRegion, check_capacity
from npusim.program.checks import check_operands


class BufferHandle:
    """A declared buffer as the kernel uses it: take the next turn, or look at the last."""

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        self.turns = 0  # taken in the unit being emitted

    def next(self) -> Slot:
        """Acquire the next slot; its previous content is lost."""
        self.turns += 1
        return Slot(self.buffer, self.turns - 1)

    def last(self, back: int = 0) -> Slot:
        """The slot acquired last (or ``back`` turns before it), also by an earlier unit."""
        if back >= self.buffer.slots:
            raise ProgramError(
                f"{self.buffer.name} has {self.buffer.slots} slots; turn {back} back is "
                "overwritten already; declare more slots"
            )
        return Slot(self.buffer, self.turns - 1 - back)


class Builder:
    """Collects the instructions of one unit at a time for one kind of core."""

    def __init__(self, device: Device, kind: CoreKind) -> None:
        self.device = device
        self.kind = kind
        self.handles: list[BufferHandle] = []
        self.instructions: list[Instruction] = []
        self.lines: list[str] = []

    def begin_unit(self) -> None:
        """Forget the instructions and turns of the previous unit."""
        self.instructions, self.lines = [], []
        for handle in self.handles:
            handle.turns = 0

    # -- buffers ---------------------------------------------------------------------------

    def buffer(
        self, memory: str, shape: tuple[int, ...], dtype: DType, *, slots: int = 1, name: str = ""
    ) -> BufferHandle:
        """Declare ``slots`` pieces of ``shape`` elements in a private memory of the core.

        Raises ``CapacityError`` with the arithmetic when the memory cannot hold them.
        """
        if memory not in self.kind.memories:
            have = ", ".join(self.kind.memories)
            raise ProgramError(
                f"core kind {self.kind.name!r} of {self.device.name} has no {memory} "
                f"(it has: {have})"
            )
        spec = self.device.memories[memory]
        size = prod(shape) * dtype.bytes
        if size <= 0 or slots < 1:
            raise ProgramError(
                f"buffer {name or memory} has shape {shape} and {slots} slots; "
                "both must be at least 1"
            )
        align = spec.align_bytes
        index = len(self.handles)
        buffer = Buffer(
            name or f"{memory.lower()}_{index}", memory, ceil_div(size, align) * align, slots, index
        )
        check_capacity(
            [h.buffer for h in self.handles] + [buffer],
            memory,
            spec.size_bytes,
            f"{self.device.name}: buffer {buffer.name}",
        )
        self.handles.append(BufferHandle(buffer))
        return self.handles[-1]

    # -- moves -----------------------------------------------------------------------------

    def has_path(self, src: str, dst: str, variant: str = "") -> bool:
        """Whether this kind of core can make the move."""
        return self.device.has_path(src, dst, variant)

    def data_move(self, dst: Region, src: Region, dtype: DType, *, atomic: bool = False) -> None:
        """Copy bytes between GM, L1 and UB; ``atomic`` adds into GM in ``dtype``."""
        path = self._path(src.memory, dst.memory)
        self._issue(DataMove(dst, src, path, dtype, atomic))

    def nd2nz(self, dst: SlotRegion, src: GmRegion, dtype: DType) -> None:
        """Load a row-major matrix (one region row per matrix row) as NZ."""
        path = self._path(src.memory, dst.memory, "nd2nz")
        self._issue(Nd2nz(dst, src, path, dtype))

    def load2d(
        self,
        dst: Slot,
        src: Slot,
        dtype: DType,
        *,
        start: int,
        repeat: int,
        stride: int = 1,
        at: int = 0,
        transpose: bool = False,
    ) -> None:
        """Copy ``repeat`` fractals, from fractal ``start`` every ``stride``, to fractal ``at``."""
        if not 1 <= repeat <= 255:
            raise ProgramError(f"load2d repeat is {repeat}; the field holds 1 to 255: split it")
        path = self._path(src.buffer.memory, dst.buffer.memory, "transpose" if transpose else "")
        source = src.at(
            start * FRACTAL_BYTES, FRACTAL_BYTES, rows=repeat, pitch=stride * FRACTAL_BYTES
        )
        target = dst.at(at * FRACTAL_BYTES, repeat * FRACTAL_BYTES)
        self._issue(Load2d(target, source, path, dtype, transpose))

    def load3d(
        self,
        dst: SlotRegion,
        src: SlotRegion,
        window: Window,
        dtype: DType,
        *,
        m: tuple[int, int],
        k: tuple[int, int],
        transpose: bool = False,
    ) -> None:
        """img2col: positions ``m`` = (start, extent) by columns ``k`` = (start, extent) to L0."""
        variant = "load3d_transpose" if transpose else "load3d"
        path = self._path(src.memory, dst.memory, variant)
        self._issue(Load3d(dst, src, path, dtype, window, *m, *k, transpose))

    def fill(self, dst: SlotRegion, value: float, dtype: DType) -> None:
        """Write an immediate into L1."""
        self._issue(Fill(dst, value, self._path("IMM", dst.memory), dtype))

    # -- cube ------------------------------------------------------------------------------

    def mmad(
        self,
        c: Slot,
        a: Slot,
        b: Slot,
        m: int,
        k: int,
        n: int,
        dtype: DType,
        *,
        init: bool,
        hf32: bool = False,
    ) -> None:
        """C = A @ B, or C += A @ B without ``init``; extents in elements, 1 to 4095.

        ``hf32`` rounds fp32 operands to the device's HF32 on their way into the cube.
        """
        for name, extent in (("m", m), ("k", k), ("n", n)):
            if not 1 <= extent <= 4095:
                raise ProgramError(f"mmad {name} is {extent}; the field holds 1 to 4095")
        c0 = 32 // dtype.bytes
        m1, k1, n1 = ceil_div(m, 16), ceil_div(k, c0), ceil_div(n, 16)
        self._issue(
            Mmad(
                c.at(0, m1 * n1 * 1024),
                a.at(0, m1 * k1 * FRACTAL_BYTES),
                b.at(0, k1 * n1 * FRACTAL_BYTES),
                m,
                k,
                n,
                dtype,
                init,
                self.device.cube.hf32_bits if hf32 and self.device.cube else 0,
            )
        )

    def fixpipe_staging(
        self, m: int, dtype: DType, *, slots: int = 2, columns: int = 0
    ) -> BufferHandle | None:
        """The UB buffer ``fixpipe`` needs where L0C drains through UB; None where it does not.

        Holds as many NZ columns of ``m`` x 16 elements as fit (at most ``columns``, if given).
        """
        if self.has_path("L0C", "GM"):
            return None
        column = ceil_div(m, 16) * 256 * dtype.bytes
        fit = self.device.memories["UB"].size_bytes // slots // column
        return self.buffer(
            "UB",
            (max(1, min(fit, columns or fit)), column // dtype.bytes),
            dtype,
            slots=slots,
            name="fixpipe_ub",
        )

    def fixpipe(
        self,
        dst: GmRegion,
        c: Slot,
        m: int,
        n: int,
        dtype: DType,
        *,
        staging: BufferHandle | None,
        nd: bool = False,
        atomic: bool = False,
        c0: int = 16,
    ) -> None:
        """Drain an ``m`` x ``n`` tile of L0C to GM, converted to ``dtype``.

        With ``c0`` 8 every NZ column is split into two of 8 elements (FIX pipe only).
        ``dst`` has one row per NZ column of 16 matrix columns, or with ``nd`` one per matrix
        row. One FIX instruction where the device has L0C->GM, else L0C->UB (V) and UB->GM
        (MTE3) in pieces of the ``staging`` buffer.
        """
        tile = ceil_div(m, 16) * 1024
        if staging is None:
            path = self._path("L0C", "GM", "nz2nd" if nd else "")
            source = c.at(0, tile * ceil_div(n, 16))
            self._issue(Drain(dst, source, m, n, path, dtype, atomic, c0))
            return
        if c0 != 16:
            raise ProgramError(
                f"fixpipe with C0 = {c0}: only a FIX pipe splits columns, and "
                f"{self.device.name} drains L0C through UB; use c0=16"
            )
        piece = staging.buffer.slot_bytes // (m * 16 * dtype.bytes)
        if not piece:
            raise ProgramError(
                f"{staging.buffer.name} holds {staging.buffer.slot_bytes} B, a column of {m} x 16 "
                f"{dtype} needs {m * 16 * dtype.bytes} B; declare the staging for this m"
            )
        for first in range(0, ceil_div(n, 16), piece):
            count = min(piece, ceil_div(n, 16) - first)
            ub = staging.next()
            column = m * 16 * dtype.bytes
            self._issue(
                Drain(
                    ub.at(0, column, rows=count, pitch=column),
                    c.at(first * tile, count * tile),
                    m,
                    count * 16,
                    self._path("L0C", "UB"),
                    dtype,
                )
            )
            for target, source in _store_pieces(dst, ub, first, count, m, n, dtype, nd=nd):
                self.data_move(target, source, dtype, atomic=atomic)

    # -- vector ----------------------------------------------------------------------------

    def vec_binary(
        self,
        operation: str,
        dst: SlotRegion,
        a: SlotRegion,
        b: SlotRegion,
        dtype: DType,
        *,
        saturate: bool = False,
    ) -> None:
        """dst = a op b; operation is add, sub, mul, max or min; rows of pitch 0 repeat."""
        self._issue(VecBinary(operation, dst, a, b, dtype, saturate))

    def vec_scalar(
        self, operation: str, dst: SlotRegion, a: SlotRegion, scalar: float, dtype: DType
    ) -> None:
        """dst = a op scalar; operation is adds, muls, maxs or mins."""
        self._issue(VecScalar(operation, dst, a, scalar, dtype))

    def vec_cast(
        self, dst: SlotRegion, src: SlotRegion, dtype: DType, to: DType, *, saturate: bool = False
    ) -> None:
        """dst = src converted from ``dtype`` to ``to``."""
        self._issue(VecCast(dst, src, dtype, to, saturate))

    def vec_reduce(
        self,
        operation: str,
        dst: SlotRegion,
        src: SlotRegion,
        rows: int,
        columns: int,
        dtype: DType,
    ) -> None:
        """dst[r] = sum ("add") or "max" of row r."""
        self._issue(VecReduce(operation, dst, src, rows, columns, dtype))

    def vec_dup(self, dst: SlotRegion, value: float, dtype: DType = FP32) -> None:
        """Fill with a value."""
        self._issue(VecDup(dst, value, dtype))

    def vec_transpose(
        self,
        dst: SlotRegion,
        src: SlotRegion,
        rows: int,
        columns: int,
        dtype: DType,
        *,
        count: int = 1,
    ) -> None:
        """dst = each of ``count`` matrices of ``rows`` x ``columns`` in src, transposed."""
        if dtype.bytes not in (2, 4):
            raise ProgramError(f"vec_transpose of {dtype}: only 2- and 4-byte types are transposed")
        size = count * rows * columns * dtype.bytes
        for region in (dst, src):
            if region.memory != "UB" or region.size != size or region.row_bytes % dtype.bytes:
                raise ProgramError(
                    f"vec_transpose: {region} has {region.size} B in {region.memory}; {count} x "
                    f"{rows} x {columns} {dtype} need {size} B of whole elements in UB"
                )
        self._issue(VecTranspose(dst, src, rows, columns, dtype, count))

    # -- dsp -------------------------------------------------------------------------------

    def dsp_gemm(
        self,
        acc: SlotRegion,
        a: SlotRegion,
        b: SlotRegion,
        shape: tuple[int, int, int],
        dtype: DType,
        *,
        init: bool,
        transpose_a: bool = False,
    ) -> None:
        """acc = A @ B, or acc += A @ B without ``init``; ``shape`` is (m, k, n) in elements."""
        self._issue(DspGemm(acc, a, b, *shape, dtype, init, transpose_a))

    def dsp_cast(self, dst: SlotRegion, src: SlotRegion, dtype: DType, to: DType) -> None:
        """dst = src converted from ``dtype`` to ``to``."""
        self._issue(DspCast(dst, src, dtype, to))

    # -- order -----------------------------------------------------------------------------

    def set_flag(self, src: str, dst: str, event: int) -> None:
        """Raise a flag from pipe ``src`` to pipe ``dst`` (0 <= event < the device's ids)."""
        self._check_flag(src, dst, event)
        self._issue(SetFlag(src, dst, event))

    def wait_flag(self, src: str, dst: str, event: int) -> None:
        """Hold pipe ``dst`` until the flag from ``src`` is up."""
        self._check_flag(src, dst, event)
        self._issue(WaitFlag(dst, src, event))

    def pipe_barrier(self, pipe: str = "ALL") -> None:
        """Order one pipe after itself, or drain every pipe ("ALL")."""
        self._issue(PipeBarrier("S" if pipe == "ALL" else pipe))

    def core_barrier(self) -> None:
        """Meet all other cores of the kernel."""
        self._issue(CoreBarrier("S"))

    def core_set_flag(self, pipe: str, event: int, scope: str = "all") -> None:
        """Count a flag up on the other cores of the "group" or on "all" others."""
        if scope not in ("group", "all"):
            raise ProgramError(f"core_set_flag scope is {scope!r}; it is 'group' or 'all'")
        self._issue(CoreSetFlag(pipe, event, scope))

    def core_wait_flag(self, pipe: str, event: int, count: int = 1) -> None:
        """Hold a pipe until ``count`` more counts of the flag arrived."""
        self._issue(CoreWaitFlag(pipe, event, count))

    # -- inside ----------------------------------------------------------------------------

    def _path(self, src: str, dst: str, variant: str = "") -> Path:
        return self.device.path(src, dst, variant)

    def _check_flag(self, src: str, dst: str, event: int) -> None:
        if src == dst:
            raise ProgramError(f"flag {src}->{dst}: a pipe is in order already, use two pipes")
        if not 0 <= event < self.device.sync.event_ids:
            raise ProgramError(
                f"flag id {event}: {self.device.name} has ids 0 to {self.device.sync.event_ids - 1}"
            )

    def _issue(self, instruction: Instruction) -> None:
        if instruction.pipe not in self.kind.pipes:
            have = ", ".join(self.kind.pipes)
            raise ProgramError(
                f"{instruction} runs on pipe {instruction.pipe}, which core kind "
                f"{self.kind.name!r} of {self.device.name} lacks (it has: {have})"
            )
        check_operands(instruction)
        for region in (*instruction.reads(), *instruction.writes()):
            self._check_turn(region)
        self.instructions.append(instruction)
        self.lines.append(_kernel_line())

    def _check_turn(self, region: Region) -> None:
        if isinstance(region, GmRegion):
            return
        slot = region.slot
        age = self.handles[slot.buffer.index].turns - 1 - slot.turn
        if age < 0:
            raise ProgramError(
                f"{region} belongs to another unit; take slots with next() or last() where used"
            )
        if age >= slot.buffer.slots:
            raise ProgramError(
                f"{region} was overwritten {age - slot.buffer.slots + 1} turns ago: "
                f"{slot.buffer.name} has {slot.buffer.slots} slots; use it earlier or declare more"
            )


def _store_pieces(
    dst: GmRegion, ub: Slot, first: int, count: int, m: int, n: int, dtype: DType, *, nd: bool
) -> list[tuple[GmRegion, SlotRegion]]:
    """UB->GM pieces of ``count`` NZ columns in UB: whole columns, or short pieces of rows."""
    column, block = m * 16 * dtype.bytes, 16 * dtype.bytes
    if not nd:
        target = GmRegion(
            dst.tensor, dst.base, dst.offset + first * dst.pitch, count, column, dst.pitch
        )
        return [(target, ub.at(0, column, rows=count, pitch=column))]
    pieces = []
    for j in range(count):
        width = min(16, n - (first + j) * 16) * dtype.bytes
        target = GmRegion(
            dst.tensor, dst.base, dst.offset + (first + j) * block, m, width, dst.pitch
        )
        pieces.append((target, ub.at(j * column, width, rows=m, pitch=block)))
    return pieces


_PACKAGE = str(FilePath(__file__).parent.parent)
_OURS = tuple(f"{_PACKAGE}/{part}/" for part in ("program", "isa"))


def _kernel_line() -> str:
    """``file.py:line`` of the innermost caller outside this layer."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return f"{FilePath(frame.f_code.co_filename).name}:{frame.f_lineno}"

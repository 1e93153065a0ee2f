"""The kernel language: buffers with slots, and one method per instruction.

Every method checks the move against the device's legal paths and remembers the kernel line
that issued it. Waits are not written by the author: lowering derives them from the slots.
"""

from __future__ import annotations

from npusim.dtypes import DType
from npusim.errors import ProgramError
from npusim.integers import ceil_div
from npusim.isa import DataMove, Drain, Fill, Load2d, Load3d, Mmad, Nd2nz
from npusim.isa.base import FRACTAL_BYTES
from npusim.isa.dma import Window
from npusim.isa.operands import GmRegion, Region, Slot, SlotRegion
from npusim.program.order_language import OrderLanguage
from npusim.program.recorder import BufferHandle
from npusim.program.vector_language import VectorLanguage

__all__ = ["BufferHandle", "Builder"]


class Builder(VectorLanguage, OrderLanguage):
    """Collects the instructions of one unit at a time for one kind of core.

    Here are the moves and the cube; vector and ordering instructions are inherited.
    """

    # -- moves -----------------------------------------------------------------------------

    def data_move(
        self, dst: Region, src: Region, dtype: DType, *, atomic: bool = False, variant: str = ""
    ) -> None:
        """Copy bytes between GM, L1 and UB; ``atomic`` adds into GM in ``dtype``.

        ``variant`` names a form of the path with costs of its own.
        """
        path = self._path(src.memory, dst.memory, variant)
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
        scales: tuple[SlotRegion, ...] = (),
    ) -> None:
        """C = A @ B, or C += A @ B without ``init``; extents in elements, 1 to 4095.

        ``hf32`` rounds fp32 operands to the device's HF32 on their way into the cube; ``scales``
        are those of block-scaled operands.
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
                scales,
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

    def fixpipe_through_ub(
        self,
        dst: GmRegion,
        c: Slot,
        m: int,
        n: int,
        dtype: DType,
        *,
        staging: BufferHandle,
        atomic: bool = False,
    ) -> None:
        """Drain an ``m`` x ``n`` tile as matrix rows over UB: FIX fills it, MTE3 stores from it.

        ``dst`` has one row per matrix row. Each piece is as many rows, a multiple of 16, as a slot
        of ``staging`` holds.
        """
        row, column = n * dtype.bytes, ceil_div(m, 16) * 1024
        step = staging.buffer.slot_bytes // row // 16 * 16
        if not step:
            raise ProgramError(
                f"{staging.buffer.name} holds {staging.buffer.slot_bytes} B, 16 rows of {n} "
                f"{dtype} need {16 * row} B; declare a larger staging buffer"
            )
        path = self._path("L0C", "UB", "nz2nd")
        for first in range(0, m, step):
            rows = min(step, m - first)
            piece = ceil_div(rows, 16) * 1024
            source = c.at(first * 64, piece, rows=ceil_div(n, 16), pitch=column)
            held = staging.next().at(0, row, rows=rows, pitch=row)
            self._issue(Drain(held, source, rows, n, path, dtype))
            target = GmRegion(
                dst.tensor, dst.base, dst.offset + first * dst.pitch, rows, row, dst.pitch
            )
            self.data_move(target, held, dtype, atomic=atomic)


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

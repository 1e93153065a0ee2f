"""A left operand that lies in L1 with K along its rows: transposed on its way into L0A."""

from __future__ import annotations

from npusim.language import DType, Language, Slot, Window, ceil_div


def load_transposed(
    k: Language,
    a: Slot,
    held: tuple[Slot, int, int],
    m: int,
    at: tuple[int, int],
    dtype: DType,
    *,
    close: bool = False,
) -> None:
    """L0A <- 32-byte columns of a slab in L1, for rows ``at`` = (start, extent) of it.

    ``held`` is the slot, the first of its columns, and the extent along K of the slab, whose
    columns are padded to 16 rows each; ``m`` elements across K are taken. One load3d where the
    device transposes with it, else load2d, column by column unless whole columns follow each other.
    ``close`` columns are not padded, which only load3d can read.
    """
    (slot, first, depth), (start, extent) = held, at
    columns, pitch = ceil_div(m, 32 // dtype.bytes), ceil_div(depth, 16)
    if k.has_path("L1", "L0A", "load3d_transpose"):
        rows = depth if close else pitch * 16
        source, window = slot.at(first * rows * 32, columns * rows * 32), Window(1, rows)
        k.load3d(a, source, window, dtype, m=at, k=(0, m), transpose=True)
        return
    k1 = ceil_div(extent, 16)
    whole = k1 == pitch and columns * k1 <= 255  # what one instruction copies
    for block in range(1 if whole else columns):
        count = columns * k1 if whole else k1
        source = slot.fractals((first + block) * pitch + start // 16, count)
        k.load2d(a.fractals(block * k1, count), source, dtype, transpose=True)

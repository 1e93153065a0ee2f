"""A left operand that lies in L1 with K along its rows: transposed on its way into L0A."""

from __future__ import annotations

from npusim.language import DType, Language, Slot, Window, ceil_div

#: Channel blocks of an image that one img2col load can step over: the largest stride of a window.
MOST_BLOCKS = 63


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
    device transposes with it, else load2d: one where all fractals are equally far apart, as whole
    columns' are, or one of each column, and otherwise column by column. ``close`` columns are not
    padded, which only load3d can read.
    """
    (slot, first, depth), (start, extent) = held, at
    columns, pitch = ceil_div(m, 32 // dtype.bytes), ceil_div(depth, 16)
    if k.has_path("L1", "L0A", "load3d_transpose"):
        rows = depth if close else pitch * 16
        source, window = slot.at(first * rows * 32, columns * rows * 32), Window(1, rows)
        k.load3d(a, source, window, dtype, m=at, k=(0, m), transpose=True)
        return
    k1 = ceil_div(extent, 16)
    apart = k1 in (1, pitch) and columns * k1 <= 255  # what one instruction copies
    for block in range(1 if apart else columns):
        count, stride = (columns * k1, pitch // k1) if apart else (k1, 1)
        source = slot.fractals((first + block) * pitch + start // 16, count, stride=stride)
        k.load2d(a.fractals(block * k1, count), source, dtype, transpose=True)


def images_window(images: int, blocks: int, pixels: int, step: int = 1) -> Window:
    """The img2col geometry of several images [image][channel block][pixel] as one matrix.

    Every ``step``-th pixel of a block is a position. Blocks are the rows of the filter, so that
    columns run over channels, and positions go on from one image to the next.
    """
    return Window(images * blocks, pixels, kernel_h=blocks, stride_h=blocks, stride_w=step)


def load_images(
    k: Language,
    to: Slot,
    held: tuple[Slot, Window],
    at: tuple[int, int],
    columns: tuple[int, int],
    dtype: DType,
) -> None:
    """L0 <- positions ``at`` = (start, extent) of several images, ``columns`` of their channels.

    ``held`` is the slot and its ``images_window``. In L0A channels are rows.
    """
    slot, window = held
    source = slot.at(0, window.h * window.w * 32)
    k.load3d(to, source, window, dtype, m=at, k=columns, transpose=to.memory == "L0A")

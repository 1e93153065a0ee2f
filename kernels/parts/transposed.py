"""A left operand that lies in L1 with K along its rows: transposed on its way into L0A."""

from __future__ import annotations

from typing import NamedTuple

from npusim.language import DType, Language, Slot, Window, ceil_div

#: Channel blocks of an image that one img2col load can step over: the largest stride of a window.
MOST_BLOCKS = 63

#: Bytes of a pixel of a channel block.
PIXEL = 32
#: Fractals that one load2d moves, at most: a field of 8 bits.
MOST_FRACTALS = 255


class NzColumns(NamedTuple):
    """A left operand in L1: columns of 32 bytes of a slot, from the ``first`` on.

    They have ``depth`` rows along K each, padded to 16.
    """

    slot: Slot
    first: int
    depth: int


def load_transposed(
    k: Language,
    a: Slot,
    columns: NzColumns,
    m: int,
    start: int,
    extent: int,
    dtype: DType,
    *,
    close: bool = False,
) -> None:
    """L0A <- ``extent`` rows of the ``columns`` from row ``start`` on, ``m`` elements across K.

    One load3d where the device transposes with it, else load2d: one where all fractals are equally
    far apart, as whole columns' are, or one of each column, and otherwise column by column.
    ``close`` columns are not padded, which only load3d can read.
    """
    count = ceil_div(m, 32 // dtype.bytes)
    pitch = ceil_div(columns.depth, 16)  # fractals from one column to the next
    if k.has_path("L1", "L0A", "load3d_transpose"):
        rows = columns.depth if close else pitch * 16
        source = columns.slot.at(columns.first * rows * 32, count * rows * 32)
        k.load3d(a, source, Window(1, rows), dtype, m=(start, extent), k=(0, m), transpose=True)
        return
    k1 = ceil_div(extent, 16)
    first = columns.first * pitch + start // 16
    if k1 in (1, pitch) and count * k1 <= MOST_FRACTALS:
        source = columns.slot.fractals(first, count * k1, stride=pitch // k1)
        k.load2d(a.fractals(0, count * k1), source, dtype, transpose=True)
        return
    for column in range(count):
        source = columns.slot.fractals(first + column * pitch, k1)
        k.load2d(a.fractals(column * k1, k1), source, dtype, transpose=True)


def images_window(images: int, blocks: int, pixels: int, step: int = 1) -> Window:
    """The img2col geometry of several images [image][channel block][pixel] as one matrix.

    Every ``step``-th pixel of a block is a position. Blocks are the rows of the filter, so that
    columns run over channels, and positions go on from one image to the next.
    """
    return Window(images * blocks, pixels, kernel_h=blocks, stride_h=blocks, stride_w=step)


def load_images(
    k: Language,
    target: Slot,
    source: Slot,
    images: Window,
    positions: tuple[int, int],
    channels: tuple[int, int],
    dtype: DType,
) -> None:
    """L0 <- ``positions`` = (start, extent) of several images, and as many of their ``channels``.

    The images lie in ``source``, and ``images`` is their ``images_window``. In L0A channels are
    rows.
    """
    pixels = source.at(0, images.h * images.w * 32)
    transpose = target.memory == "L0A"
    k.load3d(target, pixels, images, dtype, m=positions, k=channels, transpose=transpose)

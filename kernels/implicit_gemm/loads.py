"""How the input of an implicit matrix product comes to L1: rows of a slab, or several images."""

from __future__ import annotations

from typing import NamedTuple

from npusim.kernels.implicit_gemm.geometry import Geometry, pixel_by_pixel, stack
from npusim.kernels.parts.transposed import MOST_BLOCKS
from npusim.language import Language, Slot, Tensor
from npusim.problem.axis import Reading


class Part(NamedTuple):
    """What is loaded: rows and columns read of so many images, channel blocks from ``plane`` on."""

    h: Reading
    w: Reading
    images: int
    plane: int
    planes: int


def side_by_side(g: Geometry, part: Part) -> bool:
    """Whether whole images of so many planes lie behind each other in L1."""
    plain = pixel_by_pixel(part.h, part.w, (g.h.size, g.w.size))
    return plain and part.images > 1 and part.planes <= MOST_BLOCKS


def load_input(k: Language, x1: Slot, x: Tensor, g: Geometry, part: Part) -> None:
    """L1 <- a part of the input, with zeros inserted in L1."""
    h, w, images, plane, planes = part
    if images > 1:
        _load_images(k, x1, x, g, part)
        return
    size, width = g.h.size * g.w.size * 32, g.w.size * 32
    slot_plane, slot_row = h.size * w.size * 32, w.size * 32
    if (h.size, w.size) != (h.real, w.real):  # holes remain between the rows or columns
        k.fill(x1.at(0, planes * slot_plane), 0.0, x.dtype)
    elif w.size == g.w.size and h.inputs_apart == 1:  # whole rows: one descriptor for all
        source = x.at(plane * size, h.size * width, base="x", rows=planes, pitch=size)
        k.data_move(x1, source, x.dtype)
        return
    together = w.insert == 1 and 1 in (w.real, w.inputs_apart)  # a row is in one piece
    for p in range(planes):
        at = (plane + p) * size
        to = p * slot_plane + h.skip * slot_row + w.skip * 32
        slot_pitch, pitch = h.insert * slot_row, h.inputs_apart * width
        if together:  # rows may lie apart in L1 or in GM
            rows = x1.at(to, w.real * 32, rows=h.real, pitch=slot_pitch)
            source = x.at(at, w.real * 32, base="x", rows=h.real, pitch=pitch)
            k.data_move(rows, source, x.dtype)
            continue
        for row in range(h.real):  # single blocks of 32 B
            blocks = x1.at(to + row * slot_pitch, 32, rows=w.real, pitch=w.insert * 32)
            between = w.inputs_apart * 32
            source = x.at(at + row * pitch, 32, base="x", rows=w.real, pitch=between)
            k.data_move(blocks, source, x.dtype)


def _load_images(k: Language, x1: Slot, x: Tensor, g: Geometry, part: Part) -> None:
    """L1 <- several images below each other in each plane, zeros between, or side by side."""
    h, w, images, plane, planes = part
    if side_by_side(g, part):
        one, image = g.h.size * g.w.size * 32, g.depth_in * g.all_in * g.h.size * g.w.size * 32
        source = x.at(plane * one, planes * one, base="x", rows=images, pitch=image)
        k.data_move(x1, source, x.dtype)
        return
    tall, size, row = stack(h, images), g.h.size * g.w.size * 32, w.size * 32
    pitch, gap = tall.h.size * row, (tall.pitch - h.size) * row
    for i in range(images - 1) if gap else ():
        between = x1.at((i + 1) * tall.pitch * row - gap, gap, rows=planes, pitch=pitch)
        k.fill(between, 0.0, x.dtype)
    for i in range(images):
        to, at = i * tall.pitch * row, (i * g.depth_in * g.all_in + plane) * size
        if w.size == g.w.size:
            source = x.at(at, h.size * row, base="x", rows=planes, pitch=size)
            k.data_move(x1.at(to, h.size * row, rows=planes, pitch=pitch), source, x.dtype)
            continue
        for p in range(planes):  # parts of rows, one plane after another
            source = x.at(at + p * size, row, base="x", rows=h.size, pitch=g.w.size * 32)
            k.data_move(x1.at(to + p * pitch, h.size * row), source, x.dtype)

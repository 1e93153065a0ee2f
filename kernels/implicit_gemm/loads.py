"""Loads of the input of an implicit matrix product into L1: rows of a slab, or several images."""

from __future__ import annotations

from typing import NamedTuple

from npusim.kernels.implicit_gemm.geometry import Geometry, pixel_by_pixel, stack
from npusim.kernels.parts.transposed import MOST_BLOCKS, PIXEL
from npusim.language import Language, Slot, Tensor
from npusim.problem.axis import Reading


class Part(NamedTuple):
    """Rows and columns read of so many images, channel blocks from ``plane`` on."""

    h: Reading
    w: Reading
    images: int
    plane: int
    planes: int


def side_by_side(g: Geometry, part: Part) -> bool:
    """True if whole images of so many planes lie behind each other in L1."""
    plain = pixel_by_pixel(part.h, part.w, (g.h.size, g.w.size))
    return plain and part.images > 1 and part.planes <= MOST_BLOCKS


def load_input(k: Language, x1: Slot, x: Tensor, g: Geometry, part: Part) -> None:
    """L1 <- a part of the input, with zeros inserted in L1."""
    if side_by_side(g, part):
        _load_side_by_side(k, x1, x, g, part)
    elif part.images > 1:
        _load_stacked(k, x1, x, g, part)
    elif _whole_rows(g, part):
        plane = g.h.size * g.w.size * PIXEL
        rows = part.h.size * g.w.size * PIXEL
        source = x.at(part.plane * plane, rows, base="x", rows=part.planes, pitch=plane)
        k.data_move(x1, source, x.dtype)
    else:
        _load_planes(k, x1, x, g, part)


def _whole_rows(g: Geometry, part: Part) -> bool:
    """True if neighbouring whole rows come to L1 as they lie: one descriptor for all planes."""
    h = part.h
    w = part.w
    holes = (h.size, w.size) != (h.real, w.real)
    return not holes and w.size == g.w.size and h.inputs_apart == 1


def _load_planes(k: Language, x1: Slot, x: Tensor, g: Geometry, part: Part) -> None:
    """L1 <- one plane after another of an image; rows and columns may lie apart on either side."""
    h = part.h
    w = part.w
    plane = g.h.size * g.w.size * PIXEL
    slot_row = w.size * PIXEL
    slot_plane = h.size * slot_row
    if (h.size, w.size) != (h.real, w.real):  # holes remain between the rows or columns
        k.fill(x1.at(0, part.planes * slot_plane), 0.0, x.dtype)
    for p in range(part.planes):
        source = (part.plane + p) * plane
        target = p * slot_plane + h.skip * slot_row + w.skip * PIXEL
        if w.insert == 1 and 1 in (w.real, w.inputs_apart):  # a row is in one piece
            _load_rows(k, x1, x, g, part, source, target)
        else:
            _load_pixels(k, x1, x, g, part, source, target)


def _load_rows(
    k: Language, x1: Slot, x: Tensor, g: Geometry, part: Part, source: int, target: int
) -> None:
    """L1 <- rows of a plane, from byte ``source`` of it to byte ``target`` of the slot."""
    h = part.h
    size = part.w.real * PIXEL
    pitch = h.inputs_apart * g.w.size * PIXEL
    slot_pitch = h.insert * part.w.size * PIXEL
    rows = x1.at(target, size, rows=h.real, pitch=slot_pitch)
    k.data_move(rows, x.at(source, size, base="x", rows=h.real, pitch=pitch), x.dtype)


def _load_pixels(
    k: Language, x1: Slot, x: Tensor, g: Geometry, part: Part, source: int, target: int
) -> None:
    """The same pixel by pixel: single blocks of 32 B."""
    h = part.h
    w = part.w
    pitch = h.inputs_apart * g.w.size * PIXEL
    slot_pitch = h.insert * w.size * PIXEL
    for row in range(h.real):
        blocks = x1.at(target + row * slot_pitch, PIXEL, rows=w.real, pitch=w.insert * PIXEL)
        pixels = x.at(
            source + row * pitch, PIXEL, base="x", rows=w.real, pitch=w.inputs_apart * PIXEL
        )
        k.data_move(blocks, pixels, x.dtype)


def _image_bytes(g: Geometry) -> int:
    """Bytes from one image of the input to the next."""
    return g.depth_in * g.all_in * g.h.size * g.w.size * PIXEL


def _load_side_by_side(k: Language, x1: Slot, x: Tensor, g: Geometry, part: Part) -> None:
    """L1 <- several whole images one behind the other, in one move."""
    plane = g.h.size * g.w.size * PIXEL
    source = x.at(
        part.plane * plane,
        part.planes * plane,
        base="x",
        rows=part.images,
        pitch=_image_bytes(g),
    )
    k.data_move(x1, source, x.dtype)


def _load_stacked(k: Language, x1: Slot, x: Tensor, g: Geometry, part: Part) -> None:
    """L1 <- several images below each other in each plane, rows of zeros between them."""
    h = part.h
    stacked = stack(h, part.images)
    plane = g.h.size * g.w.size * PIXEL
    row = part.w.size * PIXEL
    slot_plane = stacked.h.size * row
    gap = (stacked.pitch - h.size) * row
    if gap:
        for i in range(1, part.images):
            between = x1.at(i * stacked.pitch * row - gap, gap, rows=part.planes, pitch=slot_plane)
            k.fill(between, 0.0, x.dtype)
    for i in range(part.images):
        target = i * stacked.pitch * row
        first = i * _image_bytes(g) + part.plane * plane
        if part.w.size == g.w.size:
            source = x.at(first, h.size * row, base="x", rows=part.planes, pitch=plane)
            image = x1.at(target, h.size * row, rows=part.planes, pitch=slot_plane)
            k.data_move(image, source, x.dtype)
            continue
        for p in range(part.planes):  # parts of rows, one plane after another
            source = x.at(first + p * plane, row, base="x", rows=h.size, pitch=g.w.size * PIXEL)
            k.data_move(x1.at(target + p * slot_plane, h.size * row), source, x.dtype)

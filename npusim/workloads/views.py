"""Tensors of a trace: their storage, which part of it they see, and what one image has of them."""

from __future__ import annotations

from math import prod
from typing import Any

from npusim.workloads.recorder import Part

#: Images that are traced: a prime that few other axes have, so that it tells which axis is theirs.
IMAGES = 101


def part_of(whole: Any, view: Any) -> Part | None:
    """What a view is of the tensor that its storage was made for; None for all of it."""
    axes = [(n, by) for n, by in zip(view.shape, view.stride(), strict=True) if by]
    count = prod(n for n, _ in axes)
    if not 0 < count < whole.numel() or count % IMAGES:
        return None
    at = view.storage_offset() - whole.storage_offset()
    ends = []
    for offset in (at, at + sum((n - 1) * by for n, by in axes)):
        found, left = [0] * whole.dim(), offset
        for axis in sorted(range(whole.dim()), key=lambda axis: -whole.stride(axis)):
            if whole.shape[axis] > 1:
                found[axis], left = divmod(left, whole.stride(axis))
        ends.append(tuple(found))
    begun, ended = ends
    sides = list(zip(map(int, whole.shape), begun, ended, strict=True))
    images = [at for at, (n, a, b) in enumerate(sides) if n % IMAGES == a == 0 and b == n - 1]
    if not images or any(a > b for _, a, b in sides):
        return None
    at = min(images, key=lambda at: sides[at][0])
    each = sides[at][0] // IMAGES
    sides[at : at + 1] = [(each, 0, each - 1)] if each > 1 else []
    shape, first, last = zip(*sides, strict=True)
    return Part(shape, first, last, count // IMAGES)


def storage_of(tensor: Any) -> int:
    """What a tensor and its views have in common."""
    return int(tensor.untyped_storage()._cdata)


def elements_of(tensor: Any) -> int:
    """How many elements a tensor has, those that an expansion repeats counted once."""
    axes = zip(tensor.shape, tensor.stride(), strict=True)
    return prod(int(size) for size, apart in axes if apart or size == 0)


def image_of(value: Any) -> tuple[int, ...]:
    """The shape of one image, () where the value is not one of all images."""
    if value.dim() > 1 and value.shape[0] == IMAGES:
        return tuple(map(int, value.shape[1:]))
    if value.dim() > 2 and value.shape[0] == 1 and value.shape[1] % IMAGES == 0:
        return (int(value.shape[1]) // IMAGES, *map(int, value.shape[2:]))
    return () if not value.numel() or value.numel() % IMAGES else (value.numel() // IMAGES,)


def weight_of(weight: Any, image: Any) -> tuple[int, ...]:
    """The sizes of a weight that an operation repeats for all images, () where it does not do so.

    Axes along which it is repeated are 1, those before the first that it has are left out.
    """
    axes = zip(weight.shape, weight.stride(), strict=True)
    sizes = [int(size) if apart else 1 for size, apart in axes]
    while sizes[:1] == [1]:
        sizes = sizes[1:]
    return tuple(sizes) if image.shape[0] == IMAGES and len(sizes) < image.dim() else ()

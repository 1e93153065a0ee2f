"""What an L2 holds, as data: known by its content, kept, and put into an L2 again.

Two kernels that leave the same bytes, clean and dirty, in the same order of use leave the same L2
to whatever comes after them, however long they took.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from npusim.base.integers import IntArray

#: Of a 64-bit mask, as a number without a sign.
_WIDE = (1 << 64) - 1


@dataclass(frozen=True, eq=False)
class Held:
    """Blocks of tensors, least recently used first.

    ``sizes`` are the bytes of every tensor the L2 was told of, in order of names. ``blocks`` are
    int64 (4, n): the place of the tensor in ``sizes``, the block's number in it, and the masks of
    its valid and dirty sectors. ``digest`` differs where anything differs.
    """

    sizes: tuple[tuple[str, int], ...]
    blocks: IntArray
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        """Work the digest out, which is what a content is asked for."""
        made = hashlib.sha256(repr(self.sizes).encode())
        made.update(self.blocks.tobytes())
        object.__setattr__(self, "digest", made.hexdigest()[:32])

    @classmethod
    def of(cls, content: Iterable[tuple[str, int, int, int]], sizes: Mapping[str, int]) -> Held:
        """From what an L2 tells of its ``content``, of tensors that have ``sizes`` in bytes."""
        names = sorted(sizes)
        place = {name: i for i, name in enumerate(names)}
        rows = [
            (place[name], block, *(mask - (mask >> 63 << 64) for mask in masks))
            for name, block, *masks in content
        ]
        blocks = np.array(rows, np.int64).reshape(-1, 4).T
        return cls(tuple((name, sizes[name]) for name in names), np.ascontiguousarray(blocks))

    def content(self) -> list[tuple[str, int, int, int]]:
        """(tensor, block, valid sectors, dirty sectors as bit masks), least recent first."""
        names = [name for name, _ in self.sizes]
        return [
            (names[tensor], block, valid & _WIDE, dirty & _WIDE)
            for tensor, block, valid, dirty in self.blocks.T.tolist()
        ]

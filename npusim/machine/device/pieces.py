"""Rows in global memory of which loads take whole blocks at once, and parts of blocks in pieces."""

from __future__ import annotations

from functools import lru_cache
from math import gcd

import numpy as np


@lru_cache(maxsize=4096)
def pieces(piece_bytes: int, rows: int, row_bytes: int, offset: int, pitch: int) -> int:
    """Return in how many pieces so many ``rows`` of ``row_bytes`` come.

    They begin ``offset`` and multiples of ``pitch`` bytes behind a block of ``piece_bytes``.
    """
    period = min(
        rows, piece_bytes // gcd(piece_bytes, pitch)
    )  # later rows begin where earlier ones did
    starts = (offset + np.arange(period) * pitch) % piece_bytes
    heads = np.minimum(-starts % piece_bytes, row_bytes)
    blocks, tails = np.divmod(row_bytes - heads, piece_bytes)
    each = (blocks > 0).astype(np.int64)
    for parts in (heads, tails):
        each += parts >= piece_bytes // 2
        each += parts % (piece_bytes // 2) >= piece_bytes // 4
        each += parts % (piece_bytes // 4) > 0
    return rows // period * int(each.sum()) + int(each[: rows % period].sum())

"""Rows in global memory of which loads take whole blocks at once, and parts of blocks in pieces."""

from __future__ import annotations

from functools import lru_cache
from math import gcd

import numpy as np


@lru_cache(maxsize=4096)
def pieces(whole: int, rows: int, row_bytes: int, offset: int, pitch: int) -> int:
    """Return in how many pieces so many ``rows`` of ``row_bytes`` come.

    They begin ``offset`` and multiples of ``pitch`` bytes behind a block of ``whole`` bytes.
    """
    period = min(rows, whole // gcd(whole, pitch))  # later rows begin where earlier ones did
    starts = (offset + np.arange(period) * pitch) % whole
    heads = np.minimum(-starts % whole, row_bytes)
    blocks, tails = np.divmod(row_bytes - heads, whole)
    each = (blocks > 0).astype(np.int64)
    for parts in (heads, tails):
        each += parts >= whole // 2
        each += parts % (whole // 2) >= whole // 4
        each += parts % (whole // 4) > 0
    return rows // period * int(each.sum()) + int(each[: rows % period].sum())

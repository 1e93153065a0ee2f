"""A ladder of machines: numbers of cores and sizes of L1 that lesser ones are taken to have."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=64)
def cores_below(cores: int) -> tuple[int, ...]:
    """The numbers of cores below so many that are 4, 5, 6 or 7 times a power of two, or 1 to 3.

    In descending order.
    """
    rungs: list[int] = []
    while cores > 1:
        quarter = max(1, (1 << (cores - 1).bit_length()) // 8)
        cores = (cores - 1) // quarter * quarter
        rungs.append(cores)
    return tuple(rungs)


@lru_cache(maxsize=64)
def l1_below(size: int) -> tuple[int, ...]:
    """The powers of two below so many bytes, in descending order, down to 1 KiB."""
    return tuple(1 << bits for bits in range((size - 1).bit_length() - 1, 9, -1))

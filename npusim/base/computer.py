"""The computer that simulates: what it can hold."""

from __future__ import annotations

import os
from functools import cache

from npusim.base.errors import RoomError


@cache
def memory_bytes() -> int:
    """Its main memory; 8 GiB where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 8 << 30


def require_room(what: str, need: int, way_out: str) -> None:
    """Raise ``RoomError`` where ``what``, of ``need`` bytes in all, cannot be held here.

    Without it a system would swap for minutes or end the process without a word.
    """
    have = memory_bytes()
    if need > have:
        raise RoomError(
            f"{what} some {need / 2**30:,.1f} GiB, this computer has {have / 2**30:,.1f} GiB: "
            f"{way_out}"
        )

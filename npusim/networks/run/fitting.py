"""Search of the largest batch whose memory fits, over sizes that grow with the batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

#: Steps along chords after which the search halves what is open, as it may creep along a bend.
_CHORDS = 12

#: Images beyond which no batch is tried.
MAX_BATCH = 1 << 24


def largest_fitting(size_of: Callable[[int], int], room: int, most: int = MAX_BATCH) -> int:
    """The largest count from 1 to ``most`` whose size is within ``room``; 0 where none is.

    ``size_of`` never falls as counts grow: the answer fits, and the next count does not. Sizes of a
    network are nearly a line over its batch, so that the search goes where the line through the
    two counts nearest to ``room`` meets it.
    """
    size_of = cache(size_of)
    if size_of(1) > room:
        return 0
    fits = 1
    below = 0  # a smaller count than ``fits``, for the slope while no count is too large
    too_large = most + 1
    chords = 0
    while too_large - fits > 1:
        if chords >= _CHORDS:
            count = (fits + too_large) // 2
        elif too_large <= most:
            count = _where(fits, size_of(fits), too_large, size_of(too_large), room)
        elif below:
            count = _where(below, size_of(below), fits, size_of(fits), room)
        else:
            count = 2
        count = min(max(count, fits + 1), too_large - 1)
        chords += 1
        if size_of(count) <= room:
            below = fits
            fits = count
        else:
            too_large = count
    return fits


def _where(first: int, first_size: int, last: int, last_size: int, room: int) -> int:
    """The last count whose size is within ``room`` on the line through two counts."""
    if last_size <= first_size:
        return 2 * last
    return first + (room - first_size) * (last - first) // (last_size - first_size)

"""Many objects at once: programs are made of millions that live as long as they do."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def growing() -> Iterator[None]:
    """Make many objects, none of which is garbage, without the search for cycles among them.

    The search goes through all objects again and again as their number grows, which doubles the
    time that a large program takes to be built. It is as it was afterwards.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()

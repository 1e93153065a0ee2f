"""Calls that are planned and not run: checks, tilings, launches and workspace, but no time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_planning: ContextVar[bool] = ContextVar("planning", default=False)


@contextmanager
def planning() -> Iterator[None]:
    """Plan the calls made inside: kernels are checked against the device and then left out.

    Such a call takes ``Spec``s. Its ``Result`` has ``workspace_bytes`` and notes, and no runs.
    """
    token = _planning.set(True)
    try:
        yield
    finally:
        _planning.reset(token)


def is_planning() -> bool:
    """Whether a call made now is only planned."""
    return _planning.get()

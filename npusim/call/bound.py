"""``npusim.bound``: what no program for a problem can beat, and no schedule of a kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from npusim.base.errors import ArgumentError
from npusim.call.call import simulate
from npusim.machine.device.spec import Device
from npusim.machine.program.kernel import Kernel
from npusim.results import Result
from npusim.results.bounded import Bounded


def bound(
    of: Callable[..., Result] | Kernel | Result,
    *operands: Any,
    device: str | Device | None = None,
    measured_us: float | None = None,
    **options: Any,
) -> Bounded:
    """The least time of a call, with what sets it, and how near to it ``measured_us`` is.

    ``of`` is an operator of ``npusim.ops`` with its ``operands``, ``device`` and ``options``, a
    kernel of your own on a ``device``, or a result. An ``npusim.spec`` in the place of an array
    computes no numbers. Raises ``ArgumentError`` for anything else, and what the call raises.
    """
    if isinstance(of, Result):
        return of.bound(measured_us)
    if device is None or (not callable(of) and not isinstance(of, Kernel)):
        raise ArgumentError(
            f"bound takes an operator of npusim.ops or a kernel with a device, or a result; got "
            f"{of!r} and device={device!r}"
        )
    if isinstance(of, Kernel):
        return simulate(of, device, *operands, **options).bound(measured_us)
    return of(*operands, device=device, **options).bound(measured_us)
